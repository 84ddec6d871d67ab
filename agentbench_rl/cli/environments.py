"""Commands around environments: what there is, whether it works, how fast it is, playing by hand, fetching data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentbench_rl.cli.common import SetOption, user_errors

if TYPE_CHECKING:
    from agentbench_rl.envs.speed import Branching

app = typer.Typer(help="Environments: list, check, play, bench, fetch.", no_args_is_help=True)
NameArgument = Annotated[str, typer.Argument(help="An environment of configs/environments, or a YAML file of yours.")]


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
        rows.append([name, environment.name, source, ", ".join(environment.splits), str(environment.max_turns)])
    print_rows("Environments", ["preset", "family", "tasks", "splits", "turns"], rows)


@app.command()
@user_errors()
def check(
    name: NameArgument = "alfworld",
    games: Annotated[int, typer.Option(min=1, help="Tasks per split that the expert plays.")] = 12,
    settings: SetOption = None,
) -> None:
    """Check what every environment must keep, and let the expert play tasks of every split; says what is wrong."""
    from agentbench_rl.envs.contract import check_environment
    from agentbench_rl.presets import load_environment
    from agentbench_rl.types import AgentRLError

    problems = 0
    for checked, problem in check_environment(load_environment(name, settings or ()), games):
        print(f"{checked}: {problem or 'ok'}")
        problems += problem is not None
    if problems:
        raise AgentRLError(f"{name}: {problems} checks failed; what they ask for is said in agentbench_rl/envs/base.py")


@app.command()
@user_errors()
def play(
    name: NameArgument = "alfworld",
    split: Annotated[str | None, typer.Option(help="Split to take the task from; default: the last.")] = None,
    index: Annotated[int, typer.Option(min=0, help="Which task of the split.")] = 0,
    settings: SetOption = None,
) -> None:
    """Play a task in the terminal; `actions` lists what is admissible, `expert` asks the expert, `quit` ends."""
    from agentbench_rl.envs import open_source
    from agentbench_rl.presets import load_environment
    from agentbench_rl.types import AgentRLError

    environment = load_environment(name, settings or ())
    split = split or environment.splits[-1]
    if split not in environment.splits:
        raise AgentRLError(f"env play: --split {split}: there are {', '.join(environment.splits)}")
    suite = open_source(environment, {split: index + 1})
    tasks = suite.tasks(split)
    if index >= len(tasks):
        raise AgentRLError(f"env play: --index {index}: {split} has {len(tasks)} tasks, numbered from 0")
    episode = suite.make()
    print(episode.reset(tasks[index]).text)
    turns = 0
    while turns < environment.max_turns:
        command = typer.prompt(">", prompt_suffix=" ").strip()
        if command == "quit":
            break
        if command == "actions":
            admissible = episode.admissible()
            print("Any text may be an action." if admissible is None else "\n".join(admissible))
            continue
        if command == "expert":
            print(episode.expert_action() or "The expert knows nothing to do.")
            continue
        turns += 1
        result = episode.step(command.replace("\\n", "\n"))
        print(result.observation)
        if result.done:
            print(f"You won: reward {result.reward:g}." if result.success else f"You lost: reward {result.reward:g}.")
            break
    episode.close()


@app.command()
@user_errors()
def bench(
    name: NameArgument = "alfworld",
    games: Annotated[int, typer.Option(min=1, help="Tasks that the expert plays.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="How often each is played.")] = 5,
    settings: SetOption = None,
) -> None:
    """Time the calls of an environment on one core, along the expert's actions."""
    from agentbench_rl.cli.tables import print_rows
    from agentbench_rl.envs.speed import measure
    from agentbench_rl.presets import load_environment

    speed = measure(load_environment(name, settings or ()), games, repeats)
    rows = [[f"{call}, median", f"{seconds * 1e6:,.1f} µs"] for call, seconds in speed.seconds.items()]
    rows += [
        ["step, mean of first visits", f"{speed.first_step_seconds * 1e6:,.1f} µs"],
        ["episodes", f"{speed.steps_per_second:,.0f} steps/s"],
        *_branching_rows(speed.branching),
        ["largest snapshot, pickled", f"{speed.snapshot_bytes:,} bytes"],
        ["memory", f"{speed.memory_bytes / 2**20:,.1f} MiB"],
        [f"opening {speed.tasks:,} tasks", f"{speed.open_seconds:.2f} s"],
    ]
    print_rows(f"{name}: {games} tasks, played {repeats} times", ["what", "value"], rows)


def _branching_rows(branching: Branching | None) -> list[list[str]]:
    if branching is None:
        return [["fork and play a step", "every first action ends an episode"]]
    ratio = branching.replay_seconds / branching.fork_seconds
    return [
        [f"fork after {branching.steps} steps, play one", f"{branching.fork_seconds * 1e6:,.1f} µs"],
        [
            f"play {branching.steps} steps again, and one",
            f"{branching.replay_seconds * 1e6:,.1f} µs, {ratio:.1f} times",
        ],
    ]


@app.command()
@user_errors()
def fetch(
    name: NameArgument,
    destination: Annotated[Path, typer.Argument(help="Directory for the data.")],
    dataset: Annotated[
        str | None, typer.Option(help="Of search: hotpotqa, musique or nq; of webshop: small or all.")
    ] = None,
) -> None:
    """Download the published data of an environment."""
    from importlib import import_module
    from inspect import signature

    from agentbench_rl.envs import fetches
    from agentbench_rl.presets import load_environment, preset_names
    from agentbench_rl.types import AgentRLError

    family = load_environment(name).name
    if not fetches(family):
        raise AgentRLError(f"there is nothing to fetch for {name!r}: its tasks are generated, or files of yours")
    place = import_module(f"agentbench_rl.envs.{family}.fetch").fetch
    if dataset is not None and "dataset" not in signature(place).parameters:
        raise AgentRLError(f"--dataset {dataset}: the data of {name!r} come as one set; leave the option away")
    place(destination, *([] if dataset is None else [dataset]))
    known = preset_names("experiments")
    experiment = next((one for one in (f"{family}-data", name, family) if one in known), "EXPERIMENT")
    print(f"Use it with:  agentrl run -e {experiment} --set environment.data={destination}")
