"""Broken and empty files on the command line: every shipped method explains them, or gives the neutral result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chain_frames import Chain, frames
from team_frames import Play, team_frames
from typer.testing import CliRunner

from agentbench_rl.cli import app
from agentbench_rl.presets import preset_names
from agentbench_rl.types import rollout_schema, score_schema

Frames = tuple[pd.DataFrame, pd.DataFrame]
CHAINS = [
    Chain("g", [0.0, 1.0], ["a", "b"], process=[0.5, 0.5], tokens=[2, 3]),
    Chain("g", [0.0, 0.0, 0.0], ["a", "b", "a"], [True, False, True], process=[0.0, 0.25, 0.0], tokens=[1, 0, 2]),
    Chain("g", [0.0], ["a"], process=[0.0], tokens=[2], greedy=True),
]


def write(directory: Path, change: Callable[[pd.DataFrame, pd.DataFrame], Frames]) -> None:
    """Rollouts, episodes and scores of CHAINS, the former two changed, with the types of the contract."""
    rollouts, episodes = frames(CHAINS)
    rollouts["response_ids"] = [list(range(tokens)) for tokens in rollouts.pop("response_tokens")]
    scored = [[-0.25 * item for item in ids] for ids in rollouts["response_ids"]]
    names = ("old_logprobs", "reference_logprobs", "values", "entropies")
    scores = pd.DataFrame({"turn_id": rollouts["turn_id"], **dict.fromkeys(names, scored)})
    types = {field.name: field.type for field in (*rollout_schema(), *score_schema())}
    rollouts, episodes = change(rollouts, episodes)
    for name, frame in (("rollouts", rollouts), ("episodes", episodes), ("scores", scores[: len(rollouts)])):
        columns = {column: pa.array(frame[column], types.get(column), from_pandas=True) for column in frame}
        pq.write_table(pa.table(columns), directory / f"{name}.parquet")


def scored(directory: Path, method: str) -> tuple[int, str]:
    """Exit code and stderr of `agentrl advantage`."""
    out = directory / "advantages.parquet"
    result = CliRunner().invoke(app, ["advantage", str(directory), "--algorithm", method, "--out", str(out)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert result.exit_code == 0 or not out.exists()
    return result.exit_code, result.stderr


@pytest.mark.parametrize("method", preset_names("algorithms"))
def test_files_without_a_row_give_a_file_without_a_row(tmp_path: Path, method: str) -> None:
    write(tmp_path, lambda rollouts, episodes: (rollouts[:0], episodes[:0]))
    assert scored(tmp_path, method) == (0, "")
    assert pq.read_metadata(tmp_path / "advantages.parquet").num_rows == 0


@pytest.mark.parametrize("method", ["grpo", "gigpo", "mt-grpo", "ppo-turn", "reinforcepp", "remax"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r, e: (r.assign(turn_id="0/0"), e), "turn_id '0/0' stands in more than one row"),
        (lambda r, e: (r, e.assign(leaf_turn_id="lost")[:1]), "leaf_turn_id 'lost'"),
        (lambda r, e: (r.assign(parent_id=["lost", *r["parent_id"][1:]]), e), "parent_id 'lost'"),
        (lambda r, e: (r.assign(parent_id=["0/1", *r["parent_id"][1:]]), e), "cycle"),
        (lambda r, e: (r.assign(reward=float("nan")), e.drop(columns="return")), "null or not finite"),
        (lambda r, e: (r.assign(group_id=["h", *r["group_id"][1:]]), e), "lie in different groups"),
    ],
)
def test_a_broken_file_is_explained(
    tmp_path: Path, method: str, change: Callable[[pd.DataFrame, pd.DataFrame], Frames], message: str
) -> None:
    write(tmp_path, change)
    code, said = scored(tmp_path, method)
    assert code == 1
    assert message in said


def test_an_advantage_beyond_float32_is_refused(tmp_path: Path) -> None:
    write(tmp_path, lambda rollouts, episodes: (rollouts, episodes.assign(**{"return": [3e38, -3e38, 0.0]})))
    code, said = scored(tmp_path, "rloo")
    assert code == 1
    assert "not finite" in said


def test_a_response_that_is_null_is_an_empty_one(tmp_path: Path) -> None:
    write(tmp_path, lambda r, e: (r.assign(response_ids=[None, *r["response_ids"][1:]]), e))
    assert scored(tmp_path, "dr-bot") == (0, "")


TEAM_METHODS = pytest.mark.parametrize("method", ["srpo", "dr-mas"])


def write_team(directory: Path, rollouts: pd.DataFrame, episodes: pd.DataFrame) -> None:
    rollouts.to_parquet(directory / "rollouts.parquet")
    episodes.to_parquet(directory / "episodes.parquet")


@TEAM_METHODS
@pytest.mark.parametrize("lost", ["0.0.0", "0.0.1"])
def test_an_event_with_a_missing_member_is_dropped_and_no_error(tmp_path: Path, method: str, lost: str) -> None:
    rollouts, episodes = team_frames([Play(1.0), Play(0.0)])
    write_team(tmp_path, rollouts[rollouts["turn_id"] != lost], episodes)
    assert scored(tmp_path, method) == (0, "")
    frame = pq.read_table(tmp_path / "advantages.parquet").to_pandas().set_index("event_id")
    assert frame["loss_weight"].to_dict() == {"0.0": 0.0, "0.1": 1.0, "1.0": 1.0, "1.1": 1.0}


@TEAM_METHODS
def test_two_versions_of_a_policy_in_an_event_are_an_error_that_names_it(tmp_path: Path, method: str) -> None:
    rollouts, episodes = team_frames([Play(1.0), Play(0.0)])
    rollouts.loc[1, "policy_version"] = 7
    write_team(tmp_path, rollouts, episodes)
    code, said = scored(tmp_path, method)
    assert code == 1
    assert "event '0.0'" in " ".join(said.split())
