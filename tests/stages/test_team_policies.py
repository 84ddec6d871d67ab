"""Roles with policies of their own: each is scored, trained and saved by itself, and the others are context."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_experiment import tiny

from agentbench_rl.policies.loading import load_policy
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.score import score
from agentbench_rl.training.scoring import policy_measure, score_tokens
from agentbench_rl.types import AgentRLError

Copy = Callable[[], Layout]


def two_policies(layout: Layout, policies: tuple[str, ...]) -> tuple[pd.DataFrame, Path]:
    """Give the turns of an iteration to two policies in turns, and make the directory of `policies`.

    Returns the rollouts, and the directory.
    """
    path = layout.stage("rloo", 0, 1, "rollout") / "rollouts.parquet"
    table = pq.read_table(path)
    names = pa.array([("solver", "verifier")[step % 2] for step in table["step"].to_pylist()])
    table = table.set_column(table.schema.get_field_index("policy"), "policy", names)
    pq.write_table(table, path)
    directory = layout.start("rloo", 0, 1) / "policy"
    one = directory.rename(directory.with_name("one"))
    for name, source in zip(policies, (one, layout.sft / "policy"), strict=False):
        shutil.copytree(source, directory / name)
    return table.to_pandas(), directory


def test_every_row_is_scored_under_the_policy_that_it_names(trained_copy: Copy) -> None:
    layout = trained_copy()
    rollouts, directory = two_policies(layout, ("solver", "verifier"))
    score(tiny(), layout, "rloo", 0, 1)
    scores = pd.read_parquet(layout.stage("rloo", 0, 1, "score") / "scores.parquet").set_index("turn_id")
    assert len(scores) == len(rollouts)
    for name, rows in rollouts.groupby("policy"):
        model = load_policy(directory / str(name))
        expected = score_tokens(model, policy_measure(model), rollouts, 1024)["logprobs"]
        for turn in rows["turn_id"]:
            np.testing.assert_allclose(scores.loc[turn, "old_logprobs"], expected[turn], atol=1e-5)
    by_solver = rollouts[rollouts["policy"] == "solver"]
    for turn, sampled in zip(by_solver["turn_id"], by_solver["response_logprobs"], strict=True):
        np.testing.assert_allclose(scores.loc[turn, "old_logprobs"], sampled, atol=1e-4)
    metrics = read_manifest(layout.stage("rloo", 0, 1, "score"))["metrics"]
    assert metrics["logprob_difference_max"] > 1e-2  # the other policy did not sample the verifier's rows


def test_rows_of_a_policy_that_is_not_there_are_an_error(trained_copy: Copy) -> None:
    layout = trained_copy()
    two_policies(layout, ("solver",))
    with pytest.raises(AgentRLError, match="holds the policies solver, and none for 'verifier'"):
        score(tiny(), layout, "rloo", 0, 1)
