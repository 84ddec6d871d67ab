"""Fingerprint of a stage's code: the modules of this package that it imports, directly or not, and their data files.

Stages are called through a command line, where a workflow engine cannot see that the code behind it has changed;
the fingerprint is a parameter of every rule and a part of every stage's identity.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib import resources
from pathlib import Path

_PACKAGE = "agentbench_rl"
#: Never changes what a stage writes.
_WITHOUT_EFFECT = (f"{_PACKAGE}.tracking", f"{_PACKAGE}.cli")
#: All other files beside a module are data that it may read.
_CODE = (".py", ".pyc")


@cache
def code_fingerprint(stage: str, family: str | None = None) -> str:
    """SHA-256 over the sources of `agentbench_rl.stages.<stage>`, the modules it imports and the data beside them.

    `family`: the environment that is played; the code of the others is left out (None: of none).
    """
    root = _root()
    files = {_source(root, module) for module in import_closure(f"{_PACKAGE}.stages.{stage}") if _plays(module, family)}
    for directory in {file.parent for file in files}:
        files |= {path for path in directory.iterdir() if path.is_file() and path.suffix not in _CODE}
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _plays(module: str, family: str | None) -> bool:
    """Whether a module may matter where `family` is played."""
    parts = module.split(".")
    is_family = (
        parts[1] == "envs" and len(parts) > 2 and _source(_root(), f"{_PACKAGE}.envs.{parts[2]}").name == "__init__.py"
    )
    return family is None or not is_family or parts[2] == family


def import_closure(module: str) -> set[str]:
    """Names of the package's modules that `module` imports, itself included."""
    root = _root()
    closure: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in closure or name.startswith(_WITHOUT_EFFECT) or not _source(root, name).exists():
            continue
        closure.add(name)
        waiting += imported_modules(_source(root, name).read_text(encoding="utf-8"))
    return closure


@cache
def imported_modules(source: str) -> tuple[str, ...]:
    """Names of the package's modules and attributes that a source text imports."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    parents = [name.rpartition(".")[0] for name in names]
    return tuple(name for name in (*names, *parents) if name.startswith(f"{_PACKAGE}."))


def _root() -> Path:
    return Path(str(resources.files(_PACKAGE)))


def _source(root: Path, module: str) -> Path:
    path = root.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
