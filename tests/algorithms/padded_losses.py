"""A second, plain implementation of every policy loss: float64 matrices [rows, L] with a mask, and loops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentbench_rl.algorithms.losses import TrainedTokens


@dataclass
class Padded:
    """Matrices [rows, L]; weights [rows]."""

    logp: Tensor
    old: Tensor
    reference: Tensor
    entropy: Tensor
    advantage: Tensor
    scores: Tensor
    behaviour: Tensor
    gate: Tensor
    mask: Tensor
    weight: Tensor


def padded(tokens: TrainedTokens) -> Padded:
    """The tokens as matrices, with junk where there is none."""
    shape = (len(tokens.lengths), int(tokens.lengths.max()) + 1)
    mask = torch.arange(shape[1])[None] < tokens.lengths[:, None]

    def matrix(values: Tensor) -> Tensor:
        filled = torch.full(shape, -3.0, dtype=torch.float64)
        for row in range(shape[0]):
            filled[row, : int(tokens.lengths[row])] = values[tokens.row == row].double().detach()
        return filled

    names = ("logp", "old_logp", "reference_logp", "entropy", "advantage", "entropy_scores")
    matrices = [matrix(getattr(tokens, name)) for name in (*names, "behaviour_logp", "gate")]
    matrices[0].requires_grad_()
    weight = torch.stack([tokens.weight[tokens.row == row][0] for row in range(shape[0])])
    return Padded(*matrices[:7], gate=matrices[7] > 0, mask=mask.double(), weight=weight)


def naive_loss(p: Padded, loss: dict[str, Any]) -> Tensor:
    """Loss of the whole step under the settings `loss`."""
    matrix = KINDS[loss["kind"]](p, loss)
    if loss.get("sequence_mask") is not None:
        for row, count in enumerate(p.mask.sum(1)):
            a = (p.advantage[row] * p.mask[row]).sum() / count
            drift = ((p.old[row] - p.logp[row].detach()) * p.mask[row]).sum() / count
            if a < 0 and drift > loss["sequence_mask"]:
                matrix = torch.cat([matrix[:row], matrix[row : row + 1] * 0.0, matrix[row + 1 :]])
    total = naive_aggregate(matrix, p, loss)
    difference = p.logp - p.reference
    kl = {"k1": difference, "k2": 0.5 * difference**2, "k3": torch.exp(-difference) + difference - 1}
    total = total + loss["kl_coefficient"] * naive_aggregate(kl[loss["kl_estimator"]], p, loss)
    return total - loss["entropy_coefficient"] * naive_aggregate(p.entropy, p, loss)


def naive_aggregate(matrix: Tensor, p: Padded, loss: dict[str, Any]) -> Tensor:
    if loss["aggregation"] == "token_mean":
        weights = p.mask * p.weight[:, None]
        return (matrix * weights).sum() / weights.sum()
    per_row = (matrix * p.mask).sum(1)
    if loss["aggregation"] == "sequence_mean_token_mean":
        per_row = per_row / p.mask.sum(1)
    if loss["aggregation"] == "sequence_mean_token_sum_norm":
        per_row = per_row / loss["norm_constant"]
    return (per_row * p.weight).sum() / p.weight.sum()


def _ratio(p: Padded) -> Tensor:
    return torch.exp(p.logp - p.old)


def _clip(ratio: Tensor, a: Tensor, loss: dict[str, Any]) -> Tensor:
    objective = torch.minimum(ratio * a, torch.clip(ratio, 1 - loss["clip_low"], 1 + loss["clip_high"]) * a)
    return -objective


def _token_clip(p: Padded, loss: dict[str, Any]) -> Tensor:
    plain = _clip(_ratio(p), p.advantage, loss)
    if loss["dual_clip"] is None:
        return plain
    return torch.where(p.advantage < 0, torch.minimum(plain, -p.advantage * loss["dual_clip"]), plain)


def _moved_centre(p: Padded, loss: dict[str, Any]) -> Tensor:
    ratio, centre = torch.exp(p.logp - p.behaviour), torch.exp(p.old - p.behaviour)
    bounded = torch.minimum(torch.maximum(ratio, centre - loss["clip_low"]), centre + loss["clip_high"])
    plain = -torch.minimum(ratio * p.advantage, bounded * p.advantage)
    if loss["dual_clip"] is None:
        return plain
    return torch.where(p.advantage < 0, torch.minimum(plain, -p.advantage * loss["dual_clip"]), plain)


def _entropy_clip(p: Padded, loss: dict[str, Any]) -> Tensor:
    ratio = _ratio(p)
    low, high = 1 - loss["clip_low"], 1 + loss["clip_high"]
    upper = torch.where(p.scores > 0, high / ratio.detach() * ratio, torch.full_like(ratio, high))
    bounded = torch.minimum(torch.clip(ratio, min=low), upper)
    plain = torch.maximum(-p.advantage * ratio, -p.advantage * bounded)
    return torch.where(p.advantage < 0, torch.minimum(plain, -p.advantage * loss["dual_clip"]), plain)


def _sequence_clip(p: Padded, loss: dict[str, Any]) -> Tensor:
    """One advantage per row: the ratio keeps its whole gradient and the row's loss is repeated on its tokens."""
    rows = []
    for row, count in enumerate(p.mask.sum(1)):
        log_ratio = ((p.logp[row] - p.old[row]) * p.mask[row]).sum()
        if loss["pooling"] == "mean":
            log_ratio = log_ratio / count
        rows.append(_clip(torch.exp(log_ratio), p.advantage[row, 0], loss).expand(p.mask.shape[1]))
    return torch.stack(rows)


def _cispo(p: Padded, loss: dict[str, Any]) -> Tensor:
    weight = torch.clip(_ratio(p).detach(), 1 - loss["clip_low"], 1 + loss["clip_high"])
    return -weight * p.advantage * p.logp


def _sapo(p: Padded, loss: dict[str, Any]) -> Tensor:
    def gate(tau: float) -> Tensor:
        return 4 / tau / (1 + torch.exp(-tau * (_ratio(p) - 1)))

    gates = torch.where(p.advantage > 0, gate(loss["tau_positive"]), gate(loss["tau_negative"]))
    return -p.advantage * gates


def _gmpo(p: Padded, loss: dict[str, Any]) -> Tensor:
    rows = []
    for row, count in enumerate(p.mask.sum(1)):
        sign = torch.sign(p.advantage[row, 0])
        log_ratio = p.logp[row] - p.old[row]
        used = sign * torch.minimum(
            sign * log_ratio, sign * torch.clip(log_ratio, -loss["clip_low"], loss["clip_high"])
        )
        ratio = torch.exp((used * p.mask[row]).sum() / count)
        rows.append((-p.advantage[row, 0] * ratio).expand(p.mask.shape[1]))
    return torch.stack(rows)


def _clip_cov(p: Padded, loss: dict[str, Any]) -> Tensor:
    return _clip(_ratio(p), p.advantage, loss) * (1.0 - p.gate.double())


def _kl_cov(p: Padded, loss: dict[str, Any]) -> Tensor:
    return -p.advantage * _ratio(p) + p.gate.double() * loss["coefficient"] * torch.abs(p.logp - p.old)


def _dppo(p: Padded, loss: dict[str, Any]) -> Tensor:
    keep = torch.ones_like(p.logp)
    for row in range(len(keep)):
        for t in range(int(p.mask[row].sum())):
            now, before = math.exp(p.logp[row, t].item()), math.exp(p.old[row, t].item())
            divergence = abs(now - before)
            if loss["divergence"] == "kl":
                divergence = before * math.log(before / now) + (1 - before) * math.log((1 - before) / (1 - now))
            towards = p.advantage[row, t] * (now - before) > 0
            if towards and divergence > loss["threshold"]:
                keep[row, t] = 0.0
    weight = torch.clip(_ratio(p), max=loss["truncation"]).detach()
    return -p.advantage * weight * p.logp * keep


def _policy_gradient(p: Padded, loss: dict[str, Any]) -> Tensor:
    return -p.advantage * p.logp


KINDS = {
    "token_clip": _token_clip,
    "moved_centre": _moved_centre,
    "entropy_clip": _entropy_clip,
    "sequence_clip": _sequence_clip,
    "cispo": _cispo,
    "sapo": _sapo,
    "gmpo": _gmpo,
    "clip_cov": _clip_cov,
    "kl_cov": _kl_cov,
    "dppo": _dppo,
    "policy_gradient": _policy_gradient,
}
