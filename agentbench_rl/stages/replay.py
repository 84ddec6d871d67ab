"""Replay within the advantage stage: what an iteration remembers for the next, and what it trains on once more.

`buffer.parquet` and `history.parquet` beside an iteration's advantages are the memory after it. When responses are
replayed, their rows stand at the end of advantages.parquet, and their episodes in `replayed.parquet`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from agentbench_rl.algorithms.ragged import flatten, list_lengths, to_lists
from agentbench_rl.algorithms.replay import (
    Memory,
    empty_memory,
    forget,
    history_schema,
    remember,
    replay,
    replay_weight,
    turn_memory_schema,
)
from agentbench_rl.algorithms.scores import align_scores
from agentbench_rl.config.algorithm import AlgorithmConfig, ReplayConfig
from agentbench_rl.stages.files import read_frame, write_table
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.manifest import prune
from agentbench_rl.types import AgentRLError, advantage_schema, episode_schema, rollout_schema, score_schema

_MEMORY = {"buffer": turn_memory_schema, "history": history_schema}
_IDENTITY = b"agentbench_rl.replay"


@dataclass(frozen=True)
class ReplayedRun:
    """A run of a method with replay: the name and settings of the method, and the seed."""

    layout: Layout
    name: str
    method: AlgorithmConfig
    seed: int

    @property
    def settings(self) -> ReplayConfig:
        """The method's replay settings."""
        assert self.method.replay is not None
        return self.method.replay

    def directory(self, iteration: int, stage: str = "advantage") -> Path:
        """Directory of a stage of an iteration."""
        return self.layout.stage(self.name, self.seed, iteration, stage)

    def memory_inputs(self, iteration: int) -> dict[str, Path]:
        """The files of the memory that an iteration begins with."""
        if iteration == 0:
            return {}
        return {name: self.directory(iteration - 1) / f"{name}.parquet" for name in _MEMORY}

    def write(self, iteration: int, scratch: Path) -> dict[str, float]:
        """Add the replayed responses to `scratch / advantages.parquet`, and write the memory after this iteration.

        Returns how many responses are held and replayed, and with what weight.
        """
        memory = forget(self._before(iteration), self.settings, iteration)
        left, replayed = replay(memory, self.settings, iteration)
        memory = self._remember(left, iteration, scratch)
        if replayed is not None:
            path = scratch / "advantages.parquet"
            write_table(pa.concat_tables([pq.read_table(path), replayed.advantages]), path)
            write_table(replayed.turns, scratch / "replayed.parquet")
        identity = {_IDENTITY: self._identity(iteration)}
        for name, table in (("buffer", memory.turns), ("history", memory.history)):
            schema = _MEMORY[name]()
            write_table(table.replace_schema_metadata(schema.metadata | identity), scratch / f"{name}.parquet")
        return {
            "replay_held": float(memory.held),
            "replayed_responses": 0.0 if replayed is None else float(len(replayed.advantages)),
            "replay_weight": replay_weight(iteration, self.settings.warmup_iterations),
        }

    def prune(self, iteration: int) -> None:
        """Remove the memory that an iteration has read: it can be made again from the files of the iterations."""
        if iteration > 0:
            prune(self.directory(iteration - 1), [f"{name}.parquet" for name in _MEMORY])

    def _before(self, iteration: int) -> Memory:
        """The memory that an iteration begins with: its files, or where they are pruned what they were made of."""
        kept = iteration - 1
        while kept >= 0 and not all((self.directory(kept) / f"{name}.parquet").exists() for name in _MEMORY):
            kept -= 1
        memory = empty_memory() if kept < 0 else self._read(kept)
        for earlier in range(kept + 1, iteration):
            memory, _ = replay(forget(memory, self.settings, earlier), self.settings, earlier)
            memory = self._remember(memory, earlier, self.directory(earlier))
        return memory

    def _remember(self, memory: Memory, iteration: int, directory: Path) -> Memory:
        rollout = self.directory(iteration, "rollout")
        rollouts = read_frame(rollout / "rollouts.parquet", rollout_schema())
        episodes = read_frame(rollout / "episodes.parquet", episode_schema())
        advantages = read_frame(directory / "advantages.parquet", advantage_schema())
        own = advantages[advantages["source"].isna()]
        old = self._old_logprobs(iteration, rollouts)
        return remember(memory, rollouts, episodes, own, old, self.method.reward, self.settings, iteration)

    def _old_logprobs(self, iteration: int, rollouts: pd.DataFrame) -> pd.Series:
        if self.method.old_logprobs == "sampler":
            return rollouts["response_logprobs"]
        path = self.directory(iteration, "score") / "scores.parquet"
        turns, lengths = rollouts["turn_id"], list_lengths(rollouts["response_ids"])
        scores = align_scores(turns, np.arange(len(turns)), read_frame(path, score_schema()))
        return to_lists(flatten(scores["old_logprobs"], lengths, turns, f"{path}: old_logprobs"), lengths)

    def _read(self, iteration: int) -> Memory:
        tables = []
        for name, schema in _MEMORY.items():
            path = self.directory(iteration) / f"{name}.parquet"
            frame = read_frame(path, schema())
            found = (pq.read_schema(path).metadata or {}).get(_IDENTITY, b"no run")
            if found != self._identity(iteration):
                raise AgentRLError(
                    f"{path}: a memory of {found.decode()}, expected {self._identity(iteration).decode()}; "
                    "delete the advantage directories of this run and start it again"
                )
            tables.append(pa.Table.from_pandas(frame, schema=schema(), preserve_index=False))
        return Memory(*(table.replace_schema_metadata(turn_memory_schema().metadata) for table in tables))

    def _identity(self, iteration: int) -> bytes:
        return json.dumps({"algorithm": self.name, "seed": self.seed, "iteration": iteration}).encode()
