"""delta_t = r_t + gamma * V_{t+1} - V_t; A_t = delta_t + gamma * lambda * A_{t+1}; target A_t + V_t; then whitening.

A sequence is, by `granularity`: `row`, the tokens of one response, with the row score on the last one (verl-agent; no
credit across turns); `token`, the policy tokens of the whole episode (verl, RAGEN); `turn`, its turns, with V before
the first token of each (turn-PPO, arXiv 2512.17008); `bi_level`, first its turns with gamma = turn_gamma and V before
the last token of each, then the tokens of each turn, whose terminal reward is the turn's return (RAGEN, VAGEN).
Source: arXiv 1506.02438, equations 11 to 16.
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.ragged import row_sums
from agentbench_rl.algorithms.recurrence import reverse_recurrence
from agentbench_rl.algorithms.token_rows import Part, PlacedRewards, TokenRows, row_rewards, token_rows, turn_rewards
from agentbench_rl.algorithms.whitening import whiten
from agentbench_rl.config.advantage import Gae
from agentbench_rl.types import TRUNCATED_ENDINGS, AgentRLError

_CUT = [str(ending) for ending in TRUNCATED_ENDINGS]


def gae(batch: Batch, settings: Gae) -> Credit:
    """Advantages and value targets per token [S]; of `turn`, one advantage [P] and one target [rows] per turn.

    Raises AgentRLError without critic values. Diagnostics: responses without a token, rewards that no token carries.
    """
    if "values" not in batch.scores:
        raise AgentRLError("gae needs critic values (scores.parquet, column values); run the score stage")
    layout = token_rows(batch)
    rewards = (row_rewards if settings.granularity == "row" else turn_rewards)(batch, layout)
    after = _final_values(batch, layout) if settings.truncation == "bootstrap" else np.zeros(len(layout.turns))
    if settings.granularity == "turn":
        return _by_turn(batch, layout, rewards, after, settings)
    if settings.granularity == "bi_level":
        rewards = _turn_returns(batch, layout, rewards, after, settings)
    within_episode = settings.granularity == "token"

    def credit(part: Part) -> tuple[np.ndarray, np.ndarray]:
        values = batch.scores["values"][part.token].astype(np.float64)
        lengths = part.episode_length if within_episode else part.length
        last = after[part.episodes] if within_episode else np.zeros(len(lengths))
        advantages = advantage_estimates(
            rewards.of_tokens(part), values, lengths, last, gamma=settings.gamma, lam=settings.lam
        )
        return advantages, advantages + values

    advantages, targets = layout.credits(batch, credit, outputs=2, whiten=settings.whiten)
    return Credit(token_advantages=advantages, value_targets=targets, diagnostics=rewards.diagnostics)


def advantage_estimates(
    rewards: np.ndarray, values: np.ndarray, lengths: np.ndarray, after: np.ndarray, *, gamma: float, lam: float
) -> np.ndarray:
    """GAE [n] of consecutive sequences of `lengths` [k] >= 1; `after` [k]: value of the state after each."""
    following = np.append(values[1:], 0.0)
    following[np.cumsum(lengths) - 1] = after
    return reverse_recurrence(rewards + gamma * following - values, lengths, gamma * lam)


def _by_turn(batch: Batch, layout: TokenRows, rewards: PlacedRewards, after: np.ndarray, settings: Gae) -> Credit:
    values = batch.scores["values"][layout.start].astype(np.float64)
    row = batch.rows.row[layout.pair]
    paid = rewards.last if rewards.kl is None else rewards.last + row_sums(rewards.kl, batch.lengths)[row]
    estimates = advantage_estimates(paid, values, layout.turns, after, gamma=settings.gamma, lam=settings.lam)
    advantage, rows = np.zeros(len(batch.rows.row)), len(batch.rollouts)
    advantage[layout.pair] = whiten(estimates, layout.length) if settings.whiten else estimates
    shared = np.maximum(np.bincount(row, minlength=rows), 1)
    targets = np.bincount(row, estimates + values, rows) / shared
    return Credit(advantage, turn_value_targets=targets, diagnostics=rewards.diagnostics)


def _turn_returns(
    batch: Batch, layout: TokenRows, rewards: PlacedRewards, after: np.ndarray, settings: Gae
) -> PlacedRewards:
    """The rewards with the return of every turn, as turns are discounted, on its last token."""
    last_token = layout.start + layout.length - 1
    values = batch.scores["values"][last_token].astype(np.float64)
    paid = rewards.last
    if rewards.kl is not None:
        # What the tokens before a turn's last one are paid comes after the last token of the turn before.
        within = row_sums(rewards.kl, batch.lengths)[batch.rows.row[layout.pair]] - rewards.kl[last_token]
        following = np.append(within[1:], 0.0)
        following[np.cumsum(layout.turns) - 1] = 0.0
        paid = paid + rewards.kl[last_token] + settings.turn_gamma * following
    estimates = advantage_estimates(paid, values, layout.turns, after, gamma=settings.turn_gamma, lam=settings.lam)
    returns = estimates + values
    if rewards.kl is not None:
        returns = returns - rewards.kl[last_token]
    return PlacedRewards(returns, rewards.kl, rewards.diagnostics)


def _final_values(batch: Batch, layout: TokenRows) -> np.ndarray:
    """The critic's value of the state in which each episode [E] was cut at a limit; 0 where it came to an end."""
    rows = batch.rows
    leaves = np.flatnonzero((rows.level == 0) & rows.lead)
    leaf = np.zeros(len(batch.episodes), dtype=np.int64)
    leaf[rows.episode[leaves]] = rows.row[leaves]
    cut = batch.episodes["ending"].isin(_CUT).to_numpy()[layout.episode]
    values = np.full(len(batch.rollouts), np.nan) if batch.final_values is None else batch.final_values
    after = np.where(cut, values[leaf[layout.episode]], 0.0)
    if not np.isfinite(after).all():
        turn = batch.rollouts["turn_id"].iloc[int(leaf[layout.episode[np.flatnonzero(~np.isfinite(after))[0]]])]
        raise AgentRLError(
            f"advantage.truncation: bootstrap needs the critic's value of the state that turn {turn!r} led to "
            "(scores.parquet, column final_value); run the score stage"
        )
    return after
