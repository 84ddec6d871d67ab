"""A stored path played once more: the moment after it, to go on from where an earlier process sampled it.

Nothing is sampled and nothing tokenised anew: the stored response ids stand in the context. Whatever the environment
or the prompt does differently is a fault, never a silent other state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agentbench_rl.envs.base import Environment
from agentbench_rl.policies.base import Completion
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.rollout.episode import Boundary, EpisodeSpec, PlaySettings, Row, RunningEpisode
from agentbench_rl.types import InfrastructureError, Task

#: What a row says of the prompt and the state that its response met, and of what that led to.
_COMPARED = ("extends_parent", "state_key", "anchor_key", "action", "valid", "observation", "next_state_key", "done")


def replay_boundary(
    task: Task, rows: Sequence[Row], environment: Environment, codec: ChatCodec, settings: PlaySettings
) -> Boundary:
    """Return the moment after `rows`, the turns of one path from its root, in order; the environment is closed.

    The rows stand in it as they are, but for their rewards, which have double precision again: returns of what goes on
    from there are summed as if nothing had been stored.
    Raises InfrastructureError where a prompt, a state, an observation or a reward differs from the stored one.
    """
    try:
        return _replayed(task, rows, environment, codec, settings)
    finally:
        environment.close()


def _replayed(
    task: Task, rows: Sequence[Row], environment: Environment, codec: ChatCodec, settings: PlaySettings
) -> Boundary:
    group, tree = (rows[0]["group_id"], rows[0]["tree_id"]) if rows else ("", "")
    episode = RunningEpisode(EpisodeSpec(task, group, tree), environment, codec, settings)
    for row in rows:
        if episode.ending is not None or not episode.requests():
            raise InfrastructureError(f"turn {row['turn_id']} cannot be replayed: the path ended before it")
        ids = list(row["response_ids"])
        logprobs = list(row["response_logprobs"])
        episode.advance([Completion(ids, logprobs, [0.0] * len(ids), finished=ids[-1:] == [codec.end_id])])
        _verify(row, episode.rows[-1])
    if episode.ending is not None:
        raise InfrastructureError(f"task {task.task_id}: the replayed path ended: {episode.ending}")
    exact = (row | {"reward": played["reward"]} for row, played in zip(rows, episode.rows, strict=True))
    return replace(episode.boundary(), rows=tuple(exact))


def _verify(stored: Row, replayed: Row) -> None:
    pairs = {name: (stored[name], replayed[name]) for name in _COMPARED}
    pairs["prompt_ids"] = (list(stored["prompt_ids"]), list(replayed["prompt_ids"]))
    # Files hold rewards in single precision.
    pairs["reward"] = (np.float32(stored["reward"]), np.float32(replayed["reward"]))
    for name, (before, now) in pairs.items():
        if before != now:
            raise InfrastructureError(
                f"turn {stored['turn_id']}: {name} was {str(before)[:200]}, and is {str(now)[:200]} when it is replayed"
            )
