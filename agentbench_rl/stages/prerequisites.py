"""What a run starts from: panels, demonstrations, start policy, dense model; made where missing or out of date."""

from __future__ import annotations

from collections.abc import Callable

from agentbench_rl.config import Experiment
from agentbench_rl.stages.demos import demos
from agentbench_rl.stages.dense_model import dense_model
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.panel import panel
from agentbench_rl.stages.sft import sft
from agentbench_rl.types import Progress


def prepare_start(
    experiment: Experiment, layout: Layout, progress: Callable[[str], Progress], algorithm: str | None = None
) -> None:
    """Run the stages before the first iteration; finished ones with the same identity are kept.

    algorithm: the method that is to be run; null: all of them.
    """
    panel(experiment, layout.panels)
    demos(experiment, layout, progress("demos"))
    sft(experiment, layout, progress("sft"))
    methods = [experiment.algorithms[algorithm]] if algorithm is not None else experiment.algorithms.values()
    if any(method.needs_dense_model for method in methods):
        dense_model(experiment, layout, progress("dense model"))
