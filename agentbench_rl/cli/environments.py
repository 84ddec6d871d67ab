"""Commands around environments: what there is, whether it works, playing by hand, fetching data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentbench_rl.cli.common import SetOption, user_errors

app = typer.Typer(help="Environments: list, check, play, fetch.", no_args_is_help=True)
NameArgument = Annotated[str, typer.Argument(help="An environment of configs/environments.")]


@app.command("list")
@user_errors()
def list_() -> None:
    """List the environments."""
    from agentbench_rl.cli.tables import print_rows
    from agentbench_rl.presets import load_environment, preset_names

    rows = []
    for name in preset_names("environments"):
        environment = load_environment(name)
        source = str(environment.data) if environment.data else "generated"
        rows.append([name, environment.name, environment.engine, source, str(environment.max_turns)])
    print_rows("Environments", ["preset", "family", "engine", "tasks", "turns"], rows)


@app.command()
@user_errors()
def check(
    name: NameArgument = "alfworld",
    games: Annotated[int, typer.Option(min=1, help="Games to play per split.")] = 12,
    settings: SetOption = None,
) -> None:
    """Play walkthroughs of every split, and say what is missing or wrong."""
    from agentbench_rl.envs.checking import check_environment
    from agentbench_rl.presets import load_environment
    from agentbench_rl.types import AgentRLError

    environment = load_environment(name, settings or ())
    problems = 0
    for split, played, failures in check_environment(environment, games):
        print(f"{name}/{split}: {played - len(failures)} of {played} games won by their walkthrough")
        for failure in failures:
            print(f"  {failure}")
        problems += len(failures)
    if problems:
        raise AgentRLError(f"{problems} games of {name} are not won by their walkthrough")


@app.command()
@user_errors()
def play(
    name: NameArgument = "alfworld",
    split: Annotated[str, typer.Option(help="Split to take the task from.")] = "valid_unseen",
    index: Annotated[int, typer.Option(min=0, help="Which task of the split.")] = 0,
    settings: SetOption = None,
) -> None:
    """Play a task in the terminal; `actions` lists what is admissible, `expert` asks the expert, `quit` ends."""
    from agentbench_rl.envs import open_source
    from agentbench_rl.presets import load_environment
    from agentbench_rl.types import AgentRLError

    environment = load_environment(name, settings or ())
    suite = open_source(environment, {split: None if environment.data else index + 1})
    tasks = suite.tasks(split)
    if index >= len(tasks):
        raise AgentRLError(f"env play: --index {index}: {split} has {len(tasks)} tasks, numbered from 0")
    episode = suite.make()
    print(episode.reset(tasks[index]).text)
    for _ in range(environment.max_turns):
        command = typer.prompt(">", prompt_suffix=" ").strip()
        if command == "quit":
            break
        if command in {"actions", "expert"}:
            print("\n".join(episode.admissible() or []) if command == "actions" else episode.expert_action())
            continue
        result = episode.step(command)
        print(result.observation)
        if result.done:
            print("You won." if result.success else "You lost.")
            break
    episode.close()


@app.command()
@user_errors()
def fetch(
    name: NameArgument,
    destination: Annotated[Path, typer.Argument(help="Directory for the data.")],
) -> None:
    """Download the official data of an environment."""
    from agentbench_rl.envs.alfworld.fetch import fetch as download
    from agentbench_rl.types import AgentRLError

    if name != "alfworld":
        raise AgentRLError(f"there is nothing to fetch for {name!r}; known: alfworld")
    download(destination)
    print(f"Use it with:  agentrl run -e alfworld --set environment.data={destination}")
