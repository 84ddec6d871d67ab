"""The specification of the group-level methods in loops over plain Python numbers, without any production code."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chain_frames import FAULTS, Chain

from agentbench_rl.config.algorithm import AlgorithmConfig


@dataclass
class Turn:
    """One turn of an episode that ended without a fault; `history`: its anchor and those before it, newest first."""

    episode: int
    chain: Chain
    step: int
    history: tuple[str, ...]
    score: float
    step_return: float
    local: float

    @property
    def group(self) -> str:
        return self.chain.group

    @property
    def last(self) -> bool:
        return self.step == len(self.chain.rewards) - 1


def slow_advantages(
    chains: list[Chain],
    config: AlgorithmConfig,
    iteration: int = 0,
    entropies: list[list[float]] | None = None,
    kl: list[float] | None = None,
) -> list[float]:
    """Advantages of all turns of the episodes that are compared, in order; entropies and KL charges are of these."""
    turns = _turns(chains, config, iteration, kl)
    advantages = ESTIMATORS[config.advantage.estimator](turns, chains, config)
    for modifier in config.modifiers:
        if modifier.kind == "empg":
            advantages = _empg(turns, advantages, modifier, entropies)
        else:
            advantages = _group_std_scale(turns, advantages, config)
    return advantages


def healthy(chains: list[Chain]) -> list[Chain]:
    return [chain for chain in chains if chain.ending not in FAULTS and not chain.greedy]


def _turns(chains: list[Chain], config: AlgorithmConfig, iteration: int, kl: list[float] | None) -> list[Turn]:
    gamma = getattr(config.advantage, "gamma", 1.0)
    turns: list[Turn] = []
    for episode, chain in enumerate(healthy(chains)):
        rewards = _viewed(chain, config)
        returns, carried = [], 0.0
        for paid in reversed(rewards):
            carried = paid + gamma * carried
            returns.insert(0, carried)
        for step, later in enumerate(returns):
            local = _local(chain, step, config, iteration)
            anchors = chain.anchors or [f"{episode}/{number}" for number in range(len(rewards))]
            history = tuple(reversed(anchors[: step + 1]))
            charge = kl[len(turns)] if kl else 0.0
            turns.append(Turn(episode, chain, step, history, sum(rewards) + local + charge, later + local, local))
    return turns


def _viewed(chain: Chain, config: AlgorithmConfig) -> list[float]:
    paid = chain.rewards if config.reward.view == "outcome" else chain.process
    return [config.reward.scale * value for value in paid]


def _local(chain: Chain, step: int, config: AlgorithmConfig, iteration: int) -> float:
    reward, total = config.reward, 0.0
    if chain.valid and not chain.valid[step]:
        total -= reward.invalid_action_penalty
    if reward.overlong is not None:
        free = reward.overlong.max_tokens - reward.overlong.cache_tokens
        if chain.tokens[step] > free:
            total -= reward.overlong.factor * min(1.0, (chain.tokens[step] - free) / reward.overlong.cache_tokens)
    if reward.tool_call_bonus is not None and iteration < reward.tool_call_bonus.decay_iterations:
        share = iteration / reward.tool_call_bonus.decay_iterations
        total += chain.tool_calls[step] * reward.tool_call_bonus.value * (1 + math.cos(math.pi * share)) / 2
    return total


def _counted(turns: list[Turn], group: object, config: AlgorithmConfig) -> list[float]:
    every = getattr(config.advantage, "statistics", "per_trajectory") == "per_row"
    return [turn.score for turn in turns if turn.group == group and (every or turn.step == 0)]


def _mean(values: list[float]) -> float:
    return values[0] if len(set(values)) == 1 else math.fsum(values) / len(values)


def _std(values: list[float], population: bool = False) -> float:
    mean = _mean(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / max(len(values) - (not population), 1))


def _normalised(value: float, counted: list[float], epsilon: float | None, population: bool = False) -> float:
    centred = value - _mean(counted)
    if epsilon is None or len(set(counted)) == 1:
        return centred
    return centred / (_std(counted, population) + epsilon)


def _relative(
    score: float, counted: list[float], singleton: str, epsilon: float | None, population: bool = False
) -> float:
    if len(counted) == 1:
        raw = score if epsilon is None else score / (1 + epsilon)
        return raw if singleton == "raw" else 0.0
    return _normalised(score, counted, epsilon, population)


def _group_zscore(turns: list[Turn], chains: list[Chain], config: AlgorithmConfig) -> list[float]:
    own = config.advantage
    return [_relative(t.score, _counted(turns, t.group, config), own.singleton, own.epsilon) for t in turns]


def _group_mean(turns: list[Turn], chains: list[Chain], config: AlgorithmConfig) -> list[float]:
    return [_relative(t.score, _counted(turns, t.group, config), config.advantage.singleton, None) for t in turns]


def _leave_one_out(turns: list[Turn], chains: list[Chain], config: AlgorithmConfig) -> list[float]:
    sizes = [len(_counted(turns, turn.group, config)) for turn in turns]
    centred = _group_mean(turns, chains, config)
    return [value * (n / (n - 1) if n > 1 else 1.0) for value, n in zip(centred, sizes, strict=True)]


def _gigpo(turns: list[Turn], chains: list[Chain], config: AlgorithmConfig) -> list[float]:
    own = config.advantage
    epsilon = own.epsilon if own.normalisation == "mean_std" else None
    steps: dict[tuple[str, str], list[float]] = {}
    for turn in turns:
        steps.setdefault((turn.group, turn.history[0]), []).append(turn.step_return)
    result = []
    for turn in turns:
        episode_part = _relative(turn.score, _counted(turns, turn.group, config), own.singleton, epsilon)
        step_part = _relative(turn.step_return, steps[turn.group, turn.history[0]], "zero", epsilon)
        result.append(episode_part + own.omega * step_part)
    return result


def _hgpo(turns: list[Turn], chains: list[Chain], config: AlgorithmConfig) -> list[float]:
    own = config.advantage
    epsilon = own.epsilon if own.normalisation == "mean_std" else None
    alike: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for turn in turns:
        for k in range(1, min(len(turn.history), own.history + 1) + 1):
            alike.setdefault((turn.group, turn.history[:k]), []).append(turn.step_return)
    result = []
    for turn in turns:
        items = []
        if own.base:
            items.append((0, _relative(turn.score, _counted(turns, turn.group, config), "zero", epsilon, True)))
        for k in range(1, min(len(turn.history), own.history + 1) + 1):
            same = alike[turn.group, turn.history[:k]]
            items.append((k, _relative(turn.step_return, same, "zero", epsilon, True)))
        kept = [(float(k + 1) ** own.alpha, value) for k, value in items if abs(value) > 1e-9]
        result.append(sum(w * value for w, value in kept) / (sum(w for w, _ in kept) + own.epsilon))
    return result


def _tree_zscore(turns: list[Turn], chains: list[Chain], config: AlgorithmConfig) -> list[float]:
    own = config.advantage
    result = []
    for turn in turns:
        name = turn.chain.tree or turn.episode
        leaves = [t for t in turns if t.step == 0 and t.group == turn.group]
        tree = [t.score for t in leaves if (t.chain.tree or t.episode) == name]
        value = _relative(turn.score, tree, "zero", own.epsilon)
        if own.levels == "both":
            value += _relative(turn.score, [t.score for t in leaves], "zero", own.epsilon)
        result.append(value)
    return result


def _mt_grpo(turns: list[Turn], chains: list[Chain], config: AlgorithmConfig) -> list[float]:
    own, result = config.advantage, []
    for turn in turns:
        outcome = _relative(turn.score, _counted(turns, turn.group, config), own.singleton, own.epsilon)
        if turn.last:
            result.append(outcome)
            continue
        at_step = [
            t.chain.process[t.step] for t in turns if t.group == turn.group and t.step == turn.step and not t.last
        ]
        part = _relative(turn.chain.process[turn.step], at_step, "zero", own.epsilon)
        result.append(part + own.outcome_weight * outcome)
    return result


def _opo(turns: list[Turn], chains: list[Chain], config: AlgorithmConfig) -> list[float]:
    result = []
    for turn in turns:
        episodes = [t for t in turns if t.group == turn.group and t.step == 0]
        tokens = [sum(t.chain.tokens) for t in episodes]
        if len(episodes) == 1:
            result.append(turn.score if config.advantage.singleton == "raw" else 0.0)
            continue
        equal = len({t.score for t in episodes}) == 1
        weighted = sum(n * t.score for n, t in zip(tokens, episodes, strict=True)) / (sum(tokens) or 1)
        result.append(turn.score - (episodes[0].score if equal else weighted))
    return result


def _gpg(turns: list[Turn], chains: list[Chain], config: AlgorithmConfig) -> list[float]:
    centred = _group_mean(turns, chains, config)
    groups = {turn.group for turn in turns}
    moved = {turn.group for turn, value in zip(turns, centred, strict=True) if value != 0.0}
    return [len(groups) / max(len(moved), 1) * value / config.advantage.f_norm for value in centred]


def _pass_at_k(turns: list[Turn], chains: list[Chain], config: AlgorithmConfig) -> list[float]:
    own, result = config.advantage, []
    for turn in turns:
        scores = sorted(_counted(turns, turn.group, config))
        mine = next(t.score for t in turns if t.episode == turn.episode)
        if len(scores) == 1 or scores[-1] == scores[-2] or mine != scores[-1]:
            result.append(0.0)
            continue
        lead = turn.score - scores[-2]
        result.append(lead / (_std(scores) + own.epsilon) if own.divide_by_std else lead)
    return result


def _gdpo(turns: list[Turn], chains: list[Chain], config: AlgorithmConfig) -> list[float]:
    own = config.advantage
    shares = {t.episode: _mean([float(v) for v in t.chain.valid or [True]]) for t in turns}
    components = [
        (own.outcome_weight, [t.score for t in turns]),
        (own.process_weight, [sum(t.chain.process) for t in turns]),
        (own.valid_weight, [shares[t.episode] for t in turns]),
    ]
    total = [0.0] * len(turns)
    for weight, values in components:
        for place, turn in enumerate(turns):
            firsts = [v for v, t in zip(values, turns, strict=True) if t.step == 0 and t.group == turn.group]
            total[place] += weight * _relative(values[place], firsts, "zero", own.epsilon) if weight else 0.0
    tokens = [turn.chain.tokens[turn.step] for turn in turns]
    spread = [value for value, n in zip(total, tokens, strict=True) for _ in range(n)]
    if len(set(spread)) < 2:
        return [0.0] * len(turns)
    mean, std = _mean(spread), math.sqrt(_std(spread) ** 2 + 1e-8)
    return [(value - mean) / std if n else 0.0 for value, n in zip(total, tokens, strict=True)]


def _remax(turns: list[Turn], chains: list[Chain], config: AlgorithmConfig) -> list[float]:
    greedy = {
        chain.group: sum(_viewed(chain, config)) for chain in chains if chain.greedy and chain.ending not in FAULTS
    }
    return [turn.score - greedy[turn.group] if turn.group in greedy else 0.0 for turn in turns]


def _empg(turns: list[Turn], advantages: list[float], modifier: object, entropies: list[list[float]]) -> list[float]:
    mean = [_mean(values) if values else 0.0 for values in entropies]
    low, high = min(mean), max(mean)
    normal = [(value - low) / (high - low + 1e-8) for value in mean]
    certainty = [math.exp(-modifier.k * value) for value in normal]
    scaled = []
    for place, turn in enumerate(turns):
        bonus = 0.0 if turn.last else modifier.zeta * math.exp(-modifier.future_k * normal[place + 1])
        scaled.append(advantages[place] * certainty[place] / (_mean(certainty) + 1e-8) + bonus)
    return [value - _mean(scaled) for value in scaled]


def _group_std_scale(turns: list[Turn], advantages: list[float], config: AlgorithmConfig) -> list[float]:
    returns: dict[str, list[float]] = {}
    for turn in turns:
        if turn.step == 0:
            returns.setdefault(turn.group, []).append(sum(_viewed(turn.chain, config)))
    std = {name: _std(values) for name, values in returns.items()}
    largest = max(std.values()) or 1.0
    return [value * std[turn.group] / largest for turn, value in zip(turns, advantages, strict=True)]


ESTIMATORS = {
    "group_zscore": _group_zscore,
    "group_mean": _group_mean,
    "leave_one_out": _leave_one_out,
    "gigpo": _gigpo,
    "hgpo": _hgpo,
    "tree_zscore": _tree_zscore,
    "mt_grpo": _mt_grpo,
    "opo": _opo,
    "gpg": _gpg,
    "pass_at_k": _pass_at_k,
    "gdpo": _gdpo,
    "remax": _remax,
}
