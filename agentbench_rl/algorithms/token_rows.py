"""Which flat token belongs to which response and episode, and where rewards stand among an episode's tokens.

The tokens of an episode are those of its responses, from root to leaf, the members of one event one after another;
prompt tokens are skipped. A turn's reward stands on the last token of its event's responses. Where these are empty it
stands on the token before them in the episode: a reward never stands on padding; one with no token before is counted.
A response shared by several episodes gets the mean of its credits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentbench_rl.algorithms.ragged import blocks
from agentbench_rl.algorithms.rewards import kl_rewards
from agentbench_rl.algorithms.whitening import Moments, pool, segment_moments

if TYPE_CHECKING:
    from agentbench_rl.algorithms.batch import Batch

_PART = 1 << 20
#: A mean of more standard deviations than this is taken from the numbers before they are rounded to float32.
_FAR = 4.0


@dataclass(frozen=True)
class Part:
    """Whole episodes that fit a processor's cache.

    turns: which of the Q responses; episodes: which of the E episodes; token [n]: flat positions of their tokens, in
    episode order; length [k] of each response; episode_length [e]: tokens of each episode.
    """

    turns: slice
    episodes: slice
    token: slice | np.ndarray
    length: np.ndarray
    episode_length: np.ndarray


#: Credits of a part's tokens, one or more arrays [n].
PartCredit = Callable[[Part], Sequence[np.ndarray]]


@dataclass(frozen=True)
class TokenRows:
    """The Q pairs (response, episode) with tokens, in episode order.

    pair [Q]: position among the P pairs of `TrajectoryRows`; start [Q] and length [Q] >= 1 of the response's flat
    tokens; turns [E] >= 1: responses of each episode that has tokens; episode [E]: its position in the episodes;
    carrier [P] and closing [P]: which of the Q carries a pair's own charges, and the reward of the event it leads,
    -1 where none can; sharing: episodes of each row [rows], or None where every row lies on one.
    """

    pair: np.ndarray
    start: np.ndarray
    length: np.ndarray
    turns: np.ndarray
    episode: np.ndarray
    carrier: np.ndarray
    closing: np.ndarray
    sharing: np.ndarray | None

    def parts(self) -> Iterator[Part]:
        """The episodes, some at a time."""
        last_turn = np.cumsum(self.turns)
        tokens = np.cumsum(self.length)[last_turn - 1]
        first, turn, token = 0, 0, 0
        while first < len(self.turns):
            after = max(int(np.searchsorted(tokens, token + _PART, side="right")), first + 1)
            turns = slice(turn, int(last_turn[after - 1]))
            lengths = np.diff(tokens[first:after], prepend=token)
            yield Part(
                turns,
                slice(first, after),
                _positions(self.start[turns], self.length[turns]),
                self.length[turns],
                lengths,
            )
            first, turn, token = after, turns.stop, int(tokens[after - 1])

    def credits(self, batch: Batch, credit: PartCredit, outputs: int, *, whiten: bool) -> list[np.ndarray]:
        """What `credit` says of the tokens of every part, as `outputs` flat arrays [S], float32; the first whitened."""
        results, moments = self._collected(batch, credit, outputs)
        if not whiten or not len(moments.count):
            return results
        mean, std = moments.pooled()
        if abs(mean) > _FAR * std:
            centred, _ = self._collected(batch, lambda part: [(credit(part)[0] - mean) / std], 1)
            return [*centred, *results[1:]]
        for block in blocks(len(results[0])):
            results[0][block] = (results[0][block].astype(np.float64) - mean) / std
        return results

    def _collected(self, batch: Batch, credit: PartCredit, outputs: int) -> tuple[list[np.ndarray], Moments]:
        """Flat arrays, in which a token has the mean of its credits, and moments of the credits in the first."""
        results = [np.zeros(int(batch.lengths.sum()), dtype=np.float32) for _ in range(outputs)]
        moments = [Moments(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))]
        for part in self.parts():
            credited = credit(part)
            moments.append(segment_moments(credited[0], part.length))
            for result, items in zip(results, credited, strict=True):
                if self.sharing is None:
                    result[part.token] = items
                else:
                    np.add.at(result, np.r_[part.token], items.astype(np.float32))
        if self.sharing is not None:
            shared = np.repeat(self.sharing, batch.lengths)
            for result in results:
                result /= shared
        return results, pool(moments)


def _positions(start: np.ndarray, length: np.ndarray) -> slice | np.ndarray:
    """Flat positions of the tokens of responses; a slice where they follow one another."""
    end = np.cumsum(length)
    shift = start - (end - length)
    if (shift == shift[0]).all():
        return slice(int(start[0]), int(start[0] + end[-1]))
    return np.asarray(np.arange(end[-1]) + np.repeat(shift, length))


def token_rows(batch: Batch) -> TokenRows:
    """The layout of a batch."""
    rows, lengths = batch.rows, batch.lengths
    order = np.lexsort((-rows.level, rows.episode))
    filled = lengths[rows.row[order]] > 0
    carrier = _carriers(filled, rows.episode[order])
    own, closing = np.full(len(order), -1), np.full(len(order), -1)
    own[order] = carrier
    leads = np.flatnonzero(rows.lead[order])
    closing[order[leads]] = carrier[np.append(leads[1:], len(order)) - 1]
    pair = order[filled]
    opening = np.flatnonzero(np.diff(rows.episode[pair], prepend=-1))
    sharing = np.bincount(rows.row, minlength=len(lengths))
    return TokenRows(
        pair=pair,
        start=(np.cumsum(lengths) - lengths)[rows.row[pair]],
        length=lengths[rows.row[pair]],
        turns=np.diff(opening, append=len(pair)),
        episode=rows.episode[pair[opening]],
        carrier=own,
        closing=closing,
        sharing=sharing if (sharing > 1).any() else None,
    )


def _carriers(filled: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """Number, among the filled ones, of each pair itself or else of the last filled one before it in its episode."""
    number = np.cumsum(filled) - 1
    opening = np.flatnonzero(np.diff(episode, prepend=-1))
    before = np.repeat(number[opening] - filled[opening], np.diff(opening, append=len(episode)))
    return np.where(number > before, number, -1)


@dataclass(frozen=True)
class PlacedRewards:
    """Reward on the last token of every response [Q], and of every token [S] the KL part, None where there is none."""

    last: np.ndarray
    kl: np.ndarray | None
    diagnostics: dict[str, float]

    def of_tokens(self, part: Part) -> np.ndarray:
        """Rewards of a part's tokens [n]."""
        end = np.cumsum(part.length)
        placed = np.zeros(end[-1]) if self.kl is None else self.kl[part.token].astype(np.float64)
        placed[end - 1] += self.last[part.turns]
        return placed


def row_rewards(batch: Batch, layout: TokenRows) -> PlacedRewards:
    """The row score on the last token of every response: the return of the episode stands on each."""
    scores = batch.episode_scores + batch.local_scores
    empty = batch.lengths[batch.rows.row] == 0
    return _placed(batch, scores[layout.pair], int(np.count_nonzero(scores[empty])))


def turn_rewards(batch: Batch, layout: TokenRows) -> PlacedRewards:
    """The reward of every turn on its last token, and there too what the turn's rows alone are charged or paid."""
    size, leads = len(layout.pair), batch.rows.lead
    last, lost = np.zeros(size), 0
    for rewards, carrier in (
        (batch.turn_rewards[leads], layout.closing[leads]),
        (batch.local_scores, layout.carrier),
    ):
        carried = carrier >= 0
        last += np.bincount(carrier[carried], rewards[carried], size)
        lost += int(np.count_nonzero(rewards[~carried]))
    return _placed(batch, last, lost)


def _placed(batch: Batch, last: np.ndarray, lost: int) -> PlacedRewards:
    kl = kl_rewards(batch.scores, batch.reward) if batch.reward.kl_coefficient > 0 else None
    empty = int(np.count_nonzero(batch.lengths == 0))
    return PlacedRewards(last, kl, {"empty_responses": float(empty), "uncredited_rewards": float(lost)})
