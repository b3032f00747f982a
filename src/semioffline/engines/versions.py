"""The versions that all nodes of a cluster must share, because results depend on them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from functools import cache
from pathlib import Path

import semioffline

_PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy", "ray")
SOURCE = "semioffline's source"


@cache
def library_versions() -> dict[str, str]:
    """Package -> version, without the build of torch (`+cu128`), and a digest of this library's own files."""
    found = {"semioffline": semioffline.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    digest = hashlib.blake2b(digest_size=6)
    folder = Path(semioffline.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return found | {SOURCE: digest.hexdigest()}


def version_problem(wanted: dict[str, str], here: dict[str, str]) -> str | None:
    """The packages whose versions differ, in words; None: there are none."""
    names = [name for name in sorted(wanted.keys() | here.keys()) if wanted.get(name) != here.get(name)]
    told = [f"{name} {here.get(name)} instead of {wanted.get(name)}" for name in names]
    return ", ".join(told) or None
