"""What a run starts from: panels, demonstrations and the start policy; made where missing or out of date."""

from __future__ import annotations

from collections.abc import Callable

from agentbench_rl.config import Experiment
from agentbench_rl.stages.demos import demos
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.panel import panel
from agentbench_rl.stages.sft import sft
from agentbench_rl.types import Progress


def prepare_start(experiment: Experiment, layout: Layout, progress: Callable[[str], Progress]) -> None:
    """Run the stages before the first iteration; finished ones with the same identity are kept."""
    panel(experiment, layout.panels)
    demos(experiment, layout, progress("demos"))
    sft(experiment, layout, progress("sft"))
