"""The small libraries that faults are put into: `NAME.py.txt` each, with its tests in `test_NAME.py.txt`.

They are data, not modules of this package: a work tree holds them as `NAME.py` and `tests/test_NAME.py`.
"""

from __future__ import annotations

from importlib import resources


def library_names() -> list[str]:
    """Names of the libraries, sorted."""
    names = (entry.name for entry in resources.files(__name__).iterdir() if entry.name.endswith(".py.txt"))
    return sorted(name.removesuffix(".py.txt") for name in names if not name.startswith("test_"))


def library_files(name: str) -> dict[str, str]:
    """The work tree of a library: path → text, with all its tests."""
    directory = resources.files(__name__)
    source = (directory / f"{name}.py.txt").read_text(encoding="utf-8")
    tests = (directory / f"test_{name}.py.txt").read_text(encoding="utf-8")
    return {f"{name}.py": source, f"tests/test_{name}.py": tests}
