"""What a fork costs against a replay."""

from __future__ import annotations

from agentbench_rl.envs import open_source
from agentbench_rl.envs.speed import REPLAYED_STEPS, measure_branching
from agentbench_rl.presets import load_environment


def test_going_on_from_a_value_snapshot_is_many_times_cheaper_than_from_the_start() -> None:
    """About 25 times on a quiet core; half of the 20 that are claimed leave room for a busy one."""
    suite = open_source(load_environment("alfworld"), {"train": 8})
    branching = measure_branching(suite, suite.tasks("train"), repeats=30)
    assert branching is not None
    assert branching.steps == REPLAYED_STEPS
    assert branching.replay_seconds > 10 * branching.fork_seconds


def test_there_is_nothing_to_fork_where_the_first_action_ends_an_episode() -> None:
    suite = open_source(load_environment("math"), {"train": 1})
    assert measure_branching(suite, suite.tasks("train"), repeats=1) is None
