"""Allocation regret of 3SPO's state scores on stationary bandits, and how fast the share of mastered states decays.

Run: PYTHONPATH=. python benchmarks/allocation_regret.py [--rounds 10000] [--runs 20] [--out results/regret]

A state has K successors (arms) that succeed with fixed probabilities. In round i every arm is visited and given n(s)
responses, whose outcomes are counted: table, scores and allocation are those of training (`algorithms.state_table`,
`algorithms.state_scores`), behind a gate that no count of failures closes. An arm's share is S(a) / sum S; an oracle
gives the whole share to the arm that succeeds least, and the regret after I rounds is the sum of all other shares.
Claims (3SPO, arXiv 2606.09961): with t the round of the state, an arm that succeeds by D more often than the least
successful one has a share that decays at least like t^(-alpha D / 2), and the regret is O(log I) for alpha D >= 2.
Exact statistics would give t^(-alpha D), so that the regret is log I at alpha D = 1 and bounded above it.
The last row shows what the floor of one response per visited state is for: there a round is one response, drawn in
proportion to S, and a state that was lucky at first is never looked at again.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentbench_rl.algorithms.state_scores import StateScores
from agentbench_rl.algorithms.state_table import StateTable
from agentbench_rl.config.topology import Expand

ARMS = (0.3, 0.5, 0.7, 0.9)
#: Clock, alpha times the smallest gap, and whether every visited state gets a response.
CASES = (
    *(("visits", 1.0, True), ("visits", 2.0, True), ("iteration", 1.0, True), ("iteration", 2.0, True)),
    ("iteration", 2.0, False),
)
#: Rounds before this one are left out of slopes and fits: laws of large numbers have not set in.
FIRST = 100
_CHECKPOINTS = 40
_SHAPES = {"log I": np.log, "sqrt I": np.sqrt, "I": np.positive}


@dataclass(frozen=True)
class Allocation:
    """Means over runs at checkpoints [C], in rounds.

    regret: shares so far of all arms but the least successful one [C]. shares: of every arm [C, K]. trained: responses
    of every arm so far that came in groups of two and more, which alone are trained on [C, K].
    """

    rounds: np.ndarray
    regret: np.ndarray
    shares: np.ndarray
    trained: np.ndarray

    def after(self, first: int) -> Allocation:
        """The checkpoints from the round `first` on."""
        late = self.rounds >= first
        return Allocation(self.rounds[late], self.regret[late], self.shares[late], self.trained[late])


def search_settings(strength: float, clock: str, arms: Sequence[float] = ARMS) -> Expand:
    """Settings of the search with alpha = strength / smallest gap, and no gate."""
    least, second = sorted(arms)[:2]
    alpha = strength / (second - least)
    score = {"alpha": alpha, "clock": clock, "max_failures": 10**9, "count": "leaf"}
    return Expand.model_validate({"kind": "expand", "score": score})


def simulate(
    settings: Expand, rounds: int, runs: int, arms: Sequence[float] = ARMS, *, floor: bool = True
) -> Allocation:
    """Play `runs` bandits, seeded by their number; the checkpoints are equally spaced in log I.

    floor: every arm is visited in every round, as in training; else a round is one response, drawn by the shares.
    """
    at = np.unique(np.geomspace(10, rounds, _CHECKPOINTS).round().astype(np.int64))
    played = [_play(settings, at, arms, random.Random(run), floor) for run in range(runs)]
    shares, regret, trained = (np.mean(values, axis=0) for values in zip(*played, strict=True))
    return Allocation(at, regret, shares, trained)


def _play(
    settings: Expand, at: np.ndarray, arms: Sequence[float], generator: random.Random, floor: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares [C, K], regret [C] and trained responses [C, K] of one bandit."""
    table, keys = StateTable(), [f"arm {number}" for number in range(len(arms))]
    worst = min(range(len(arms)), key=arms.__getitem__)
    regret, trained = 0.0, np.zeros(len(arms))
    kept: list[tuple[np.ndarray, float, np.ndarray]] = []
    for number in range(1, int(at[-1]) + 1):
        scores = StateScores(table, settings.score, iteration=number - 1)
        given = np.array([scores.score(key) for key in keys])
        shares = given / given.sum()
        regret += 1.0 - shares[worst]
        counts = [scores.allocation(key, settings) for key in keys]
        if not floor:
            drawn = generator.choices(range(len(arms)), given)[0]
            counts = [int(arm == drawn) for arm in range(len(arms))]
        for arm, count in enumerate(counts):
            trained[arm] += count if count > 1 else 0
            outcomes = [generator.random() < arms[arm] for _ in range(count)]
            table.count([((keys[arm],), success) for success in outcomes], {}, "leaf")
        if number == at[len(kept)]:
            kept.append((shares, regret, trained.copy()))
    all_shares, all_regrets, all_trained = zip(*kept, strict=True)
    return np.array(all_shares), np.array(all_regrets), np.array(all_trained)


def fits(rounds: np.ndarray, regret: np.ndarray) -> dict[str, float]:
    """R^2 of least-squares fits a + b f(I) to the regret [C], by the name of f."""
    result = {}
    for name, shape in _SHAPES.items():
        design = np.stack([np.ones(len(rounds)), shape(rounds.astype(np.float64))], axis=1)
        residual = regret - design @ np.linalg.lstsq(design, regret, rcond=None)[0]
        result[name] = float(1.0 - residual @ residual / np.square(regret - regret.mean()).sum())
    return result


def exponent(rounds: np.ndarray, values: np.ndarray) -> float:
    """Exponent of a power law: slope of log values [C] over log rounds [C]."""
    return float(np.polyfit(np.log(rounds), np.log(values), 1)[0])


def summary(allocation: Allocation, settings: Expand, arms: Sequence[float] = ARMS) -> dict[str, Any]:
    """What is printed of one setting."""
    late = allocation.after(FIRST)
    worst = min(arms)
    decay = {
        f"{arm:g}": {"exponent": exponent(late.rounds, share), "claimed": -settings.score.alpha * (arm - worst) / 2}
        for arm, share in zip(arms, late.shares.T, strict=True)
        if arm > worst
    }
    points = [int(np.searchsorted(late.rounds, number)) for number in (100, 1000, late.rounds[-1])]
    regret = {str(late.rounds[point]): float(late.regret[point]) for point in points if point < len(late.rounds)}
    trained = dict(zip(map("{:g}".format, arms), allocation.trained[-1].tolist(), strict=True))
    shape = fits(late.rounds, late.regret)
    return {"alpha": settings.score.alpha, "regret": regret, "r2": shape, "decay": decay, "trained": trained}


def draw(results: dict[tuple[str, float], Allocation], path: Path) -> None:
    """Draw regret over log I, and the shares of the arms over I in logarithmic axes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for (clock, strength), allocation in results.items():
        left.plot(allocation.rounds, allocation.regret, label=f"t: {clock}, alpha × gap = {strength:g}")
    for arm, share in zip(ARMS, results["visits", 1.0].shares.T, strict=True):
        right.plot(results["visits", 1.0].rounds, share, label=f"succeeds in {100 * arm:.0f} %")
    left.set(xscale="log", xlabel="rounds I", ylabel="allocation regret")
    right.set(xscale="log", yscale="log", xlabel="round t", ylabel="share (visits, alpha × gap = 1)")
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8)
        axes.grid(color="#E8E8E8")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Simulate every clock and strength, print a table, write numbers and a figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results/regret"))
    arguments = parser.parse_args()
    results, numbers = {}, []
    print(f"arms {ARMS}, {arguments.runs} runs of {arguments.rounds} rounds; fits from round {FIRST} on")
    print("clock      alpha×gap  regret at the end   R2 log / sqrt / linear   exponents of shares (claimed at most)")
    for clock, strength, floor in CASES:
        settings = search_settings(strength, clock)
        allocation = simulate(settings, arguments.rounds, arguments.runs, floor=floor)
        found = summary(allocation, settings)
        numbers.append({"clock": clock, "strength": strength, "floor": floor, **found})
        shape = " / ".join(f"{found['r2'][name]:.3f}" for name in _SHAPES)
        decay = ", ".join(f"{arm['exponent']:.2f} ({arm['claimed']:.1f})" for arm in found["decay"].values())
        note = "" if floor else "   one drawn response a round"
        print(f"{clock:10} {strength:<10g} {allocation.regret[-1]:<19.2f} {shape:24} {decay}{note}")
        if floor:
            results[clock, strength] = allocation
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "allocation_regret.json").write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    draw(results, arguments.out / "allocation_regret.png")
    print(f"{arguments.out}/allocation_regret.json, .png")


if __name__ == "__main__":
    main()
