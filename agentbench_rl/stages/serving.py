"""A server that samples for the stages of an experiment; it writes no results."""

from __future__ import annotations

from pathlib import Path

from agentbench_rl.config import Experiment
from agentbench_rl.policies.server import serve as host
from agentbench_rl.stages.sampling import local_sampler, sampling_settings
from agentbench_rl.stages.threads import use_threads


def serve(experiment: Experiment, policy: Path | None, file: Path) -> None:
    """Serve with the experiment's sampler, a policy loaded if one is given, until it is told to end.

    file: tells clients where the server is.
    """
    use_threads(experiment.threads)
    host(local_sampler(experiment), policy, sampling_settings(experiment), file)
