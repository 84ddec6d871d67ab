"""The estimators of trees once more, tree by tree in plain Python, from the description of the trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tree_frames import Line, Tree

from agentbench_rl.config.algorithm import AlgorithmConfig

Credit = dict[str, tuple[float, float]]


@dataclass
class Played:
    """Return of the backbone (None: it died), returns of the fresh siblings of every complete point."""

    name: str
    tree: Tree
    backbone: float | None
    points: dict[int, list[float]]

    def leads(self, values: dict[int, float]) -> dict[int, float]:
        """Lead of the backbone at every point, by its value there."""
        return {step: values[step] - fmean(returns) for step, returns in self.points.items()}


def reference(trees: list[Tree], method: AlgorithmConfig) -> Credit:
    """Advantage and weight of every turn that lies on an episode without a fault."""
    played = [_played(f"t{number}", item, method) for number, item in enumerate(trees)]
    estimate = {"sibling": _sibling, "tree_weighted": _tree_weighted, "vine": _vine}[method.advantage.estimator]
    credit: Credit = {}
    for tree in played:
        backbone, fresh = estimate(tree, played, method.advantage)
        credit |= _of_turns(tree, backbone, fresh)
    return credit


def _played(name: str, tree: Tree, method: AlgorithmConfig) -> Played:
    reward = method.reward

    def paid(line: Line, turns: int | None = None) -> float:
        charges = sum(not valid for valid in line.valid[:turns]) * reward.invalid_action_penalty
        return reward.scale * sum(line.rewards[:turns]) - charges

    points = {
        step: [paid(tree.backbone, step) + paid(line) for line in lines]
        for step, lines in sorted(tree.fresh.items())
        if all(line.ending == "success" for line in [tree.backbone, *lines])
    }
    return Played(name, tree, paid(tree.backbone) if tree.backbone.ending == "success" else None, points)


Turn = Callable[[int], tuple[float, float]]
Fresh = Callable[[int, int, int], tuple[float, float]]


def _of_turns(tree: Played, backbone: Turn, fresh: Fresh) -> Credit:
    """backbone: of a step; fresh: of a point, the place of the sibling among its fresh ones, and a step."""
    credit, branch, shared = {}, 0, 0
    for start, lines in tree.tree.fresh.items():
        for place, line in enumerate(lines):
            branch += 1
            if line.ending != "success":
                continue
            shared = max(shared, start)
            for step in range(start, start + len(line.rewards)):
                found = fresh(start, place, step) if start in tree.points else (0.0, 0.0)
                credit[f"{tree.name}.b{branch}.{step}"] = found
    alive = tree.backbone is not None
    for step in range(len(tree.tree.backbone.rewards) if alive else shared):
        credit[f"{tree.name}.b0.{step}"] = backbone(step) if alive else (0.0, 0.0)
    return credit


def _sibling(tree: Played, played: list[Played], settings: Any) -> tuple[Turn, Fresh]:
    own = tree.backbone or 0.0
    leads = tree.leads(dict.fromkeys(tree.points, own))

    def rule(step: int) -> float:
        later = [point for point in leads if point >= step]
        if not later:
            return leads[max(leads)] if leads and settings.suffix == "suffix" else 0.0
        terms = [settings.lam ** (point - step) * leads[point] for point in later]
        return {"nearest": terms[0], "sum": sum(terms), "mean": fmean(terms)}[settings.prefix]

    def lead(point: int, place: int) -> float:
        returns = tree.points[point]
        others = [own, *returns[:place], *returns[place + 1 :]]
        return returns[place] - fmean(others)

    def backbone(step: int) -> tuple[float, float]:
        copies = [rule(step)]
        if settings.layout == "replicated":
            for point, returns in tree.points.items():
                if point > step:
                    copies += [settings.lam ** (point - step) * lead(point, place) for place in range(len(returns))]
        mates = [other.backbone for other in played if other.tree.group == tree.tree.group and other is not tree]
        known = [value for value in mates if value is not None]
        root = settings.root_weight * (own - fmean(known)) if known else 0.0
        return fmean(copies) + root, float(len(copies))

    def fresh(point: int, place: int, step: int) -> tuple[float, float]:
        carried = settings.suffix == "suffix" or step == point
        return (lead(point, place) if carried else 0.0), 1.0

    return backbone, fresh


def _backed_up(tree: Played) -> dict[int, float]:
    """Y after every point, by the point, and Y_1 at -1."""
    values, carried = {}, tree.backbone or 0.0
    for point in sorted(tree.points, reverse=True):
        values[point] = carried
        carried = fmean([carried, *tree.points[point]])
    return values | {-1: carried}


def _tree_weighted(tree: Played, played: list[Played], settings: Any) -> tuple[Turn, Fresh]:
    values = _backed_up(tree)
    leads = tree.leads(values)

    def share(step: int) -> float:
        weight = 1.0
        for point, returns in tree.points.items():
            weight /= len(returns) + 1 if point <= step else 1
        return weight

    def backbone(step: int) -> tuple[float, float]:
        before = [point for point in tree.points if point <= step]
        if before:
            return leads[before[-1]], share(step)
        others = [other for other in played if other is not tree and other.backbone is not None]
        if settings.baseline == "task":
            others = [other for other in others if other.tree.group == tree.tree.group]
        return (values[-1] - fmean([_backed_up(other)[-1] for other in others]) if others else 0.0), 1.0

    def fresh(point: int, place: int, step: int) -> tuple[float, float]:
        returns = tree.points[point]
        others = [values[point], *returns[:place], *returns[place + 1 :]]
        return returns[place] - fmean(others), share(point)

    return backbone, fresh


def _vine(tree: Played, played: list[Played], settings: Any) -> tuple[Turn, Fresh]:
    means = {point: fmean(returns) for point, returns in tree.points.items()}
    means[len(tree.tree.backbone.rewards)] = tree.backbone or 0.0

    def backbone(step: int) -> tuple[float, float]:
        known = step in means and step + 1 in means
        return (means[step + 1] - means[step], 1.0) if known else (0.0, 0.0)

    return backbone, lambda point, place, step: (0.0, 0.0)
