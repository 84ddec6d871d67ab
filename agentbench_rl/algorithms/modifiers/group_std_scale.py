"""A_i = A_i * std_g / max std: groups whose returns vary more count more; none varies: nothing counts.

Source: the soft variance filter of StarPO-S (arXiv 2504.20073; public code of RAGEN).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.kernels import group_statistics
from agentbench_rl.config.advantage import GroupStdScale


def group_std_scale(batch: Batch, credit: Credit, settings: GroupStdScale) -> Credit:
    """Credit scaled by the group's share of the largest std of returns."""
    everyone = np.ones(len(batch.episodes), dtype=bool)
    std = group_statistics(batch.returns, batch.episode_groups, everyone).std
    factor = (std / (std.max() or 1.0))[batch.group]
    if credit.advantage is not None:
        return replace(credit, advantage=credit.advantage * factor)
    assert credit.token_advantages is not None
    by_row = np.empty(len(batch.rollouts), dtype=np.float32)
    by_row[batch.rows.row] = factor
    return replace(credit, token_advantages=credit.token_advantages * np.repeat(by_row, batch.lengths))
