"""Results that were made under another configuration are never reported as those of this one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiny_experiment import RAW, tiny

from agentbench_rl.presets import load_experiment
from agentbench_rl.stages.compare import compare
from agentbench_rl.stages.evaluate import evaluate_test
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import read_manifest
from agentbench_rl.stages.panel import panel
from agentbench_rl.stages.rollout import rollout
from agentbench_rl.stages.update import update
from agentbench_rl.types import AgentRLError


def test_a_policy_of_another_learning_rate_is_neither_evaluated_nor_compared(
    trained_copy: Callable[[], Layout],
) -> None:
    layout = trained_copy()
    other = load_experiment(RAW, ["training.learning_rate=0.05"])
    update(other, layout, "rloo", 0, 1)
    for read in (lambda: evaluate_test(tiny(), layout, "rloo", 0), lambda: compare(tiny(), layout)):
        with pytest.raises(AgentRLError, match="another configuration of update"):
            read()


def test_a_comparison_needs_every_stage_of_the_training(trained_copy: Callable[[], Layout]) -> None:
    layout = trained_copy()
    (layout.stage("grpo", 0, 0, "score") / "manifest.json").unlink()
    with pytest.raises(AgentRLError, match="no finished score"):
        compare(tiny(), layout)


def test_a_larger_test_panel_leaves_the_rollouts_of_training_as_they_are(trained_copy: Callable[[], Layout]) -> None:
    layout = trained_copy()
    sampled = layout.stage("grpo", 0, 0, "rollout")
    before = read_manifest(sampled)
    larger = load_experiment(RAW, ["panels.test.size=4"])
    panel(larger, layout.panels)
    assert rollout(larger, layout, "grpo", 0, 0) == before
