"""Faults of the disk under safetensors and tokenizers, whose Rust code raises them as exceptions of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OS_ERROR = re.compile(r"\(os error (\d+)\)")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Re-raise what says "(os error N)" as the OSError N about `path`; everything else passes."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        found = _OS_ERROR.search(str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from error
