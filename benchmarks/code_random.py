"""How often chance repairs the test tasks of a finished code-repair run, and how far its start policy is above that.

Run: PYTHONPATH=. python benchmarks/code_random.py [results/code] [--episodes 4]

Chance is twofold. `random calls`: every turn a tool drawn evenly, with a path, word or test of the tree; an edit
replaces a line that stands once in its file by a line of any file, so that it is always carried out. `untrained
policy`: the same policy before its first step (`sft.steps=0`), on the same tasks with the same random numbers.
Differences are of success, paired over tasks.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from pathlib import Path

import pandas as pd

from agentbench_rl.config import Experiment
from agentbench_rl.envs import open_suite
from agentbench_rl.envs.base import Suite
from agentbench_rl.envs.code.actions import TOOLS, Edit, edit_action, parse
from agentbench_rl.envs.code.games import Games, read_games
from agentbench_rl.evaluation.statistics import across_seeds, paired_across_seeds, task_means
from agentbench_rl.presets import load_experiment
from agentbench_rl.stages.evaluate import evaluate_start
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.panel import load_panel
from agentbench_rl.stages.sft import sft
from agentbench_rl.types import Task

_WORD = re.compile(r"\w+")
Success = dict[str, float]


def random_call(files: dict[str, str], rng: random.Random) -> str:
    """A tool call that can be carried out in a tree of these files."""
    tool, path = rng.choice(TOOLS), rng.choice(sorted(files))
    lines = [line for text in files.values() for line in text.split("\n") if line.strip()]
    match tool:
        case "read":
            return f"read {path} {rng.randint(1, files[path].count(chr(10)) + 1)}"
        case "search":
            return f"search {rng.choice(_WORD.findall(' '.join(lines)))}"
        case "edit":
            once = [line for line in files[path].split("\n") if line.strip() and files[path].count(line) == 1]
            return edit_action(path, rng.choice(once), rng.choice(lines)) if once else "list"
        case "test":
            return f"test {rng.choice([name for name in sorted(files) if 'test_' in name])}"
    return tool


def play_at_random(suite: Suite, games: Games, task: Task, max_turns: int, rng: random.Random) -> bool:
    """Whether an episode of random calls ends with a repaired tree."""
    game = next(game for game in games.games if game.task == task)
    tree = games.start(game)
    files = {path: tree.read(path) or "" for path in tree.paths}
    episode = suite.make()
    episode.reset(task)
    for _ in range(max_turns):
        call = random_call(files, rng)
        result = episode.step(call)
        match parse(call):
            case Edit(path, old, new):
                files[path] = files[path].replace(old, new)
        if result.done:
            break
    episode.close()
    return result.success


def untrained(root: Path) -> Success:
    """Success by task of the policy before its first step, on the panel of a finished run."""
    experiment = load_experiment(root / "experiment.json", ["sft.steps=0"])
    with tempfile.TemporaryDirectory() as place:
        layout = Layout(Path(place))
        layout.panels.symlink_to((root / "panels").resolve())
        layout.demos.symlink_to((root / "demos").resolve())
        sft(experiment, layout)
        evaluate_start(experiment, layout, "test")
        return success_of(layout.start_evaluation("test"))


def success_of(evaluation: Path) -> Success:
    """Share of successful episodes by task."""
    episodes = pd.read_parquet(evaluation / "episodes.parquet")
    return task_means(episodes["task_id"].tolist(), episodes["success"].astype(float))


def random_calls(experiment: Experiment, layout: Layout, episodes: int) -> Success:
    """Success by task of random calls."""
    tasks = load_panel(layout.panels, "test")
    splits = sorted({task.split for task in tasks})
    suite = open_suite(experiment.environment, layout.panels / "games", splits)
    games = read_games(layout.panels / "games", splits)
    most = experiment.environment.max_turns
    return {
        task.task_id: sum(
            play_at_random(suite, games, task, most, random.Random(f"{task.task_id}/{number}"))
            for number in range(episodes)
        )
        / episodes
        for task in tasks
    }


def main() -> None:
    """Print success of the start policy and of chance, and the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, nargs="?", default=Path("results/code"))
    parser.add_argument("--episodes", type=int, default=4)
    arguments = parser.parse_args()
    layout = Layout(arguments.root)
    start = success_of(layout.start_evaluation("test"))
    chance = {"untrained policy": untrained(arguments.root)}
    experiment = load_experiment(arguments.root / "experiment.json")
    chance["random calls"] = random_calls(experiment, layout, arguments.episodes)
    for name, success in {"start policy": start, **chance}.items():
        own = across_seeds({0: success}, seed=0)
        print(f"{name}: {100 * own.mean:.1f} % [{100 * own.low:.1f}, {100 * own.high:.1f}] of {len(success)} tasks")
    for name, success in chance.items():
        gain = paired_across_seeds({0: start}, {0: success}, seed=0)
        low, high = 100 * gain.low, 100 * gain.high
        print(f"start policy against {name}: {100 * gain.mean:+.1f} points [{low:+.1f}, {high:+.1f}]")


if __name__ == "__main__":
    main()
