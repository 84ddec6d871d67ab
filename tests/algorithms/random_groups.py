"""Random rollouts and random group-level methods, each from a seed."""

from __future__ import annotations

import random

import pandas as pd
from chain_frames import Chain, algorithm
from group_reference import healthy
from hypothesis import strategies as st

from agentbench_rl.config.algorithm import AlgorithmConfig

_GROUPED: dict[str, list[object]] = {"statistics": ["per_trajectory", "per_row"], "singleton": ["zero", "raw"]}
_NORMALISED: dict[str, list[object]] = {"normalisation": ["mean", "mean_std"]}
CHOICES: dict[str, dict[str, list[object]]] = {
    "group_zscore": _GROUPED,
    "group_mean": _GROUPED,
    "leave_one_out": _GROUPED,
    "gigpo": {**_GROUPED, **_NORMALISED, "omega": [0.0, 0.5, 1.0]},
    "hgpo": {**_NORMALISED, "history": [0, 1, 2, 4], "alpha": [0.0, 1.0, 2.0], "base": [False, True]},
    "tree_zscore": {"levels": ["both", "intra"]},
    "mt_grpo": {"singleton": ["zero", "raw"], "outcome_weight": [0.0, 0.5, 1.0]},
    "opo": {"singleton": ["zero", "raw"]},
    "gpg": {**_GROUPED, "f_norm": [1.0, 2.0]},
    "pass_at_k": {"divide_by_std": [True, False]},
    "gdpo": {"outcome_weight": [0.5, 1.0], "process_weight": [0.0, 1.0], "valid_weight": [0.0, 1.0]},
    "remax": {},
}
ESTIMATORS = tuple(CHOICES)
_MODIFIERS: list[list[dict[str, object]]] = [
    [],
    [{"kind": "empg", "k": 0.5, "future_k": 2.0}],
    [{"kind": "group_std_scale"}],
    [{"kind": "group_std_scale"}, {"kind": "empg"}],
]
_REWARDS: list[dict[str, object]] = [
    {},
    {"view": "process"},
    {"overlong": {"max_tokens": 8, "cache_tokens": 6, "factor": 0.5}},
    {"tool_call_bonus": {"value": 0.1, "decay_iterations": 4}},
    {"kl_coefficient": 0.125},
]


def random_chains(seed: int, longest: int, faults: bool) -> list[Chain]:
    """Up to four groups of up to five episodes; some groups have a greedy baseline too."""
    draw, built = random.Random(seed), []
    endings = ["success", "failure", "truncated_turns", *(["env_error"] * faults)]
    for group in range(draw.randint(1, 4)):
        baselines = draw.randint(0, 1)
        common = draw.choice([[0.0, 0.0, 0.0, 1.0, 0.25], [0.0]])
        for number in range(draw.randint(1, 5) + baselines):
            turns = draw.randint(1, longest)
            built.append(
                Chain(
                    f"g{group}",
                    draw.choices(common, k=turns),
                    draw.choices("abcdef", k=turns),
                    draw.choices([True, False], k=turns),
                    draw.choice(endings),
                    process=draw.choices([0.0, 0.5, -0.25, 0.125], k=turns),
                    tokens=[2, *draw.choices([0, 1, 1, 2, 5, 30], k=turns - 1)],
                    tool_calls=draw.choices([0, 1, 2], k=turns),
                    tree=f"g{group}-{draw.choice('xy')}",
                    greedy=number < baselines,
                )
            )
    return built


def random_method(seed: int, estimators: tuple[str, ...], whole: bool) -> AlgorithmConfig:
    """An estimator with its settings; `whole`: modifiers and all kinds of rewards too."""
    draw = random.Random(seed)
    estimator = draw.choice(estimators)
    settings = {name: draw.choice(values) for name, values in CHOICES[estimator].items()}
    parts = {"modifiers": draw.choice(_MODIFIERS), "reward": draw.choice(_REWARDS)} if whole else {}
    return algorithm(estimator, draw.choice([0.0, 0.1]), draw.choice([1.0, 10.0]), parts, **settings)


def random_scores(seed: int, rollouts: pd.DataFrame) -> pd.DataFrame:
    """Log-probs and entropies of all tokens."""
    draw = random.Random(seed)
    columns = {name: [] for name in ("old_logprobs", "reference_logprobs", "entropies")}
    for tokens in rollouts["response_tokens"]:
        for name, lists in columns.items():
            sign = 1.0 if name == "entropies" else -1.0
            lists.append([sign * draw.randint(0, 24) / 8 for _ in range(tokens)])
    return pd.DataFrame({"turn_id": rollouts["turn_id"], **columns})


def turns_compared(chains: list[Chain]) -> list[str]:
    """Ids of the turns that are credited, in order."""
    compared = healthy(chains)
    return [
        f"{number}/{step}"
        for number, chain in enumerate(chains)
        if any(chain is other for other in compared)
        for step in range(len(chain.rewards))
    ]


def chains(longest: int = 8, faults: bool = True) -> st.SearchStrategy[list[Chain]]:
    return st.integers(0, 2**32).map(lambda seed: random_chains(seed, longest, faults))


def methods(estimators: tuple[str, ...] = ESTIMATORS, whole: bool = False) -> st.SearchStrategy[AlgorithmConfig]:
    return st.integers(0, 2**32).map(lambda seed: random_method(seed, estimators, whole))
