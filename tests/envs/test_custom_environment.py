"""The example of docs/environments.md, and what users can do wrong around it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_experiment import run_everything, tiny
from typer.testing import CliRunner

from agentbench_rl.cli import app
from agentbench_rl.config import stage_config
from agentbench_rl.envs import contract, open_source
from agentbench_rl.presets import load_environment
from agentbench_rl.types import AgentRLError

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
CODE, FILE, _ = re.findall(
    r"^```(?:python|yaml)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The YAML file of the page; its module can be imported."""
    (tmp_path / "boxes.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "boxes.yaml").write_text(FILE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "boxes.yaml"
    sys.modules.pop("boxes", None)


def test_it_is_as_short_as_promised() -> None:
    assert len(CODE.splitlines()) < 60


def test_it_keeps_the_contract(example: Path) -> None:
    problems = list(contract.check_environment(load_environment(str(example)), 5))
    assert len(problems) > 30
    assert [problem for problem in problems if problem[1]] == []


@pytest.mark.parametrize("command", [["check", "--games", "2"], ["bench", "--games", "2", "--repeats", "2"]])
def test_the_commands_take_its_file(example: Path, command: list[str]) -> None:
    result = CliRunner().invoke(app, ["env", command[0], str(example), *command[1:]])
    assert (result.exit_code, result.exception) == (0, None), result.output


def test_it_is_played_by_hand(example: Path) -> None:
    said = "\n".join(["actions", "expert", "open what", *(f"open {box}" for box in range(5)), "quit"])
    result = CliRunner().invoke(app, ["env", "play", str(example)], input=said)
    assert result.exit_code == 0, result.output
    for part in ("numbered from 0", "Any text may be an action.", "open 4", "Say: open NUMBER"):
        assert part in result.output


def test_it_runs_through_all_stages(example: Path, tmp_path: Path) -> None:
    panels = {"train": 4, "validation": 2, "test": 2}
    experiment = tiny(
        environment={"name": "custom", "factory": "boxes:Boxes", "max_turns": 4},
        panels={name: {"split": name, "size": size} for name, size in panels.items()},
        demos={"episodes": 4, "expert": "scripted"},
        training={"iterations": 1, "learning_rate": 1e-3},
    )
    layout = run_everything(experiment, tmp_path / "results")
    assert list((layout.root / "evaluation").rglob("episodes.parquet"))


def test_results_are_out_of_date_when_its_code_changes(example: Path) -> None:
    def hashed() -> object:
        experiment = tiny(environment={"name": "custom", "factory": "boxes:Boxes"})
        return stage_config(experiment, "panel")["environment.tasks"]

    before = hashed()
    assert hashed() == before
    example.with_suffix(".py").write_text(CODE.replace("Higher", "More"), encoding="utf-8")
    assert hashed() != before


OWN_SUITE = """
from agentbench_rl.envs.listed import GameSuite, seeded_tasks
from boxes import Boxes

def make(data=None, count=4):
    boxes = int(data.read_text()) if data else 10
    tasks = seeded_tasks("boxes", 1, ["own", boxes], dict.fromkeys(("train", "validation", "test"), count))
    return GameSuite("own", "7", tasks, lambda: Boxes(boxes))
"""


@pytest.mark.parametrize("data", [False, True])
def test_a_suite_of_ones_own_is_played(example: Path, data: bool) -> None:
    example.with_name("own.py").write_text(OWN_SUITE, encoding="utf-8")
    file = example.with_name("boxes.txt")
    file.write_text("5", encoding="utf-8")
    try:
        changes = ["factory=own:make", "options={count: 3}", f"data={file if data else 'null'}"]
        environment = load_environment(str(example), changes)
        problems = list(contract.check_environment(environment, 3))
        assert [problem for problem in problems if problem[1]] == []
        suite = open_source(environment, {"test": None if data else 3})
        assert (suite.version, len(suite.tasks("test"))) == ("7", 3)
        assert ("5 boxes" in suite.make().reset(suite.tasks("test")[0]).text) == data
    finally:
        sys.modules.pop("own", None)


def test_a_split_without_tasks_is_told_and_the_others_are_checked(example: Path) -> None:
    code = OWN_SUITE.replace(', "test"), count)', '), count) | {"test": 0}')
    example.with_name("own.py").write_text(code, encoding="utf-8")
    try:
        environment = load_environment(str(example), ["factory=own:make", "options={count: 3}"])
        problems = list(contract.check_environment(environment, 3))
        assert [problem for problem in problems if problem[1]] == [
            ("tasks", "split test: there are no tasks, or they are not sorted by task_id")
        ]
        assert {checked.partition(":")[0] for checked, _ in problems} == {"tasks", "train", "validation"}
    finally:
        sys.modules.pop("own", None)


def test_seeds_do_not_come_from_data(example: Path) -> None:
    environment = load_environment(str(example), [f"data={example}", "factory=boxes:Boxes"])
    with pytest.raises(AgentRLError, match=r"do(es)? not take them|leave it away"):
        open_source(environment, {"train": None})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"factory": "no_such_module:Boxes"}, "no_such_module:Boxes cannot be loaded"),
        ({"factory": "boxes:Chests"}, "boxes:Chests cannot be loaded"),
        ({"factory": "boxes:random"}, "does not take them|neither a TextGame nor a Suite"),
        ({"options": "{chests: 3}"}, "environment.options: boxes:Boxes does not take them"),
        ({"factory": "boxes"}, "factory"),
        ({"factory": "pathlib:Path", "options": "{}"}, "neither a TextGame nor a Suite"),
    ],
)
def test_a_wrong_setting_is_explained(example: Path, settings: dict[str, str], message: str) -> None:
    with pytest.raises(AgentRLError, match=message):
        open_source(load_environment(str(example), [f"{key}={value}" for key, value in settings.items()]), {"train": 1})
