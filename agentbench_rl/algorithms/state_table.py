"""How often the finished trajectories of a run passed through a state, and how many of them succeeded.

A state is counted once per leaf below it, or once per tree with the share of the tree's leaves below it that
succeeded. Reading an unknown state adds nothing.
Source: 3SPO (arXiv 2606.09961, section 3); the count per tree keeps one deep tree of failures from closing its root.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from agentbench_rl.config.topology import StateScore
from agentbench_rl.types import AgentRLError

if TYPE_CHECKING:
    import pyarrow as pa

_IDENTITY, _CLOCK = b"agentbench_rl.states.run", b"agentbench_rl.states.clock"
#: What one trajectory leaves of the moving average of success.
_MOMENTUM = 0.98

#: The keys from root to leaf, the leaf's own included, and whether it succeeded.
Leaf = tuple[Sequence[str], bool]
#: Leaves and successes below every state of one tree.
Tally = dict[str, list[int]]


@dataclass
class StateTable:
    """Visits and successes by state key; finished trajectories of the run and their moving average of success."""

    totals: dict[str, float] = field(default_factory=dict)
    successes: dict[str, float] = field(default_factory=dict)
    trajectories: int = 0
    success_average: float = 0.0

    def total(self, key: str) -> float:
        """Visits of a state; 0 for an unknown one."""
        return self.totals.get(key, 0.0)

    def success(self, key: str) -> float:
        """Successes among the visits of a state; 0 for an unknown one."""
        return self.successes.get(key, 0.0)

    def copy(self) -> StateTable:
        """An independent copy."""
        return replace(self, totals=dict(self.totals), successes=dict(self.successes))

    def decay(self, rate: float) -> None:
        """Multiply all counts; the clock goes on."""
        for counts in (self.totals, self.successes):
            for key in counts:
                counts[key] *= rate

    def count(self, leaves: Sequence[Leaf], tally: Tally, mode: Literal["leaf", "tree"]) -> None:
        """Count the leaves that one tree got in a round; `tally` is the tree's, and is brought up to date."""
        for path, success in leaves:
            for key in dict.fromkeys(path):
                tree_leaves, tree_successes = tally.get(key, [0, 0])
                tally[key] = [tree_leaves + 1, tree_successes + success]
                if mode == "leaf":
                    self._add(key, 1.0, float(success))
                else:
                    before = tree_successes / tree_leaves if tree_leaves else 0.0
                    share = (tree_successes + success) / (tree_leaves + 1)
                    self._add(key, float(not tree_leaves), share - before)

    def finish(self, successes: Sequence[bool]) -> None:
        """Advance the clock by the trajectories of a round, all of equal weight in the moving average."""
        if successes:
            kept = _MOMENTUM ** len(successes)
            self.success_average = kept * self.success_average + (1.0 - kept) * sum(successes) / len(successes)
            self.trajectories += len(successes)

    def to_table(self, run: Mapping[str, Any]) -> pa.Table:
        """The table for a Parquet file, sorted by key; clock and run identity stand in the metadata."""
        import pyarrow as pa

        keys = sorted(self.totals)
        columns = [keys, [self.totals[key] for key in keys], [self.success(key) for key in keys]]
        clock = {"trajectories": self.trajectories, "success_average": self.success_average}
        metadata = {_IDENTITY: _json(run), _CLOCK: _json(clock)}
        return pa.table(
            [pa.array(c, kind) for c, kind in zip(columns, state_schema().types, strict=True)],
            schema=state_schema().with_metadata(metadata),
        )

    @classmethod
    def from_table(cls, table: pa.Table, run: Mapping[str, Any], where: str = "state table") -> StateTable:
        """Read what `to_table` gave; raises AgentRLError for the table of another run or with other columns."""
        metadata = table.schema.metadata or {}
        found = metadata.get(_IDENTITY, b"no run")
        if found != _json(run):
            raise AgentRLError(
                f"{where}: states of {found.decode()}, expected {_json(run).decode()}; "
                "delete the state tables of this run and start it again"
            )
        if not table.schema.equals(state_schema()) or _CLOCK not in metadata:
            raise AgentRLError(f"{where}: columns {table.schema.names} or the clock are not those of a state table")
        keys, totals, successes = (column.to_pylist() for column in table.columns)
        return cls(
            dict(zip(keys, totals, strict=True)),
            dict(zip(keys, successes, strict=True)),
            **json.loads(metadata[_CLOCK]),
        )

    def _add(self, key: str, total: float, success: float) -> None:
        self.totals[key] = self.total(key) + total
        self.successes[key] = self.success(key) + success


@cache
def state_schema() -> pa.Schema:
    """Columns of a state table's file."""
    import pyarrow as pa

    fields = [("key", pa.string()), ("n_total", pa.float64()), ("n_success", pa.float64())]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])


def state_keys(row: Mapping[str, Any], settings: StateScore) -> tuple[str, str]:
    """Keys of the states before and after a row of rollouts: of state or observation, within a task, type or run."""
    if settings.key == "state":
        states = (row["state_key"], row["next_state_key"])
    else:
        states = (row["anchor_key"], observation_key(row["observation"]))
    before, after = (state_key(state, row["task_id"], row["task_type"], settings) for state in states)
    return before, after


def state_key(state: str, task_id: str, task_type: str, settings: StateScore) -> str:
    """Key of a state (its `state_key`, or its `observation_key`) for the tasks that share it; 16 bytes in hex."""
    scope = {"task": task_id, "task_type": task_type, "global": ""}[settings.scope]
    return hashlib.blake2b(json.dumps([scope, state]).encode(), digest_size=16).hexdigest()


def observation_key(observation: str) -> str:
    """Key of an observation, as the column anchor_key holds it."""
    return hashlib.sha256(observation.encode()).hexdigest()[:32]


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(value), sort_keys=True).encode()
