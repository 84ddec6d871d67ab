"""A server that samples for the stages of an experiment; it writes no results."""

from __future__ import annotations

from pathlib import Path

from agentbench_rl.config import Experiment
from agentbench_rl.policies.server import serve as host
from agentbench_rl.stages.sampling import local_sampler, sampling_settings
from agentbench_rl.stages.threads import use_threads


def serve(experiment: Experiment, policy: Path, file: Path) -> None:
    """Load a policy and serve it with the experiment's sampler until it is told to end; `file` tells where it is."""
    use_threads(experiment.threads)
    host(local_sampler(experiment), policy, sampling_settings(experiment), file)
