"""Commands around environments, for every family."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentbench_rl.cli import app
from agentbench_rl.presets import load_environment, preset_names

#: Families whose packages or games are not there by default.
EXTRAS = ("gem", "textworld")
NAMES = [name for name in preset_names("environments") if name not in EXTRAS]


def run(*arguments: str, said: str = "") -> str:
    result = CliRunner().invoke(app, ["env", *arguments], input=said)
    assert (result.exit_code, result.exception) == (0, None), result.output
    return result.output


def test_all_presets_are_listed() -> None:
    listed = run("list")
    for name in preset_names("environments"):
        assert f" {name} " in listed


@pytest.mark.parametrize("name", NAMES)
def test_every_family_is_played_by_hand(name: str) -> None:
    # Nothing but the expert's and this test's own commands is run.
    unisolated = ("--set", "isolation=none") if load_environment(name).name == "code" else ()
    said = run("play", name, *unisolated, said="actions\nexpert\nnonsense\nquit\n")
    admissible = "Any text may be an action." in said or len(said.splitlines()) > 5
    assert admissible


def test_libraries_from_a_directory_are_played(tmp_path: Path) -> None:
    library = tmp_path / "sums-1.0"
    library.mkdir()
    names = [f"times{number}" for number in range(2, 8)]
    functions = [f"def {name}(x):\n    return x * {name[-1]}\n" for name in names]
    tests = [f"def test_{name}():\n    assert sums.{name}(3) == 3 * {name[-1]}\n" for name in names]
    (library / "sums.py").write_text("\n\n".join(functions))
    (library / "test_sums.py").write_text("\n\n".join(["import sums\n", *tests]))
    said = run(
        "play", "code", "--split", "train", "--set", "isolation=none", "--set", f"data={tmp_path}", said="quit\n"
    )
    assert "sums does not do what it should" in said


def test_a_split_that_is_not_there_is_told() -> None:
    result = CliRunner().invoke(app, ["env", "play", "webshop", "--split", "nope"])
    assert result.exit_code == 1
    assert "there are train, validation, test" in result.stderr


@pytest.mark.parametrize("name", ["alfworld", "search"])
def test_the_calls_are_timed(name: str) -> None:
    said = run("bench", name, "--games", "2", "--repeats", "1")
    for row in ("reset", "step", "snapshot", "restore", "fork", "first visits", "steps/s", "memory", "pickled"):
        assert row in said


def test_a_check_says_what_was_checked() -> None:
    said = run("check", "search", "--games", "2")
    assert all(line.endswith(": ok") for line in said.splitlines())
    assert {f"{split}: expert: ok" for split in load_environment("search").splits} <= set(said.splitlines())


def test_a_check_that_fails_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbench_rl.envs.contract.MOST_SNAPSHOT_BYTES", 1)
    result = CliRunner().invoke(app, ["env", "check", "search", "--games", "2"])
    assert result.exit_code == 1
    assert "train: snapshots: train-" in result.output
    assert "3 checks failed" in result.stderr


@pytest.mark.parametrize("name", EXTRAS)
def test_a_missing_extra_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    for file in ("a.z8", "a.json"):
        (tmp_path / file).write_text("{}", encoding="utf-8")
    monkeypatch.setattr(f"agentbench_rl.envs.{name}.suite.version", missing)
    data = ["--set", f"data={tmp_path}"] if name == "textworld" else []
    result = CliRunner().invoke(app, ["env", "check", name, *data])
    assert result.exit_code == 1
    assert f"pip install 'agentbench_rl[{name}]'" in result.stderr


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a.ulx"], "holds no .z8 games of tw-make (.ulx)"),
        ([], "holds no .z8 games of tw-make (nothing)"),
        (["a.z8"], "a.json, which tw-make writes beside it, is missing"),
        (["a.z8", "a.json"], "a.json: cannot be read"),
    ],
)
def test_games_of_textworld_that_are_not_whole_are_told(files: list[str], message: str, tmp_path: Path) -> None:
    for file in files:
        (tmp_path / file).write_text("{", encoding="utf-8")
    result = CliRunner().invoke(app, ["env", "check", "textworld", "--set", f"data={tmp_path}"])
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize("name", ["gem"])
def test_families_without_data_say_so(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["env", "fetch", name, str(tmp_path)])
    assert result.exit_code == 1
    assert "nothing to fetch" in result.stderr


def test_a_data_set_of_a_family_that_has_one_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["env", "fetch", "alfworld", str(tmp_path), "--dataset", "small"])
    assert result.exit_code == 1
    assert "leave the option away" in result.stderr
