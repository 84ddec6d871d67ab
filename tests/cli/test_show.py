"""What `agentrl show` prints of trees."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from rollout_trees import branched, expanded, write
from typer.testing import CliRunner

from agentbench_rl.cli import app


def shown(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["show", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_trees_that_fork_stand_in_the_list(tmp_path: Path) -> None:
    output = shown(write(branched(), tmp_path))
    row = next(line for line in output.splitlines() if "g.t0 " in line)
    assert row.replace("│", " ").split() == ["g.t0", "17", "4", "0.5"]


def test_lists_of_chains_show_no_trees(tmp_path: Path) -> None:
    rollouts, episodes, advantages = branched()
    chains = rollouts[rollouts["branch"] == 0], episodes[:1], advantages
    assert "Trees" not in shown(write(chains, tmp_path))


def test_a_tree_without_a_leaf_is_listed_and_drawn(tmp_path: Path) -> None:
    rollouts, episodes, advantages = expanded()
    rollout = write((rollouts, episodes[:0], advantages), tmp_path)
    row = next(line for line in shown(rollout).splitlines() if "│ r " in line)
    assert row.replace("│", " ").split() == ["r", "5", "0"]
    assert shown(rollout, "r").count("not expanded") == 4


@pytest.mark.parametrize("asked", [("g.t0",), ("g.t0.b2", "--tree"), ("1", "--tree")])
def test_a_tree_is_drawn_by_its_id_or_by_an_episode_of_it(tmp_path: Path, asked: tuple[str, ...]) -> None:
    lines = shown(write(branched(), tmp_path), *asked).splitlines()
    assert "A +0.00 w 0" in lines[1]
    assert "R 0.50 H 1.25" in lines[2]
    assert "[2] go to desk 2 & look → (1 more) → [4] go to desk 4 & look   A +0.67 w 1   ✓ success" in lines[4]
    assert sum("✗" in line for line in lines) == 2


def test_scores_and_allocations_of_an_expansion_are_shown(tmp_path: Path) -> None:
    output = shown(write(expanded(), tmp_path), "r")
    assert "R 1.00 H 0.70 S 0.20 n 2" in output
    assert "not expanded" in output
    assert "S state score" in output


def test_a_tree_is_drawn_where_no_advantages_are_there(tmp_path: Path) -> None:
    rollout = write(branched(), tmp_path)
    (tmp_path / "advantage" / "advantages.parquet").unlink()
    assert "A +0.67" not in shown(rollout, "g.t0")


def test_advantages_of_single_tokens_are_shown_by_their_mean(tmp_path: Path) -> None:
    rollouts, episodes, advantages = branched()
    tokens = [[2.0 * value, 0.0] for value in advantages.pop("advantage")]
    credit = pd.DataFrame(advantages).assign(token_advantages=tokens)
    assert "A +0.67" in shown(write((rollouts, episodes, credit), tmp_path), "g.t0")


def test_the_picture_goes_to_a_file(tmp_path: Path) -> None:
    picture = tmp_path / "tree.svg"
    shown(write(branched(), tmp_path / "iteration"), "g.t0", "--svg", picture)
    assert picture.read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("asked", "said"), [(("g.t7",), "no episode and no tree 'g.t7'"), (("--tree",), "--tree and --svg need a tree")]
)
def test_a_tree_that_is_not_there_is_named(tmp_path: Path, asked: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["show", str(write(branched(), tmp_path)), *asked])
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())
