import sys

from semioffline.cli import main

sys.exit(main())
