"""A stored path is played again to its last moment, and whatever differs on the way is a fault."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes import FakeSampler, task
from tree_world import Places, TreeCodec, Walk, settings

from agentbench_rl.config import ModelConfig
from agentbench_rl.rollout.chains import collect
from agentbench_rl.rollout.episode import Boundary, EpisodeSpec, PlaySettings, Row
from agentbench_rl.rollout.replaying import replay_boundary
from agentbench_rl.stages.files import write_rows
from agentbench_rl.types import InfrastructureError, rollout_schema

#: The second response is cut off: it has no end token, and the next prompt ends its turn.
ANSWERS = ["hall", "att…", "attic", "shed"]
APPEND = settings()
WINDOW = replace(APPEND, model=ModelConfig(context="window"))


def sampled(limits: PlaySettings, turns: int = len(ANSWERS)) -> tuple[list[Row], Boundary]:
    """Rows of an episode that was left after its turns, and the moment it was left at."""
    spec = EpisodeSpec(task("s1"), "g", "t", turns=turns, forkable=True)
    sampler = FakeSampler(lambda _, step: ANSWERS[step])
    rollouts = collect(
        [spec],
        sampler,
        lambda: Walk(Places()),  # type: ignore[arg-type,return-value]
        TreeCodec(),  # type: ignore[arg-type]
        limits,
        slots=1,
        retries=0,
        max_fault_share=1.0,
        progress=lambda done, total: None,
    )
    moment = rollouts.forkable[spec.episode_id].boundary()
    rollouts.release()
    return rollouts.turns, moment


def replayed(rows: list[Row], limits: PlaySettings = APPEND, world: Places | None = None) -> Boundary:
    return replay_boundary(task("s1"), rows, Walk(world or Places()), TreeCodec(), limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("limits", [APPEND, WINDOW])
@pytest.mark.parametrize("turns", range(len(ANSWERS) + 1))
def test_a_replayed_moment_is_the_one_that_was_left(limits: PlaySettings, turns: int, tmp_path: Path) -> None:
    rows, moment = sampled(limits, turns)
    path = tmp_path / "rollouts.parquet"
    write_rows(path, rows, rollout_schema())
    stored = pq.read_table(path).to_pylist()
    found = replayed(stored, limits)
    assert found.rows == tuple(stored)
    for name in ("observation", "state_key", "digest", "progress", "invalid_run", "snapshot", "step", "parent_id"):
        assert getattr(found, name) == getattr(moment, name)
    prompts = [boundary.context.copy().prompt("next") for boundary in (found, moment)]
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(
    ("turn", "name", "value"),
    [
        (1, "prompt_ids", [1, 2, 3]),
        (2, "state_key", "elsewhere"),
        (0, "observation", "you are elsewhere"),
        (3, "next_state_key", "elsewhere"),
        (2, "reward", 0.5),
        (1, "valid", True),
    ],
)
def test_a_path_that_differs_is_a_fault_that_names_the_turn(turn: int, name: str, value: Any) -> None:
    rows, _ = sampled(APPEND)
    rows = copy.deepcopy(rows)
    rows[turn][name] = value
    with pytest.raises(InfrastructureError, match=rf"turn t\.b0\.{turn}: {name} was "):
        replayed(rows)


def test_a_path_that_ends_earlier_than_it_did_is_a_fault() -> None:
    rows, _ = sampled(APPEND)
    with pytest.raises(InfrastructureError, match=r"done was False, and is True"):
        replayed(rows, world=Places({("hall", "att"): True}))
    with pytest.raises(InfrastructureError, match=r"the path ended before it"):
        replayed(rows, world=Places(lost={("", "s1")}))
