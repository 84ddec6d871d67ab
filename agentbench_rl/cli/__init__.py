"""The `agentrl` command: thin Typer commands, each one call of a stage."""

from __future__ import annotations

import typer

from agentbench_rl.cli import environments, inspection, serving, stages, tracking, workflow

app = typer.Typer(
    name="agentrl",
    help="Is this agentic-RL method really better than that one, at equal cost, on the same tasks?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
workflow.register(app)
stages.register(app)
inspection.register(app)
serving.register(app)
app.add_typer(environments.app, name="env")
app.add_typer(tracking.app, name="track")


def main() -> None:
    """Entry point of the `agentrl` script."""
    app()


__all__ = ["app", "main"]
