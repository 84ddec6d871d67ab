"""The code of a stage: an edit makes exactly the stages stale that import the edited module."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentbench_rl
from agentbench_rl.stages import fingerprint
from agentbench_rl.stages.fingerprint import code_fingerprint, import_closure

PACKAGE = Path(agentbench_rl.__file__).parent
STAGES = ("panel", "demos", "sft", "rollout", "score", "advantage", "update", "evaluate", "compare", "report")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package's sources that the fingerprint reads instead."""
    ignored = shutil.ignore_patterns("__pycache__")
    copy = Path(shutil.copytree(PACKAGE, tmp_path / "agentbench_rl", ignore=ignored))
    monkeypatch.setattr(fingerprint.resources, "files", lambda package: copy)
    code_fingerprint.cache_clear()
    yield copy
    code_fingerprint.cache_clear()


def stale_after(file: Path, text: str = "\n# edited\n") -> set[str]:
    """The stages whose fingerprint an edit changes."""
    before = {stage: code_fingerprint(stage) for stage in STAGES}
    file.write_text(file.read_text(encoding="utf-8") + text, encoding="utf-8")
    code_fingerprint.cache_clear()
    return {stage for stage in STAGES if code_fingerprint(stage) != before[stage]}


@pytest.mark.parametrize(
    ("module", "stages"),
    [
        ("algorithms/advantages/gigpo.py", {"advantage"}),
        ("algorithms/losses/token_clip.py", {"update"}),
        ("stages/demos.py", {"demos", "sft"}),
        ("tracking/mlflow.py", set()),
        ("cli/stages.py", set()),
        ("types.py", set(STAGES)),
    ],
)
def test_an_edit_makes_its_importers_stale_and_nothing_else(package: Path, module: str, stages: set[str]) -> None:
    assert stale_after(package / module) == stages


@pytest.mark.parametrize("data", ["household.toml", "grammar.twl2", "domain.pddl"])
def test_data_beside_the_code_belongs_to_it(package: Path, data: str) -> None:
    stale = stale_after(package / "envs" / "alfworld" / data)
    assert {"panel", "rollout"} <= stale
    assert "advantage" not in stale


def test_the_report_template_belongs_to_the_report(package: Path) -> None:
    assert "report" in stale_after(package / "evaluation" / "report.html.j2")


def test_a_new_module_makes_nothing_stale_until_it_is_imported(package: Path) -> None:
    new = package / "algorithms" / "advantages" / "new.py"
    new.write_text("", encoding="utf-8")
    assert stale_after(new) == set()
    edit = "\nfrom agentbench_rl.algorithms.advantages import new\n"
    assert stale_after(package / "algorithms" / "rewards.py", edit) == {"advantage"}
    assert stale_after(new) == {"advantage"}


def test_a_copy_in_another_place_has_the_same_fingerprint(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = [code_fingerprint(stage) for stage in STAGES]
    monkeypatch.undo()
    code_fingerprint.cache_clear()
    assert [code_fingerprint(stage) for stage in STAGES] == copied


def test_a_closure_holds_packages_on_the_way_and_lazy_imports() -> None:
    closure = import_closure("agentbench_rl.stages.rollout")
    assert {"agentbench_rl.envs", "agentbench_rl.envs.alfworld.engine", "agentbench_rl.policies.hf"} <= closure
    assert not any("tracking" in module for module in closure)
    assert not any(part in module for module in closure for part in (".advantages", ".losses", ".modifiers"))
