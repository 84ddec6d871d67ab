"""The architecture, read from the sources: layers, cycles, sizes, and what a start of the command line loads."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import agentbench_rl

PACKAGE = Path(agentbench_rl.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
LAYERS = (
    ("types", "config", "presets"),
    ("algorithms", "envs", "policies"),
    ("rollout", "training", "evaluation", "tracking"),
    ("stages",),
    ("cli",),
)
#: Siblings of one layer do not import each other, but for these.
ALLOWED = {("evaluation", "rollout"), ("config", "types"), ("presets", "types"), ("presets", "config")}
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
HEAVY = ("torch", "transformers", "mlflow", "pandas", "matplotlib", "textworld", "snakemake", "pyarrow", "numpy")
MOST_CPU_SECONDS_OF_HELP = 0.5


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    return module.split(".")[1]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules of the package that a syntax tree imports, wherever in the file."""
    known = {name_of(path) for path in MODULES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            while name.startswith("agentbench_rl.") and name not in known:
                name = name.rpartition(".")[0]
            if name in known and name != "agentbench_rl":
                yield name


def edges(*, for_types: bool = True) -> Iterator[tuple[str, str]]:
    """(importer, imported) of all modules; with or without imports that only type checkers see."""
    for path in MODULES:
        tree = parsed(path)
        if not for_types:
            tree = ast.Module([node for node in tree.body if not _only_for_types(node)], [])
        for imported in imports(tree):
            if name_of(path) not in ("agentbench_rl", "agentbench_rl.__main__"):
                yield name_of(path), imported


def _only_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {part_of(name_of(path)) for path in MODULES if name_of(path) != "agentbench_rl"}
    assert parts - {"__main__"} == set(LEVEL)


def test_imports_go_downwards_only() -> None:
    wrong = [edge for edge in edges() if LEVEL[part_of(edge[0])] < LEVEL[part_of(edge[1])]]
    assert not wrong


def test_siblings_of_a_layer_do_not_import_each_other() -> None:
    pairs = {(part_of(importer), part_of(imported)) for importer, imported in edges()}
    siblings = {(one, other) for one, other in pairs if one != other and LEVEL[one] == LEVEL[other]}
    assert siblings <= ALLOWED


def test_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {}
    for importer, imported in edges(for_types=False):
        graph.setdefault(importer, set()).add(imported)
        graph.setdefault(imported, set())
    while free := [module for module, imported in graph.items() if not imported & graph.keys()]:
        for module in free:
            del graph[module]
    assert not graph, "these modules import each other, directly or not"


def test_the_command_line_starts_without_heavy_libraries() -> None:
    code = "import sys, agentbench_rl.cli; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(result.stdout.split()) & set(HEAVY)


def test_help_is_quick() -> None:
    def cpu_seconds() -> float:
        before = os.times()
        command = [sys.executable, "-m", "agentbench_rl", "--help"]
        subprocess.run(command, capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(cpu_seconds() for _ in range(3)) < MOST_CPU_SECONDS_OF_HELP


@pytest.mark.parametrize("path", MODULES, ids=lambda path: name_of(path))
def test_files_and_functions_are_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 400
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or node.lineno) - node.lineno + 1 < 50, f"{node.name} is too long"
