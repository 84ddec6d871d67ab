"""An episode of code repair: tool calls over a workspace, graded by hidden tests at `submit` or at the last turn.

The reward is 1 when all hidden tests pass and 0 otherwise; progress is the share of them that pass, computed when an
edit changed the tree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentbench_rl.envs.code.actions import Action, Edit, GrammarError, List, Read, Search, Submit, Test, parse
from agentbench_rl.envs.code.tree import PathError
from agentbench_rl.envs.code.workspace import Workspace
from agentbench_rl.types import InfrastructureError, Observation, StepResult, Task

_MOST_HITS = 50
_LONGEST_HIT = 160
#: What is read from a line on where no last line is named.
_READ_LINES = 20


@dataclass(frozen=True, slots=True)
class Start:
    """What a task begins with: the report, a fresh workspace, and what gives the edits that solve it, where known."""

    issue: str
    workspace: Workspace
    solution: Callable[[], Sequence[str]] = tuple


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Task, content of the workspace, turns taken, and whether the episode is over."""

    task: Task
    content: object
    turns: int
    done: bool
    progress: float | None


class CodeEpisode:
    """One episode; implements `Environment`. `begin` gives a task's start."""

    def __init__(self, begin: Callable[[Task], Start], max_turns: int, observation_characters: int) -> None:
        self._begin, self._max_turns, self._most = begin, max_turns, observation_characters
        self._start: Start | None = None
        self._task: Task | None = None
        self._workspace: Workspace | None = None
        self._turns, self._done = 0, False
        self._progress: float | None = None

    def reset(self, task: Task) -> Observation:
        """Start a task; raises AgentRLError for one that is not in the suite."""
        self._enter(task, self._begin(task))
        self._progress = self._files().share()
        return Observation(f"{self._issue()}\n\nFiles: {self._limited(' '.join(self._files().paths()))}")

    def step(self, action: str) -> StepResult:
        """Execute a tool call; raises InfrastructureError after the end."""
        workspace = self._files()
        if self._done:
            raise InfrastructureError("code: the episode is over; reset it")
        self._turns += 1
        key = workspace.key
        call: Action | None = None
        try:
            call = parse(action)
            observation = self._limited(self._execute(call))
        except (GrammarError, PathError) as error:
            observation = f"Error: {error}"
        self._done = isinstance(call, Submit) or self._turns >= self._max_turns
        if workspace.key != key:
            self._progress = workspace.share()
        success = self._done and workspace.solved()
        if self._done:
            observation = f"{observation}\n" if observation else ""
            observation += "The hidden tests pass." if success else "Hidden tests fail."
        valid = call is not None
        return StepResult(
            observation, 1.0 if success else 0.0, self._done, success, self._progress, int(valid), valid=valid
        )

    def snapshot(self) -> Snapshot:
        """The moment as a value."""
        return Snapshot(self._current(), self._files().snapshot(), self._turns, self._done, self._progress)

    def restore(self, snapshot: object) -> None:
        """Return to a snapshot of any episode of the same suite; raises InfrastructureError for anything else."""
        if not isinstance(snapshot, Snapshot):
            raise InfrastructureError(f"code: {type(snapshot).__name__} is no snapshot of code repair")
        if self._task != snapshot.task:
            self._enter(snapshot.task, self._begin(snapshot.task))
        self._files().restore(snapshot.content)
        self._turns, self._done, self._progress = snapshot.turns, snapshot.done, snapshot.progress

    def fork(self) -> CodeEpisode:
        """An independent copy."""
        copy = CodeEpisode(self._begin, self._max_turns, self._most)
        copy._task, copy._start, copy._workspace = self._task, self._start, self._files().copy()
        copy._turns, copy._done, copy._progress = self._turns, self._done, self._progress
        return copy

    def digest(self) -> str:
        """Hash of task, content and turns taken."""
        return _hash(f"{self.state_key()} {self._turns}")

    def state_key(self) -> str:
        """Hash of task and content; turns count only in so far as the last one ends the episode."""
        return _hash(f"{self._current().task_id} {self._files().key} {self._done}")

    def admissible(self) -> None:
        """The action space is open."""

    def process_reward(self) -> float | None:
        """Share of the hidden tests that pass in the tree as it is."""
        self._files()
        return self._progress

    def expert_action(self) -> str | None:
        """The next edit that solves the task, `submit` when all are made, None where one cannot be made."""
        edits = self._start.solution() if self._start else ()
        if not edits or self._done:
            return None
        if self._progress == 1.0:
            return "submit"
        states = [_state(self._files(), edit) for edit in edits]
        if None in states or (all(states) and self._progress is not None):
            return None
        return next((edit for edit, made in zip(edits, states, strict=True) if not made), "submit")

    def close(self) -> None:
        """Release the workspace."""
        if self._workspace is not None:
            self._workspace.close()

    def _enter(self, task: Task, start: Start) -> None:
        self.close()
        self._task, self._start, self._workspace = task, start, start.workspace
        self._turns, self._done, self._progress = 0, False, None

    def _files(self) -> Workspace:
        if self._workspace is None:
            raise InfrastructureError("code: reset must be called before anything else")
        return self._workspace

    def _current(self) -> Task:
        self._files()
        assert self._task is not None
        return self._task

    def _issue(self) -> str:
        assert self._start is not None
        return self._start.issue

    def _execute(self, call: Action) -> str:
        workspace = self._files()
        match call:
            case List(path):
                return _listed(workspace, path)
            case Read(path, first, last):
                return _read(workspace, path, first, last)
            case Search(text):
                return _found(workspace, text)
            case Edit(path, old, new):
                return _edited(workspace, path, old, new)
            case Test(name):
                return workspace.test(name)
            case Submit():
                return ""

    def _limited(self, text: str) -> str:
        if len(text) <= self._most:
            return text
        return f"{text[: self._most]}\n[cut: {len(text) - self._most} more characters]"


def _listed(workspace: Workspace, path: str) -> str:
    chosen = [p for p in workspace.paths() if path in (".", p) or p.startswith(f"{path}/")]
    return "\n".join(chosen) or f"There is nothing at {path}."


def _read(workspace: Workspace, path: str, first: int | None, last: int | None) -> str:
    text = workspace.read(path)
    if text is None:
        return f"There is no file {path}."
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    if first is None:
        return "\n".join(lines)
    if first > max(1, len(lines)):
        return f"{path} has {len(lines)} lines."
    return "\n".join(lines[first - 1 : last or first - 1 + _READ_LINES])


def _found(workspace: Workspace, text: str) -> str:
    hits = [f"{hit.path}:{hit.number}: {hit.line.strip()[:_LONGEST_HIT]}" for hit in workspace.search(text)]
    more = [f"[{len(hits) - _MOST_HITS} more]"] if len(hits) > _MOST_HITS else []
    return "\n".join(hits[:_MOST_HITS] + more) or "Nothing found."


def _edited(workspace: Workspace, path: str, old: str, new: str) -> str:
    text = workspace.read(path)
    if not old:
        if text is not None:
            return f"{path} exists; an edit of it needs the old text."
        workspace.write(path, f"{new}\n")
        return "Done."
    if text is None:
        return f"There is no file {path}."
    count = text.count(old)
    if count != 1:
        return f"The old text stands {count} times in {path}; it must stand there exactly once."
    workspace.write(path, text.replace(old, new))
    return "Done."


def _state(workspace: Workspace, text: str) -> bool | None:
    """Whether an edit is made already; None where it cannot be made."""
    edit = parse(text)
    assert isinstance(edit, Edit)
    try:
        content = workspace.read(edit.path)
    except PathError:
        return None
    if not edit.old:
        return content is not None
    if content is None:
        return None
    if edit.old not in edit.new and content.count(edit.old) == 1:
        return False
    if edit.new and edit.new in content:
        return True
    return False if content.count(edit.old) == 1 else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
