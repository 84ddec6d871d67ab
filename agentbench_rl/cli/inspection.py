"""Commands that only look: algorithms, configs, episodes, and what this machine offers."""

from __future__ import annotations

from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentbench_rl.cli.common import (
    DEFAULT_EXPERIMENT,
    RESULTS,
    ExperimentOption,
    ResultsOption,
    SetOption,
    print_json,
    user_errors,
)

if TYPE_CHECKING:
    from agentbench_rl.config.algorithm import AlgorithmConfig
    from agentbench_rl.config.loss import LossConfig
    from agentbench_rl.config.topology import TopologyConfig
    from agentbench_rl.evaluation.trees import Tree
    from agentbench_rl.stages.reading import Ratios

algorithms = typer.Typer(help="Methods: a table of all, or one in full.", invoke_without_command=True)
config = typer.Typer(help="Resolved configurations.", no_args_is_help=True)
_PACKAGES = ("torch", "transformers", "tokenizers", "pyarrow", "pandas", "snakemake", "mlflow")
_OPTIONAL = {"vllm": "vllm", "alfworld": "textworld"}


@algorithms.callback()
@user_errors()
def list_algorithms(context: typer.Context) -> None:
    """Print every method: its parts, what it needs from the environment, its source."""
    from agentbench_rl.algorithms.requirements import requirements
    from agentbench_rl.cli.tables import print_rows
    from agentbench_rl.presets import load_algorithm, preset_names

    if context.invoked_subcommand is not None:
        return
    rows = []
    for name in preset_names("algorithms"):
        method = load_algorithm(name)
        credit = " + ".join([method.advantage.estimator, *(modifier.kind for modifier in method.modifiers)])
        loss = f"{method.loss.kind}, {_unit(method.loss)}, KL {method.loss.kl_coefficient:g}"
        needs = ", ".join(requirements(method))
        rows.append([name, _sampling(method), credit, loss, needs, method.source])
    print_rows("Algorithms", ["name", "sampling", "advantage", "loss", "needs", "source"], rows)


def _unit(loss: LossConfig) -> str:
    """How the loss adds up: its aggregation over responses, or its reduction over events."""
    return loss.reduction if loss.kind == "set_clip" else loss.aggregation


def _sampling(method: AlgorithmConfig) -> str:
    """Topology and data: how many episodes per task, and what is resampled, selected, replayed or valued."""
    parts = [_episodes(method.topology)]
    parts += ["resampled"] if method.resample else []
    parts += ["greedy baseline"] if method.greedy_baseline else []
    parts += ["selected"] if method.selection != type(method.selection)() else []
    parts += ["replay"] if method.replay else []
    parts += ["critic"] if method.critic else []
    return ", ".join(parts)


def _episodes(topology: TopologyConfig) -> str:
    """Episodes of a task, on average; of trees also where they branch."""
    from agentbench_rl.config.topology import Branch

    match topology:
        case Branch(select="every"):
            return f"branch × {topology.trees}, {topology.siblings} more from every turn"
        case Branch():
            mean = topology.trees * (1 + topology.points * (topology.siblings - 1))
            return f"branch × {mean:g}: {topology.points:g} points of {topology.siblings}, {topology.select}"
    return f"{topology.kind} × {topology.group_size}"


@algorithms.command("show")
@user_errors()
def show_algorithm(name: Annotated[str, typer.Argument(help="A preset's name.")]) -> None:
    """Print a method's resolved composition with the reason for every setting."""
    from agentbench_rl.cli.composition import composition_lines

    for line in composition_lines(name):
        print(line)


@config.command("show")
@user_errors()
def show_config(experiment: ExperimentOption = DEFAULT_EXPERIMENT, settings: SetOption = None) -> None:
    """Print the resolved configuration of an experiment and its hash."""
    from agentbench_rl.config import config_hash
    from agentbench_rl.presets import load_experiment

    resolved = load_experiment(experiment, settings or ()).model_dump(mode="json")
    print_json({"hash": config_hash(resolved), "config": resolved})


@user_errors()
def show(
    directory: Annotated[Path, typer.Argument(help="A directory with rollouts.parquet and episodes.parquet.")],
    name: Annotated[
        str | None, typer.Argument(help="An episode's id or number, or a tree's id; default: a list.")
    ] = None,
    tree: Annotated[bool, typer.Option("--tree", help="Draw the tree that the episode is a leaf of.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Write the tree as a picture to this file.")] = None,
    policy: Annotated[Path | None, typer.Option(help="Show the ratio of every team event under this policy.")] = None,
) -> None:
    """Read an episode or draw a tree in the terminal, or list the episodes and trees of a rollout or evaluation."""
    from agentbench_rl.cli.tables import print_rows
    from agentbench_rl.stages import reading
    from agentbench_rl.types import AgentRLError

    if policy is not None and (name is None or tree or svg is not None):
        raise AgentRLError(f"--policy needs an episode of a team: agentrl show {directory} EPISODE --policy DIR")
    if name is None:
        if tree or svg is not None:
            raise AgentRLError(f"--tree and --svg need a tree or an episode: agentrl show {directory} NAME")
        columns = ["number", "episode", "ending", "return", "turns"]
        print_rows(str(directory), columns, reading.list_episodes(directory))
        if trees := reading.list_trees(directory):
            print_rows("Trees", ["tree", "turns", "leaves", "mean return"], trees)
    elif tree or svg is not None or reading.is_tree(directory, name):
        _draw(reading.read_tree(directory, name), svg)
    else:
        for line in reading.episode_lines(directory, name, _ratios(policy)):
            print(line)


def _ratios(policy: Path | None) -> Ratios | None:
    if policy is None:
        return None
    from agentbench_rl.stages.set_ratios import set_ratios

    return partial(set_ratios, policy)


def _draw(tree: Tree, svg: Path | None) -> None:
    from agentbench_rl.cli.trees import print_tree
    from agentbench_rl.evaluation.tree_svg import tree_svg

    if svg is None:
        print_tree(tree)
        return
    svg.write_text(tree_svg(tree), encoding="utf-8", newline="\n")
    print(f"tree: {svg}")


@user_errors()
def doctor(results: ResultsOption = RESULTS) -> None:
    """Say what this machine offers: packages, cores, memory, devices, disk."""
    import os
    import shutil

    from agentbench_rl.presets import preset_names

    for name in _PACKAGES:
        print(f"{name:14} {_version(name)}")
    for extra, name in _OPTIONAL.items():
        found = _version(name)
        hint = "" if found != "missing" else f"  (optional: pip install 'agentbench-rl[{extra}]')"
        print(f"{name:14} {found}{hint}")
    free = shutil.disk_usage(results if results.exists() else Path()).free
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    print(f"{'cores':14} {os.cpu_count()}")
    print(f"{'memory':14} {memory / 2**30:.1f} GiB")
    print(f"{'cuda devices':14} {_cuda_devices()}")
    print(f"{'free disk':14} {free / 2**30:.1f} GiB")
    print(f"{'experiments':14} {', '.join(preset_names('experiments'))}")
    if "missing" in {_version(name) for name in _PACKAGES}:
        raise typer.Exit(1)


def _cuda_devices() -> str:
    """Names and memory of the GPUs, or why there are none."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"unknown: torch cannot be imported ({error})"
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return ", ".join(f"{device.name} ({device.total_memory / 2**30:.1f} GiB)" for device in devices) or "none"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(show)
    app.command()(doctor)
    app.add_typer(algorithms, name="algorithms")
    app.add_typer(config, name="config")
