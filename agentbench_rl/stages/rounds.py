"""The rollout stage of one round of a tree search: the round's own rows, and frontier and states after it.

Within a process the search stays in memory from one round to the next; after a restart it is resumed from the files,
which gives the same bits. The policy is loaded anew for every round, so that nothing of the one before is cached.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType

import pyarrow.parquet as pq

from agentbench_rl.algorithms.state_table import StateTable
from agentbench_rl.config import Json, config_hash
from agentbench_rl.envs.base import Environment
from agentbench_rl.rollout.episode import Boundary, EpisodeSpec, Row, roots_of_trees
from agentbench_rl.rollout.expand import Search
from agentbench_rl.rollout.replaying import replay_boundary
from agentbench_rl.stages.files import readable, write_atomic
from agentbench_rl.stages.iteration import SearchIteration
from agentbench_rl.stages.manifest import StageReport, read_manifest, run_stage
from agentbench_rl.stages.panel import load_panel
from agentbench_rl.stages.rollout import tasks_of_iteration
from agentbench_rl.stages.sampling import Loaded, PolicyRef, environments, loaded, write_rollouts
from agentbench_rl.types import ROUND, STEP_REWARD, AgentRLError, Progress, Task

FRONTIER, STATES = "frontier.json", "states.parquet"


class Rounds(AbstractContextManager["Rounds"]):
    """The rounds of one iteration; what is open is closed at the end."""

    def __init__(self, iteration: SearchIteration) -> None:
        self._iteration = iteration
        experiment = iteration.experiment
        # One fault is a large share of a small round: the iteration's share is checked at its end.
        limits = experiment.rollout.model_copy(update={"max_fault_share": 1.0})
        self._experiment = experiment.model_copy(update={"rollout": limits})
        panel = load_panel(iteration.layout.panels, "train")
        count = experiment.rollout.tasks_per_iteration
        self._tasks = tasks_of_iteration(panel, count, iteration.seed, iteration.number)
        self._opened = ExitStack()
        self._environments: Callable[[], Environment] | None = None
        self._search: Search | None = None
        self._table = StateTable()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._search is not None:
            self._search.close()
            self._search = None
        self._opened.close()

    def rollout(self, number: int, before: Path, version: int, progress: Progress) -> Json:
        """Play one round with the policy of the directory `before`; its rows carry the version."""
        iteration, policy = self._iteration, PolicyRef(before / "policy", "policy", version)

        def body(scratch: Path) -> StageReport:
            with loaded(self._experiment, policy, self._open_environments(), temperature=1.0) as ready:
                search = self._at(number, ready)
                rollouts = search.round(lambda specs: ready.play(specs, progress))
            report = write_rollouts(rollouts, scratch)
            own = own_rows(rollouts.turns, number)
            report.counts |= {"responses": len(own), "paid": sum(row[STEP_REWARD] is not None for row in own)}
            self._write(search, scratch)
            return report

        return run_stage(
            "rollout",
            iteration.round(number, "rollout"),
            config=iteration.config("rollout"),
            inputs={"policy": policy.path} | self._inputs(number),
            seeds=iteration.seeds,
            body=body,
            code="rounds",
        )

    def finished(self, number: int) -> bool:
        """Whether nothing is left to expand after a round that was played."""
        return bool(self._frontier(number)["finished"])

    def _inputs(self, number: int) -> dict[str, Path]:
        if number == 0:
            return self._iteration.inputs()
        before = self._iteration.round(number - 1, "rollout")
        files = {"frontier": before / FRONTIER, "states": before / STATES, "rollouts": before / "rollouts.parquet"}
        return self._iteration.inputs() | files

    def _at(self, number: int, ready: Loaded) -> Search:
        """The search before a round: the one in memory, or a new one, or one that goes on from the files."""
        if self._search is None or self._search.rounds != number:
            states = self._inputs(number).get("states")
            self._table = StateTable() if states is None else self._read_states(states)
            self._search = self._resumed(number, ready) if number else self._begun()
        return self._search

    def _begun(self) -> Search:
        return Search.begin(self._roots(), self._iteration.search, self._table, self._iteration.number)

    def _resumed(self, number: int, ready: Loaded) -> Search:
        def rebuild(task: Task, rows: Sequence[Row]) -> Boundary:
            return replay_boundary(task, rows, ready.make_environment(), ready.codec, ready.settings)

        rows = [row for earlier in range(number) for row in self._rows(earlier)]
        state = self._frontier(number - 1)["search"]
        settings, iteration = self._iteration.search, self._iteration.number
        return Search.resume(state, self._roots(), rows, settings, self._table, iteration, rebuild)

    def _roots(self) -> list[EpisodeSpec]:
        return roots_of_trees(self._tasks, 1, f"s{self._iteration.seed}.i{self._iteration.number}")

    def _rows(self, number: int) -> list[Row]:
        path = self._iteration.round(number, "rollout") / "rollouts.parquet"
        with readable(path):
            return own_rows(pq.read_table(path).to_pylist(), number)

    def _open_environments(self) -> Callable[[], Environment]:
        """What makes environments; the games are opened once, for all rounds."""
        if self._environments is None:
            games, splits = self._iteration.layout.panels / "games", {task.split for task in self._tasks}
            self._environments = self._opened.enter_context(environments(self._experiment, games, sorted(splits)))
        return self._environments

    def _run(self) -> Json:
        """What tells runs apart: their names, how they sample, and what they started from."""
        iteration = self._iteration
        start = read_manifest(iteration.layout.sft)
        return {
            "algorithm": iteration.algorithm,
            "seed": iteration.seed,
            "settings": config_hash(iteration.config("rollout"))[:16],
            "start": None if start is None else start["outputs"]["policy"][:16],
        }

    def _read_states(self, path: Path) -> StateTable:
        with readable(path):
            return StateTable.from_table(pq.read_table(path), self._run(), str(path))

    def _frontier(self, number: int) -> Json:
        path = self._iteration.round(number, "rollout") / FRONTIER
        try:
            frontier: Json = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise AgentRLError(
                f"{path}: not a readable frontier ({error}); delete {path.parents[2]}, the iteration starts anew"
            ) from None
        expected = self._run() | {"iteration": self._iteration.number}
        if frontier.get("run") != expected:
            raise AgentRLError(
                f"{path}: the frontier of {frontier.get('run')}, expected {expected}; delete {path.parents[2]}"
            )
        return frontier

    def _write(self, search: Search, scratch: Path) -> None:
        run = self._run()
        frontier = {
            "run": run | {"iteration": self._iteration.number},
            "finished": search.finished,
            "search": search.state(),
        }
        write_atomic(scratch / FRONTIER, json.dumps(frontier, indent=1, sort_keys=True) + "\n")
        pq.write_table(self._table.to_table(run), scratch / STATES, compression="zstd", compression_level=3)


def own_rows(rows: Sequence[Row], number: int) -> list[Row]:
    """The rows that were sampled in a round; the others are their context."""
    return [row for row in rows if row[ROUND] == number]
