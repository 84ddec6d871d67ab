"""The `expand` topology: one best-first tree per task, a round expands one state of every tree.

A round takes the best state of every tree that its gate leaves open, samples n(s) responses there, steps, and pays
every step by the table as it was at the start of the round. Live children go on the tree's stack, the best on top; the
table counts the leaves at the end of the round. A child that a fault ended leaves its group incomplete, so nothing is
learnt from the group; its healthy siblings are searched on. A state that no snapshot takes back is not expanded; one
whose prompt no longer fits the context is a leaf.
Source: 3SPO (arXiv 2606.09961, sections 3.1 to 3.5). Formulas: `algorithms.state_scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agentbench_rl.algorithms.state_scores import StateScores, Transition
from agentbench_rl.algorithms.state_table import Leaf, StateTable, Tally, observation_key, state_key, state_keys
from agentbench_rl.config import Json
from agentbench_rl.config.topology import Expand
from agentbench_rl.rollout.chains import Rollouts
from agentbench_rl.rollout.episode import Boundary, EpisodeSpec, Row, RunningEpisode
from agentbench_rl.rollout.expansion_metrics import expansion_metrics
from agentbench_rl.types import (
    ALLOCATION,
    INFRASTRUCTURE_ENDINGS,
    NOVEL,
    ROUND,
    STATE_SCORE,
    STEP_REWARD,
    AgentRLError,
    Ending,
    InfrastructureError,
    Task,
)

#: Plays episodes; `Rollouts.forkable` holds those that keep their boundaries.
Play = Callable[[Sequence[EpisodeSpec]], Rollouts]
#: The moment after a path of stored rows of a task; verified (`rollout.replaying`).
Rebuild = Callable[[Task, Sequence[Row]], Boundary]

#: Metric: states that could have been expanded if a snapshot had been possible.
_LOST = "boundaries_without_snapshot"


@dataclass
class _Node:
    """A state to expand; path: keys from the root to it, none before the root was entered. reward: of the last step."""

    turn_id: str | None = None
    path: list[str] = field(default_factory=list)
    reward: float | None = None
    digest: str = ""
    boundary: Boundary | None = None

    @property
    def is_root(self) -> bool:
        """Whether its state is the first one of the task."""
        return self.path[-1] == self.path[0]

    def state(self) -> Json:
        """What is kept of it on disk."""
        return {"turn_id": self.turn_id, "path": self.path, "reward": self.reward, "digest": self.digest}


@dataclass
class _Tree:
    """One tree; stack: its frontier, the next state last. responses: sampled so far, and the next branch number."""

    root: EpisodeSpec
    stack: list[_Node] = field(default_factory=lambda: [_Node()])
    responses: int = 0
    leaves: int = 0
    tally: Tally = field(default_factory=dict)

    def state(self) -> Json:
        """What is kept of it on disk."""
        counted = {"responses": self.responses, "leaves": self.leaves, "tally": dict(self.tally)}
        return {"tree_id": self.root.tree_id, **counted, "stack": [node.state() for node in self.stack]}


@dataclass
class _Expansion:
    """A state of a tree that is expanded in this round, its leaves, and how many live children have no snapshot."""

    tree: _Tree
    node: _Node
    score: float
    specs: list[EpisodeSpec]
    leaves: list[Leaf] = field(default_factory=list)
    lost: int = 0


class Search:
    """The search of one iteration; `round` until `finished`.

    The table is changed in place: counts decay at the beginning, leaves are counted at the end of every round.
    """

    def __init__(self, trees: Sequence[_Tree], settings: Expand, table: StateTable, iteration: int) -> None:
        self._trees = list(trees)
        self._settings = settings
        self._table = table
        self._iteration = iteration
        self._round = 0
        self._dropped = 0
        self._rows: dict[str, Row] = {}
        self._rebuild: Rebuild | None = None

    @classmethod
    def begin(cls, roots: Sequence[EpisodeSpec], settings: Expand, table: StateTable, iteration: int) -> Search:
        """Start the search of an iteration (from 0) at `roots_of_trees(tasks, 1, prefix)`."""
        if iteration > 0:
            table.decay(settings.score.decay)
        return cls([_Tree(root) for root in roots], settings, table, iteration)

    @classmethod
    def resume(
        cls,
        state: Json,
        roots: Sequence[EpisodeSpec],
        rows: Sequence[Row],
        settings: Expand,
        table: StateTable,
        iteration: int,
        rebuild: Rebuild,
    ) -> Search:
        """Go on after the round whose `state` this is, with the table as it was then.

        rows: all turns of the iteration so far. rebuild: called for a state only when it is expanded.
        Raises AgentRLError when the trees are not those of the roots, or a turn of the frontier is missing.
        """
        names = [tree["tree_id"] for tree in state["trees"]]
        if names != [root.tree_id for root in roots]:
            raise AgentRLError(f"the state of the search is of other trees: {', '.join(names)[:200]}; start it again")
        trees = []
        for root, kept in zip(roots, state["trees"], strict=True):
            stack = [_Node(**node) for node in kept["stack"]]
            trees.append(_Tree(root, stack, kept["responses"], kept["leaves"], dict(kept["tally"])))
        search = cls(trees, settings, table, iteration)
        search._round, search._dropped = state["round"], state["dropped"]
        search._rows, search._rebuild = {row["turn_id"]: row for row in rows}, rebuild
        lost = [
            node.turn_id for tree in trees for node in tree.stack if node.turn_id and node.turn_id not in search._rows
        ]
        if lost:
            raise AgentRLError(f"turn {lost[0]} of the search's frontier is not among the rollouts; start it again")
        return search

    @property
    def rounds(self) -> int:
        """Rounds that are over."""
        return self._round

    @property
    def finished(self) -> bool:
        """Whether no tree has a state left that may be expanded."""
        scores = self._scores()
        return not any(
            not node.path or self._allocation(tree, node, scores) > 0
            for tree in self._trees
            if self._is_live(tree)
            for node in tree.stack
        )

    def round(self, play: Play) -> Rollouts:
        """Expand one state of every live tree; the table counts the leaves.

        Turns are those of this round (column `expand_round`) and their ancestors; episodes are the leaves of this
        round. Raises InfrastructureError when a state cannot be rebuilt as it was.
        """
        rollouts = self._enter(play)
        scores = self._scores()
        dropped = self._dropped
        expansions = [chosen for tree in self._trees if (chosen := self._choose(tree, scores)) is not None]
        played = play([spec for expansion in expansions for spec in expansion.specs])
        try:
            for expansion in expansions:
                self._grow(expansion, played, scores)
        finally:
            played.release()
        for expansion in expansions:
            self._table.count(expansion.leaves, expansion.tree.tally, self._settings.score.count)
        self._table.finish([success for expansion in expansions for _, success in expansion.leaves])
        metrics = expansion_metrics(played.turns, self._settings, self._dropped - dropped)
        metrics["leaves"] = float(sum(len(expansion.leaves) for expansion in expansions))
        metrics["live_trees"] = float(sum(self._is_live(tree) for tree in self._trees))
        metrics[_LOST] = rollouts.metrics.get(_LOST, 0.0) + sum(expansion.lost for expansion in expansions)
        played.turns = [*_ancestors(expansions), *played.turns]
        rollouts.add(played)
        rollouts.metrics |= metrics
        self._round += 1
        return rollouts

    def state(self) -> Json:
        """The search between two rounds as plain JSON, the table excluded."""
        return {"round": self._round, "dropped": self._dropped, "trees": [tree.state() for tree in self._trees]}

    def close(self) -> None:
        """Forget the frontier; the search cannot go on."""
        for tree in self._trees:
            tree.stack.clear()

    def _scores(self) -> StateScores:
        return StateScores(self._table.copy(), self._settings.score, self._iteration)

    def _is_live(self, tree: _Tree) -> bool:
        settings = self._settings
        return bool(tree.stack) and tree.responses < settings.max_responses and tree.leaves < settings.max_leaves

    def _enter(self, play: Play) -> Rollouts:
        """Reset the tasks whose root was not entered yet; a tree whose reset or whose first snapshot fails is over."""
        fresh = [tree for tree in self._trees if tree.stack and not tree.stack[-1].path]
        if not fresh:
            return Rollouts()
        played = play([replace(tree.root, turns=0, forkable=True) for tree in fresh])
        lost = 0
        for tree in fresh:
            episode = played.forkable[tree.root.episode_id]
            moment = _moment(episode)
            tree.stack = [] if moment is None else [self._node(tree, [], moment, None)]
            lost += moment is None and episode.ending is None
        played.release()
        played.metrics[_LOST] = float(lost)
        return played

    def _node(self, tree: _Tree, before: list[str], moment: Boundary, reward: float | None) -> _Node:
        settings, task = self._settings.score, tree.root.task
        state = moment.state_key if settings.key == "state" else observation_key(moment.observation)
        path = [*before, state_key(state, task.task_id, task.task_type, settings)]
        return _Node(moment.parent_id, path, reward, moment.digest, moment)

    def _allocation(self, tree: _Tree, node: _Node, scores: StateScores) -> int:
        planned = scores.allocation(node.path[-1], self._settings, root=node.is_root)
        return min(planned, self._settings.max_responses - tree.responses)

    def _choose(self, tree: _Tree, scores: StateScores) -> _Expansion | None:
        """Take the best state that may be expanded off the stack; closed ones on the way are dropped for good."""
        while self._is_live(tree):
            node = tree.stack.pop()
            size = self._allocation(tree, node, scores)
            if size == 0:
                self._dropped += 1
                continue
            origin = node.boundary = node.boundary or self._rebuilt(tree, node)
            first, tree.responses = tree.responses, tree.responses + size
            specs = [
                replace(tree.root, branch=branch, origin=origin, turns=1, forkable=True)
                for branch in range(first, tree.responses)
            ]
            return _Expansion(tree, node, scores.score(node.path[-1], root=node.is_root), specs)
        return None

    def _rebuilt(self, tree: _Tree, node: _Node) -> Boundary:
        assert self._rebuild is not None
        assert node.turn_id is not None
        path = [self._rows[node.turn_id]]
        while (parent := path[-1]["parent_id"]) is not None:
            path.append(self._rows[parent])
        moment = self._rebuild(tree.root.task, path[::-1])
        if moment.digest != node.digest:
            raise InfrastructureError(f"turn {node.turn_id}: the state after it differs when its path is replayed")
        return moment

    def _grow(self, expansion: _Expansion, played: Rollouts, scores: StateScores) -> None:
        """Score the children of a state; leaves are counted, live children pushed."""
        tree, node = expansion.tree, expansion.node
        live: list[tuple[Row, _Node]] = []
        full: list[str] = []
        for spec in expansion.specs:
            episode = played.forkable[spec.episode_id]
            faulty = episode.ending in INFRASTRUCTURE_ENDINGS
            for row in episode.rows:
                row |= {ROUND: self._round, STATE_SCORE: expansion.score, ALLOCATION: len(expansion.specs)}
                row |= {STEP_REWARD: None, NOVEL: False}
                if not faulty:
                    self._pay(row, node, episode.ending, scores)
            if (moment := _moment(episode)) is not None:
                row = episode.rows[-1]
                live.append((row, self._node(tree, node.path, moment, row[STEP_REWARD])))
            elif episode.ending is None:
                expansion.lost += 1
            elif not faulty and not episode.rows:
                full.append(spec.episode_id)
            elif not faulty:
                _, key = state_keys(episode.rows[-1], self._settings.score)
                expansion.leaves.append(([*node.path, key], episode.ending is Ending.SUCCESS))
        if full:
            expansion.leaves.append((node.path, False))
            _keep_one_leaf(played, full)
        tree.leaves += len(expansion.leaves)
        tree.stack += self._ranked(live)

    def _pay(self, row: Row, node: _Node, ending: Ending | None, scores: StateScores) -> None:
        _, key = state_keys(row, self._settings.score)
        step = Transition(node.path, key, ending is not None, ending is Ending.SUCCESS, row["reward"])
        row |= {STEP_REWARD: scores.reward(step), NOVEL: scores.is_new(step)}

    def _ranked(self, live: Sequence[tuple[Row, _Node]]) -> list[_Node]:
        """The children to push, the best last: by reward, well-formed ones first, then in the order of sampling."""
        ranked = sorted(live, key=lambda child: (child[0][STEP_REWARD], child[0]["valid"]), reverse=True)
        best: dict[str, _Node] = {}
        for row, node in ranked:
            best.setdefault(row["action"] if self._settings.children == "distinct" else row["turn_id"], node)
        pushed = list(best.values()) if self._settings.backtrack else list(best.values())[:1]
        return pushed[::-1]


def _moment(episode: RunningEpisode) -> Boundary | None:
    """The moment that an episode was left at; None where it ended, or where there is no snapshot."""
    return episode.boundaries[-1] if episode.boundaries and episode.ending is None else None


def _keep_one_leaf(played: Rollouts, full: Sequence[str]) -> None:
    """Of the continuations of a state whose prompt is too long, keep one: they are the same leaf."""
    surplus = set(full[1:])
    played.episodes = [episode for episode in played.episodes if episode["episode_id"] not in surplus]
    played.endings[str(Ending.TRUNCATED_TOKENS)] -= len(surplus)


def _ancestors(expansions: Sequence[_Expansion]) -> list[Row]:
    """The turns that lead to the expanded states, in the order of the trees and of steps."""
    return [row for expansion in expansions if expansion.node.boundary for row in expansion.node.boundary.rows]
