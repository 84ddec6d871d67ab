"""`agentrl serve`: a sampler for many processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentbench_rl.cli.common import DEFAULT_EXPERIMENT, ExperimentOption, SetOption, user_errors


@user_errors()
def serve(
    file: Annotated[Path, typer.Option("--file", help="Where to write address and token when it is ready.")],
    policy: Annotated[
        Path | None, typer.Argument(help="Start the engine with this policy directory; else a first job does.")
    ] = None,
    experiment: ExperimentOption = DEFAULT_EXPERIMENT,
    settings: SetOption = None,
    sampler: Annotated[str | None, typer.Option(help="In place of rollout.sampler: hf or vllm.")] = None,
) -> None:
    """Serve a sampler on this machine until SIGTERM; jobs use it that have AGENTRL_SERVER set to its file."""
    from agentbench_rl.presets import load_experiment
    from agentbench_rl.stages.preflight import check_experiment
    from agentbench_rl.stages.serving import serve as stage

    chosen = [] if sampler is None else [f"rollout.sampler={sampler}"]
    loaded = load_experiment(experiment, [*(settings or ()), *chosen])
    check_experiment(loaded)
    stage(loaded, policy, file)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(serve)
