"""One file per method. A file added here is a method: `semioffline train NAME`."""
