"""Code of users that settings name: `module:name`, and the hash that tells whether it changed."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from pydantic import Field

#: A module and what is in it; the module is installed, or its directory stands in PYTHONPATH.
CodeName = Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]


def source_hash(module: str) -> str | None:
    """SHA-256 of a module's file, None where there is none to be found."""
    try:
        found = find_spec(module)
    except ImportError:
        return None
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return None
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()
