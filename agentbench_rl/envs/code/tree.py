"""Work trees as values: a base that never changes and the files that an episode changed.

A snapshot or a fork is a reference. Files reach a disk only when tests run (see `sandbox`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from agentbench_rl.types import AgentRLError

#: Bytes; what file systems take, with room for where the tree lies.
_LONGEST_PATH, _LONGEST_NAME = 1000, 200


class PathError(ValueError):
    """A path that an agent named and that it may not use; the message says why."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A line of a file in which a text was found; lines are counted from 1."""

    path: str
    number: int
    line: str


def checked_path(path: str) -> str:
    """The path in normal form; raises PathError unless it is relative and stays in the tree."""
    if not path or "\0" in path or "\\" in path:
        raise PathError(f"not a path: {path[:80]!r}")
    pure = PurePosixPath(path)
    if pure.is_absolute() or path.startswith("~") or ".." in pure.parts:
        raise PathError(f"{path[:80]}: paths are relative to the work tree and may not leave it")
    if not pure.parts:
        raise PathError("the work tree itself is no file")
    if ".git" in pure.parts:
        raise PathError(f"{path[:80]}: the history is no part of the work tree")
    try:
        too_long = len(path.encode()) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in pure.parts)
    except UnicodeEncodeError:
        raise PathError(f"not a path: {path[:80]!r}") from None
    if too_long:
        raise PathError(f"{path[:80]}…: the path is too long")
    return str(pure)


@dataclass(frozen=True)
class TextBase:
    """A base held in memory: path → text."""

    files: Mapping[str, str]

    @cached_property
    def key(self) -> str:
        """SHA-256 of paths and contents."""
        return content_hash(self.files)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Sorted paths."""
        return tuple(sorted(self.files))

    def read(self, path: str) -> str | None:
        """Text of a file, or None where there is none."""
        return self.files.get(path)


@dataclass(frozen=True)
class DirectoryBase:
    """A base on disk, such as a checkout, which nothing may change while it is in use.

    `key` identifies its content. Links are neither listed nor followed.
    """

    root: Path
    key: str

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Sorted paths of the files, version control aside."""
        return tuple(sorted(self._walk(self.root)))

    def read(self, path: str) -> str | None:
        """Text of a file, or None where there is none; raises PathError for a way through a link, or no text."""
        file = self.root / path
        if any(place.is_symlink() for place in (file, *file.parents) if place.is_relative_to(self.root)):
            raise PathError(f"{path}: leads through a link")
        try:
            return file.read_text(encoding="utf-8") if file.is_file() else None
        except UnicodeDecodeError:
            raise PathError(f"{path}: is not a text file") from None

    def _walk(self, directory: Path) -> Iterator[str]:
        for entry in directory.iterdir():
            if entry.name in {".git", "__pycache__"} or entry.is_symlink():
                continue
            if entry.is_dir():
                yield from self._walk(entry)
            elif entry.is_file():
                yield entry.relative_to(self.root).as_posix()


Base = TextBase | DirectoryBase


@dataclass(frozen=True)
class Tree:
    """A base and what was changed in it; immutable."""

    base: Base
    changes: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """SHA-256 of the content: a change that was taken back leaves no trace."""
        return content_hash({"": self.base.key} | dict(self.changes)) if self.changes else self.base.key

    @property
    def paths(self) -> list[str]:
        """Sorted paths of all files."""
        return sorted({*self.base.paths, *self.changes})

    def read(self, path: str) -> str | None:
        """Text of a file, or None where there is none; raises PathError for what may not be read."""
        return self.changes[path] if path in self.changes else self.base.read(path)

    def search(self, text: str) -> list[Hit]:
        """Lines that hold a text, sorted by path and line."""
        hits = []
        for path in self.paths:
            try:
                lines = (self.read(path) or "").split("\n")
            except PathError:
                continue
            hits += [Hit(path, number, line) for number, line in enumerate(lines, 1) if text in line]
        return hits

    def write(self, path: str, text: str) -> Tree:
        """The tree with one file changed or added; raises PathError for a path that cannot be a file here."""
        if any(other.startswith(f"{path}/") for other in self.paths):
            raise PathError(f"{path}: is a directory")
        parents = {str(parent) for parent in PurePosixPath(path).parents}
        if blocking := parents & {*self.base.paths, *self.changes}:
            raise PathError(f"{path}: {min(blocking)} is a file")
        changes = {**self.changes, path: text}
        if self.base.read(path) == text:
            del changes[path]
        return Tree(self.base, changes)


def content_hash(files: Mapping[str, str]) -> str:
    """SHA-256 over sorted paths and texts."""
    digest = hashlib.sha256()
    for path in sorted(files):
        for part in (path, files[path]):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def text_base(root: Path) -> TextBase:
    """Read a directory's text files into memory; raises AgentRLError when a link leads out of it.

    Files that are not text in UTF-8 are left out.
    """
    files = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
            raise AgentRLError(f"{path}: a link that leads out of {root}; remove it")
        if path.is_file() and not {".git", "__pycache__"} & set(path.relative_to(root).parts):
            try:
                files[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
    return TextBase(files)
