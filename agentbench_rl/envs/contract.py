"""What every environment keeps, as checks: of one task with actions that are played, or of a whole environment.

`TASK_CHECKS` take (suite, task, actions). Actions that win, such as the expert's, check most; none may come after the
end, see `playable`. A check that fails raises ContractError, which names the task and what is wrong.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from agentbench_rl.config.environment import EnvironmentConfig
from agentbench_rl.envs import open_source, open_suite
from agentbench_rl.envs.base import Environment, Suite
from agentbench_rl.types import AgentRLError, InfrastructureError, StepResult, Task

MOST_SNAPSHOT_BYTES = 256 * 1024
MOST_OBSERVATION_CHARACTERS = 50_000
MOST_STEP_SECONDS = 60.0
LEAST_EXPERT_SUCCESS = 0.9
_LONG = 100_000
#: Steps that use up an environment's own budget, if it has one.
_IDLE = 40
#: What a policy may say: nothing, noise, beginnings of grammars, other alphabets, far too much.
NOISE = (
    *("", " ", "\n\t\r\n", "\0", "None", "{}", "()", "'; --", "%s %d {0}", "../../etc/passwd", "-1", "1e999"),
    *("<", "<search>", "</search><search>", "<answer>", "search[", "click[]", "edit x\n<<<<", "read", "\\boxed{"),
    *("åß∂ 动作 дверь", "🚪🔑", "e\u0301\u200d\u202e", "\ud800", "x" * _LONG, "(" * _LONG, "å" * _LONG, "go\n" * _LONG),
)
TaskCheck = Callable[[Suite, Task, Sequence[str]], None]
#: Everything that can be seen of an episode at one moment.
Moment = tuple[str, str, list[str] | None, float | None]


class ContractError(AgentRLError):
    """An environment does not keep the contract."""


def expert_actions(environment: EnvironmentConfig, suite: Suite, task: Task) -> tuple[list[str], bool]:
    """The actions of the environment's expert, and whether they win; none where there is no expert for the task."""
    episode = suite.make()
    observation = episode.reset(task).text
    follow = suite.demonstrator(environment.expert, episode, task, 0)
    actions: list[str] = []
    success = False
    while len(actions) < environment.max_turns:
        action = follow(observation, actions[-1] if actions else None)
        if action is None:
            break
        actions.append(action)
        result = episode.step(action)
        observation, success = result.observation, result.success
        if result.done:
            break
    episode.close()
    return actions, success


def playable(suite: Suite, task: Task, words: Sequence[str] = ("look", "help", "1", "a", "north", "yes")) -> list[str]:
    """Actions without an expert, until the end: admissible ones, or `words` where any text may be one."""
    episode = suite.make()
    episode.reset(task)
    actions: list[str] = []
    for number, word in enumerate(words):
        admissible = episode.admissible()
        actions.append(admissible[7 * number % len(admissible)] if admissible else word)
        if episode.step(actions[-1]).done:
            break
    episode.close()
    return actions


def check_determinism(suite: Suite, task: Task, actions: Sequence[str]) -> None:
    """Equal actions show equal things and lead to equal states."""
    _same(task, "a second episode", _trace(suite.make(), task, actions), _trace(suite.make(), task, actions))


def check_no_hidden_state(suite: Suite, task: Task, actions: Sequence[str]) -> None:
    """What was played before a reset, of this task and of others, leaves nothing behind."""
    fresh = _trace(suite.make(), task, actions)
    used = suite.make()
    for other in [*suite.tasks(task.split)[:2], task]:
        used.reset(other)
        for action in (*NOISE[:6], *actions[: len(actions) // 2]):
            if used.step(action).done:
                break
    _same(task, "an episode after others", fresh, _trace(used, task, actions))


def check_snapshots(suite: Suite, task: Task, actions: Sequence[str]) -> None:
    """At every moment: a snapshot is small, pickles, and leads any instance to the same state and the same future."""
    episode, other = suite.make(), suite.make()
    other.reset(suite.tasks(task.split)[-1])
    episode.reset(task)
    kept = []
    for action in (*actions, None):
        stored = pickle.dumps(episode.snapshot())
        _require(len(stored) <= MOST_SNAPSHOT_BYTES, task, f"a snapshot has {len(stored)} bytes")
        kept.append((stored, _moment(episode)))
        other.restore(pickle.loads(stored))
        _same(task, "what was restored", kept[-1][1], _moment(other))
        if action is not None:
            _same(task, f"{action!r} after a restore", episode.step(action), other.step(action))
            _same(task, f"the state after a restore and {action!r}", _moment(episode), _moment(other))
    for stored, moment in reversed(kept):
        for _ in range(2):
            episode.restore(pickle.loads(stored))
            _same(task, "what was restored", moment, _moment(episode))
    for foreign in (None, "snapshot", object()):
        _refused(task, "restoring what is no snapshot", partial(episode.restore, foreign))


def check_forks(suite: Suite, task: Task, actions: Sequence[str]) -> None:
    """A fork equals its original; neither sees what the other does, nor its end."""
    episode = suite.make()
    episode.reset(task)
    for action in actions:
        before = _moment(episode)
        fork, idle = episode.fork(), episode.fork()
        _same(task, "a fork", before, _moment(fork))
        there = fork.step(action)
        _same(task, f"the original after its fork's {action!r}", before, _moment(episode))
        after = _moment(fork)
        fork.close()
        fork.close()
        _same(task, f"{action!r} after a fork", there, episode.step(action))
        _same(task, f"the state after a fork and {action!r}", after, _moment(episode))
        _same(task, f"a fork after its original's {action!r}", before, _moment(idle))
        idle.close()


def check_siblings(suite: Suite, task: Task, actions: Sequence[str]) -> None:
    """What was restored plays on as if nothing was, whatever its siblings did: counters and budgets are not new."""
    for step in sorted({len(actions) // 2, len(actions) - 1}):
        episode = suite.make()
        _trace(episode, task, actions[:step])
        snapshot, before = episode.snapshot(), _moment(episode)
        for rest in (["look"] * _IDLE, actions[step:]):
            sibling = suite.make()
            sibling.restore(snapshot)
            expected = _trace(suite.make(), task, [*actions[:step], *rest])[2 * step + 2 :]
            _same(task, f"what follows {step} actions in a sibling", expected, _rest(sibling, rest))
            _same(task, f"an episode after its sibling's end, {step} actions on,", before, _moment(episode))
            sibling.close()
        episode.close()


def check_order_of_calls(suite: Suite, task: Task, actions: Sequence[str]) -> None:
    """InfrastructureError before the first reset, and for steps after the end, which change nothing."""
    episode = suite.make()
    _refused(task, "a step before reset", lambda: episode.step("look"))
    _refused(task, "a snapshot before reset", episode.snapshot)
    _refused(task, "a fork before reset", episode.fork)
    episode.reset(task)
    ended = False
    for action in actions:
        ended = episode.step(action).done
    if not ended:
        return
    end = _moment(episode)
    _refused(task, "a step after the end", lambda: episode.step(actions[-1]))
    _same(task, "the end after a refused step", end, _moment(episode))
    restored = suite.make()
    restored.restore(episode.snapshot())
    for copy in (restored, episode.fork()):
        _refused(task, "a step of a copy of the end", partial(copy.step, actions[-1]))


def check_bad_actions(suite: Suite, task: Task, actions: Sequence[str]) -> None:
    """Whatever is said is answered in time and at bounded length, pays nothing, and is answered again alike."""
    episode = suite.make()
    episode.reset(task)
    for action in actions[: len(actions) // 2]:
        episode.step(action)
    for noise in NOISE:
        result = _answer(task, episode.fork(), noise)
        _require(not result.success and result.reward == 0.0, task, f"{noise[:40]!r} pays {result.reward}")
        _same(task, f"a second {noise[:40]!r}", result, episode.fork().step(noise))
    for action in actions:
        repeated = action * (_LONG // len(action))
        for garbled in (action[: len(action) // 2], f"{action}\ud83d 🦔", f"🦔{action}", repeated):
            _answer(task, episode.fork(), garbled)


def check_results(suite: Suite, task: Task, actions: Sequence[str]) -> None:
    """Rewards sum to at most 1, progress is in [0, 1], success ends; admissible actions are sorted."""
    episode = suite.make()
    _require(bool(episode.reset(task).text.strip()), task, "the first observation is empty")
    paid, progress = 0.0, episode.process_reward()
    for action in actions:
        admissible = episode.admissible()
        _require(admissible is None or admissible == sorted(set(admissible)), task, "admissible actions are not sorted")
        result = _answer(task, episode, action)
        paid += result.reward
        _require(paid <= 1.0 + 1e-9, task, f"rewards sum to {paid}")
        _same(task, "process_reward() and that of the step", episode.process_reward(), result.process_reward)
        _require((progress is None) == (result.process_reward is None), task, "a process reward comes or goes")


def check_keys(suite: Suite, task: Task, actions: Sequence[str]) -> None:
    """The digest counts steps, the state key tells tasks apart; equal keys, equal futures."""
    episode, other = suite.make(), suite.make()
    episode.reset(task)
    for foreign in suite.tasks(task.split)[:3]:
        other.reset(foreign)
        equal = episode.state_key() == other.state_key()
        _require(equal == (foreign.task_id == task.task_id), task, f"its state key is that of {foreign.task_id}")
    digests = [episode.digest()]
    seen: dict[str, tuple[Environment, str]] = {episode.state_key(): (episode.fork(), episode.digest())}
    for action in actions:
        done = episode.step(action).done
        digests.append(episode.digest())
        earlier = seen.setdefault(episode.state_key(), (episode.fork(), episode.digest()))[0]
        if not done:
            _require(_future(earlier, action) == _future(episode, action), task, "equal state keys, unequal futures")
    _require(len(set(digests)) == len(digests), task, "two moments of an episode have one digest")


def check_unknown_tasks(suite: Suite, task: Task, actions: Sequence[str]) -> None:
    """AgentRLError for a task, a split or an expert that is not there, and for a task of other content."""
    episode = suite.make()
    _user_error(task, "an unknown task", lambda: episode.reset(replace(task, task_id="no such task")))
    _user_error(task, "a task of other content", lambda: episode.reset(replace(task, content_hash="0" * 64)))
    _user_error(task, "an unknown split", lambda: suite.tasks("no such split"))
    episode.reset(task)
    _user_error(task, "an unknown expert", lambda: suite.demonstrator("no such expert", episode, task, 0))
    _same(task, "an episode after errors", _trace(suite.make(), task, actions), _trace(episode, task, actions))


TASK_CHECKS: tuple[TaskCheck, ...] = (
    check_determinism,
    check_no_hidden_state,
    check_snapshots,
    check_forks,
    check_siblings,
    check_order_of_calls,
    check_bad_actions,
    check_results,
    check_keys,
    check_unknown_tasks,
)


def check_tasks(environment: EnvironmentConfig, suite: Suite, count: int) -> None:
    """Opened a second time, the tasks are the same; sorted, and no two share an id or a content, in whatever split."""
    again = open_source(environment, counts(environment, count))
    tasks = [task for split in suite.splits() for task in suite.tasks(split)]
    if tasks != [task for split in again.splits() for task in again.tasks(split)]:
        raise ContractError("opened a second time, the tasks are other ones")
    if suite.version != again.version:
        raise ContractError("opened a second time, the version is another one")
    for split in suite.splits():
        members = suite.tasks(split)
        if not members or members != sorted(members, key=lambda task: task.task_id):
            raise ContractError(f"split {split}: there are no tasks, or they are not sorted by task_id")
        if {task.split for task in members} != {split}:
            raise ContractError(f"split {split}: a task says that it is of another split")
    for key in ("task_id", "content_hash"):
        value, times = Counter(getattr(task, key) for task in tasks).most_common(1)[0]
        if times > 1:
            raise ContractError(f"{times} tasks share the {key} {value}")


def check_export(environment: EnvironmentConfig, suite: Suite, task: Task, actions: Sequence[str]) -> None:
    """From what is exported of a task, a suite is opened that holds it alone and plays it as before."""
    with TemporaryDirectory() as directory:
        suite.export([task], Path(directory) / "games")
        opened = open_suite(environment, Path(directory) / "games")
        found = [known for split in opened.splits() for known in opened.tasks(split)]
        _same(task, "the tasks of an export", [task], found)
        _same(task, "the version of an export", suite.version, opened.version)
        _same(task, "an exported episode", _trace(suite.make(), task, actions), _trace(opened.make(), task, actions))


def check_expert(environment: EnvironmentConfig, suite: Suite, tasks: Sequence[Task]) -> list[str]:
    """Ids of the tasks that the expert does not win; raises ContractError when they are more than one in ten.

    An expert that never says anything is none, and all is well.
    """
    played = {task.task_id: expert_actions(environment, suite, task) for task in tasks}
    if not any(actions for actions, _ in played.values()):
        return []
    lost = [task_id for task_id, (_, success) in played.items() if not success]
    if len(lost) > (1.0 - LEAST_EXPERT_SUCCESS) * len(tasks):
        raise ContractError(f"the expert loses {len(lost)} of {len(tasks)} tasks, such as {lost[0]}")
    return lost


def counts(environment: EnvironmentConfig, count: int) -> dict[str, int | None]:
    """So many tasks of each split; data hold as many as they hold."""
    return dict.fromkeys(environment.splits, count)


def check_environment(environment: EnvironmentConfig, games: int) -> Iterator[tuple[str, str | None]]:
    """Yield (what was checked, what is wrong): the tasks; of each split the expert on `games` tasks, and one task."""
    suite = open_source(environment, counts(environment, games))
    yield "tasks", _problem(partial(check_tasks, environment, suite, games))
    for split in suite.splits():
        tasks = suite.tasks(split)
        if not tasks:
            continue  # told already
        chosen = tasks[:: max(1, len(tasks) // games)][:games]
        yield f"{split}: expert", _problem(partial(check_expert, environment, suite, chosen))
        actions = expert_actions(environment, suite, chosen[0])[0] or playable(suite, chosen[0])
        for check in TASK_CHECKS:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            yield f"{split}: {name}", _problem(partial(check, suite, chosen[0], actions))
        yield f"{split}: export", _problem(partial(check_export, environment, suite, chosen[0], actions))


def _problem(check: Callable[[], object]) -> str | None:
    try:
        check()
    except (AgentRLError, InfrastructureError) as error:
        return str(error)
    return None


def _moment(episode: Environment) -> Moment:
    return episode.digest(), episode.state_key(), episode.admissible(), episode.process_reward()


def _trace(episode: Environment, task: Task, actions: Sequence[str]) -> list[object]:
    """All that is seen on the way, up to the end of the episode."""
    return [episode.reset(task), _moment(episode), *_rest(episode, actions)]


def _rest(episode: Environment, actions: Sequence[str]) -> list[object]:
    """What is seen from here on, up to the end of the episode."""
    trace: list[object] = []
    for action in actions:
        result = episode.step(action)
        trace += [result, _moment(episode)]
        if result.done:
            break
    return trace


def _future(episode: Environment, action: str) -> tuple[object, ...]:
    """What an action would lead to, steps not counted."""
    fork = episode.fork()
    result = fork.step(action)
    return result, fork.state_key(), fork.admissible()


def _answer(task: Task, episode: Environment, action: str) -> StepResult:
    begin = time.monotonic()
    result = episode.step(action)
    seconds = time.monotonic() - begin
    shown = repr(action[:40])
    _require(seconds <= MOST_STEP_SECONDS, task, f"{shown} took {seconds:.0f} seconds")
    _require(len(result.observation) <= MOST_OBSERVATION_CHARACTERS, task, f"the answer to {shown} is too long")
    _require(0.0 <= result.reward <= 1.0, task, f"{shown} pays {result.reward}")
    progress = result.process_reward
    _require(progress is None or 0.0 <= progress <= 1.0, task, f"the process reward is {progress} after {shown}")
    _require(result.done or not result.success, task, f"{shown} succeeds without an end")
    return result


def _same(task: Task, what: str, expected: object, found: object) -> None:
    if expected != found:
        raise ContractError(f"{task.task_id}: {what} differs: {_short(found)} instead of {_short(expected)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _require(kept: bool, task: Task, problem: str) -> None:
    if not kept:
        raise ContractError(f"{task.task_id}: {problem}")


def _refused(task: Task, what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except InfrastructureError:
        return
    except Exception as error:
        raise ContractError(f"{task.task_id}: {what} raises {type(error).__name__}: {error}") from error
    raise ContractError(f"{task.task_id}: {what} is not refused by InfrastructureError")


def _user_error(task: Task, what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except AgentRLError:
        return
    except Exception as error:
        raise ContractError(f"{task.task_id}: {what} raises {type(error).__name__}: {error}") from error
    raise ContractError(f"{task.task_id}: {what} is not refused by AgentRLError")
