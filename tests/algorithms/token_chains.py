"""Episodes of known tokens as frames (rollouts, episodes, scores), and methods that give every token its own credit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pandas as pd
from chain_frames import FAULTS

from agentbench_rl.config.algorithm import AlgorithmConfig


@dataclass
class Turn:
    """One response: reward of its turn and, of every token, the critic's value and two log-probs."""

    reward: float
    values: list[float]
    valid: bool = True
    old: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)


@dataclass
class TokenChain:
    group: str
    turns: list[Turn]
    ending: str = "success"
    final_value: float | None = None


def token_frames(chains: list[TokenChain]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    rows, episodes, scores = [], [], []
    for number, chain in enumerate(chains):
        fault, length = chain.ending in FAULTS, len(chain.turns)
        for step, turn in enumerate(chain.turns):
            last = step == length - 1
            rows.append(
                {
                    "turn_id": f"{number}/{step}",
                    "parent_id": f"{number}/{step - 1}" if step else None,
                    "task_id": chain.group,
                    "group_id": chain.group,
                    "tree_id": str(number),
                    "step": step,
                    "response_ids": list(range(len(turn.values))),
                    "valid": turn.valid,
                    "reward": None if fault and last else turn.reward,
                }
            )
            scores.append(
                {
                    "turn_id": f"{number}/{step}",
                    "old_logprobs": turn.old or [0.0] * len(turn.values),
                    "reference_logprobs": turn.reference or [0.0] * len(turn.values),
                    "values": turn.values,
                    "final_value": chain.final_value if last else None,
                }
            )
        paid = None if fault else sum(turn.reward for turn in chain.turns)
        leaf = f"{number}/{length - 1}"
        episodes.append({"episode_id": str(number), "leaf_turn_id": leaf, "ending": chain.ending, "return": paid})
    return (
        pd.DataFrame(rows).astype({"reward": float}),
        pd.DataFrame(episodes).astype({"return": float}),
        pd.DataFrame(scores).astype({"final_value": float}),
    )


def method(
    estimator: str, penalty: float = 0.0, scale: float = 1.0, kl: float = 0.0, **advantage: object
) -> AlgorithmConfig:
    return AlgorithmConfig.model_validate(
        {
            "source": "test",
            "reward": {"scale": scale, "invalid_action_penalty": penalty, "kl_coefficient": kl},
            "advantage": {"estimator": estimator, **advantage},
            "critic": {} if estimator == "gae" else None,
        }
    )


def random_chains(seed: int, groups: int = 3, longest: int = 50) -> list[TokenChain]:
    """Groups of 1 to 5 episodes of 1 to `longest` turns: empty responses, invalid actions, every kind of ending."""
    generator = random.Random(seed)

    def number() -> float:
        return generator.randint(-96, 96) / 64  # exact in float32

    def turn() -> Turn:
        tokens = generator.choice([0, 1, 1, 2, 3, 7])
        values, old, reference = ([number() for _ in range(tokens)] for _ in range(3))
        return Turn(generator.choice([0.0, 0.0, 0.0, 1.0, 0.25]), values, generator.random() < 0.8, old, reference)

    chains = []
    for group in range(generator.randint(1, groups)):
        for _ in range(generator.randint(1, 5)):
            turns = [turn() for _ in range(generator.choice([1, 2, 3, 5, longest]))]
            ending = generator.choice(["success", "failure", "truncated_turns", "truncated_tokens", "env_error"])
            chains.append(TokenChain(f"g{group}", turns, ending, number() if ending.startswith("truncated") else None))
    return [TokenChain("g0", [Turn(1.0, [0.5, 0.25], True, [-0.5, -1.0], [-0.25, -1.5])]), *chains]
