"""The specification of GAE and REINFORCE++ in loops over plain Python numbers; shares no code with the package."""

from __future__ import annotations

import math
import statistics

from chain_frames import FAULTS
from token_chains import TokenChain

from agentbench_rl.config.algorithm import AlgorithmConfig

Tokens = list[list[float]]


def reference(chains: list[TokenChain], config: AlgorithmConfig) -> tuple[Tokens, Tokens | None]:
    """Advantages and value targets of all tokens of the episodes without a fault, one list per response."""
    healthy = [chain for chain in chains if chain.ending not in FAULTS]
    settings = config.advantage
    if settings.estimator == "reinforcepp_baseline":
        return _baseline(healthy, config), None
    advantages: Tokens = []
    targets: Tokens = []
    for chain in healthy:
        by_row = settings.granularity == "row"
        rewards = _row_rewards(chain, config) if by_row else _turn_rewards(chain, config)
        values = [turn.values for turn in chain.turns]
        if settings.estimator == "reinforcepp":
            zeros = [[0.0] * len(row) for row in values]
            credited, _ = _gae_over(rewards, zeros, settings.gamma, 1.0, 0.0, by_row)
        elif settings.granularity == "turn":
            credited, aims = _by_turn(chain, rewards, config)
            targets += aims
        else:
            if settings.granularity == "bi_level":
                rewards = _returns_of_turns(chain, rewards, config)
            after = _after(chain, config) if settings.granularity == "token" else 0.0
            separate = settings.granularity != "token"
            credited, aims = _gae_over(rewards, values, settings.gamma, settings.lam, after, separate)
            targets += aims
        advantages += credited
    if settings.estimator == "reinforcepp" or settings.whiten:
        advantages = _whitened(advantages)
    return advantages, targets if settings.estimator == "gae" else None


def _after(chain: TokenChain, config: AlgorithmConfig) -> float:
    cut = chain.ending in {"truncated_turns", "truncated_tokens"}
    return float(chain.final_value) if cut and config.advantage.truncation == "bootstrap" else 0.0


def _kl(chain: TokenChain, config: AlgorithmConfig) -> Tokens:
    zeros = [[0.0] * len(turn.values) for turn in chain.turns]
    beta = config.reward.kl_coefficient
    if not beta:
        return zeros
    return [[-beta * (o - r) for o, r in zip(turn.old, turn.reference, strict=True)] for turn in chain.turns]


def _fine(valid: bool, config: AlgorithmConfig) -> float:
    return 0.0 if valid else config.reward.invalid_action_penalty


def _row_rewards(chain: TokenChain, config: AlgorithmConfig) -> Tokens:
    rewards = _kl(chain, config)
    paid = config.reward.scale * sum(turn.reward for turn in chain.turns)
    for turn, row in zip(chain.turns, rewards, strict=True):
        if row:
            row[-1] += paid - _fine(turn.valid, config)
    return rewards


def _turn_rewards(chain: TokenChain, config: AlgorithmConfig) -> Tokens:
    rewards = _kl(chain, config)
    carrier: list[float] | None = None
    for turn, row in zip(chain.turns, rewards, strict=True):
        carrier = row or carrier
        if carrier:
            carrier[-1] += config.reward.scale * turn.reward - _fine(turn.valid, config)
    return rewards


def _gae(rewards: list[float], values: list[float], gamma: float, lam: float, after: float) -> list[float]:
    advantages, upcoming, carried = [0.0] * len(values), after, 0.0
    for t in reversed(range(len(values))):
        carried = rewards[t] + gamma * upcoming - values[t] + gamma * lam * carried
        advantages[t], upcoming = carried, values[t]
    return advantages


def _gae_over(
    rewards: Tokens, values: Tokens, gamma: float, lam: float, after: float, separate: bool
) -> tuple[Tokens, Tokens]:
    if separate:
        advantages = [_gae(r, v, gamma, lam, after) for r, v in zip(rewards, values, strict=True)]
    else:
        flat = _gae([r for row in rewards for r in row], [v for row in values for v in row], gamma, lam, after)
        pending = iter(flat)
        advantages = [[next(pending) for _ in row] for row in values]
    return advantages, [[a + v for a, v in zip(x, y, strict=True)] for x, y in zip(advantages, values, strict=True)]


def _by_turn(chain: TokenChain, rewards: Tokens, config: AlgorithmConfig) -> tuple[Tokens, Tokens]:
    filled = [turn for turn in chain.turns if turn.values]
    paid = [sum(row) for row in rewards if row]
    values = [turn.values[0] for turn in filled]
    settings = config.advantage
    estimates = iter(_gae(paid, values, settings.gamma, settings.lam, _after(chain, config)))
    advantages, targets = [], []
    for turn in chain.turns:
        estimate = next(estimates) if turn.values else 0.0
        advantages.append([estimate] * len(turn.values))
        targets.append([estimate + turn.values[0]] if turn.values else [])
    return advantages, targets


def _returns_of_turns(chain: TokenChain, rewards: Tokens, config: AlgorithmConfig) -> Tokens:
    """Rewards whose last token of each turn holds the turn's return instead."""
    filled = [place for place, row in enumerate(rewards) if row]
    settings = config.advantage
    paid = []
    for number, place in enumerate(filled):
        after = sum(rewards[filled[number + 1]][:-1]) if number + 1 < len(filled) else 0.0
        paid.append(rewards[place][-1] + settings.turn_gamma * after)
    values = [chain.turns[place].values[-1] for place in filled]
    estimates = _gae(paid, values, settings.turn_gamma, settings.lam, _after(chain, config))
    result = [list(row) for row in rewards]
    for place, value, estimate in zip(filled, values, estimates, strict=True):
        result[place][-1] = value + estimate
    return result


def _baseline(chains: list[TokenChain], config: AlgorithmConfig) -> Tokens:
    settings = config.advantage
    groups: dict[str, list[list[float]]] = {}
    for chain in chains:
        paid = config.reward.scale * sum(turn.reward for turn in chain.turns)
        groups.setdefault(chain.group, []).append([paid - _fine(turn.valid, config) for turn in chain.turns])
    seen = dict.fromkeys(groups, 0)
    rows: list[list[float] | None] = []
    for chain in chains:
        members = groups[chain.group]
        counted = (
            [m[0] for m in members] if settings.statistics == "per_trajectory" else [s for m in members for s in m]
        )
        own = members[seen[chain.group]]
        seen[chain.group] += 1
        alone = len(counted) == 1
        for score, turn in zip(own, chain.turns, strict=True):
            if alone and settings.singleton == "zero":
                rows.append(None)
            else:
                centred = score - (0.0 if alone else statistics.fmean(counted))
                rows.append([centred] * len(turn.values))
    whitened = iter(_whitened([row for row in rows if row is not None]))
    lengths = [len(turn.values) for chain in chains for turn in chain.turns]
    return [[0.0] * n if row is None else next(whitened) for row, n in zip(rows, lengths, strict=True)]


def _whitened(rows: Tokens) -> Tokens:
    flat = [value for row in rows for value in row]
    if not flat or max(flat) - min(flat) < 1e-12:
        return [[0.0] * len(row) for row in rows]
    mean = math.fsum(flat) / len(flat)
    variance = math.fsum((value - mean) ** 2 for value in flat) / (len(flat) - 1)
    return [[(value - mean) / math.sqrt(variance + 1e-8) for value in row] for row in rows]
