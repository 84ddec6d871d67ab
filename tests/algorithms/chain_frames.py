"""Rollouts and episodes of chains, built from a short description, and a slow plain-Python reference."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass, field

import pandas as pd

from agentbench_rl.config.algorithm import AlgorithmConfig

FAULTS = {"env_error", "timeout", "grader_error"}


@dataclass
class Chain:
    """One episode: group, one reward per turn, and optionally anchors, validity and ending."""

    group: str
    rewards: list[float]
    anchors: list[str] = field(default_factory=list)
    valid: list[bool] = field(default_factory=list)
    ending: str = "success"


def frames(chains: list[Chain], prefix: str = "") -> tuple[pd.DataFrame, pd.DataFrame]:
    rows, episodes = [], []
    for number, chain in enumerate(chains):
        tree, fault = f"{prefix}{number}", chain.ending in FAULTS
        for step, reward in enumerate(chain.rewards):
            last = step == len(chain.rewards) - 1
            rows.append(
                {
                    "turn_id": f"{tree}/{step}",
                    "parent_id": f"{tree}/{step - 1}" if step else None,
                    "task_id": f"{prefix}{chain.group}",
                    "group_id": f"{prefix}{chain.group}",
                    "tree_id": tree,
                    "branch": 0,
                    "step": step,
                    "state_key": f"{tree}/{step}",
                    "anchor_key": chain.anchors[step] if chain.anchors else f"{tree}/{step}",
                    "valid": chain.valid[step] if chain.valid else True,
                    "reward": None if fault and last else reward,
                }
            )
        episodes.append(
            {
                "episode_id": tree,
                "leaf_turn_id": f"{tree}/{len(chain.rewards) - 1}",
                "ending": chain.ending,
                "return": None if fault else sum(chain.rewards),
            }
        )
    rollouts = pd.DataFrame(rows).astype({"reward": float})
    return rollouts, pd.DataFrame(episodes).astype({"return": float})


def algorithm(estimator: str, penalty: float = 0.0, scale: float = 1.0, **advantage: object) -> AlgorithmConfig:
    return AlgorithmConfig.model_validate(
        {
            "source": "test",
            "reward": {"scale": scale, "invalid_action_penalty": penalty},
            "advantage": {"estimator": estimator, **advantage},
        }
    )


def slow_advantages(chains: list[Chain], config: AlgorithmConfig) -> list[float]:
    """The specification in loops: advantages of all rows of the episodes without a fault, in order."""
    reward, settings = config.reward, config.advantage
    gamma, epsilon = getattr(settings, "gamma", 1.0), getattr(settings, "epsilon", 0.0)
    with_std = settings.estimator == "group_zscore" or (
        settings.estimator == "gigpo" and settings.normalisation == "mean_std"
    )
    healthy = [chain for chain in chains if chain.ending not in FAULTS]
    scores: dict[str, list[list[float]]] = {}
    steps: dict[tuple[str, str], list[float]] = {}
    step_returns: list[list[float]] = []
    for chain in healthy:
        fines = [0.0 if ok else reward.invalid_action_penalty for ok in chain.valid]
        scores.setdefault(chain.group, []).append([reward.scale * sum(chain.rewards) - fine for fine in fines])
        carried, returns = 0.0, []
        for paid in reversed(chain.rewards):
            carried = reward.scale * paid + gamma * carried
            returns.insert(0, carried)
        step_returns.append([value - fine for value, fine in zip(returns, fines, strict=True)])
        for anchor, value in zip(chain.anchors, step_returns[-1], strict=True):
            steps.setdefault((chain.group, anchor), []).append(value)
    result, seen = [], dict.fromkeys(scores, 0)
    for chain, returns in zip(healthy, step_returns, strict=True):
        rows = scores[chain.group]
        counted = [row[0] for row in rows] if settings.statistics == "per_trajectory" else list(itertools.chain(*rows))
        own = rows[seen[chain.group]]
        seen[chain.group] += 1
        for score, value, anchor in zip(own, returns, chain.anchors, strict=True):
            advantage = _relative(score, counted, config, with_std)
            if settings.estimator == "gigpo":
                others = steps[chain.group, anchor]
                step = _normalised(value, others, epsilon, with_std) if len(others) > 1 else 0.0
                advantage += settings.omega * step
            result.append(advantage)
    return result


def _relative(score: float, counted: list[float], config: AlgorithmConfig, with_std: bool) -> float:
    settings = config.advantage
    epsilon = getattr(settings, "epsilon", 0.0)
    if len(counted) == 1:
        raw = score / (1 + epsilon) if with_std else score
        return raw if settings.singleton == "raw" else 0.0
    if settings.estimator == "leave_one_out":
        return len(counted) / (len(counted) - 1) * (score - statistics.mean(counted))
    return _normalised(score, counted, epsilon, with_std)


def _normalised(value: float, counted: list[float], epsilon: float, with_std: bool) -> float:
    centred = value - statistics.mean(counted)
    equal = len(set(counted)) == 1
    return centred / (statistics.stdev(counted) + epsilon) if with_std and not equal else centred
