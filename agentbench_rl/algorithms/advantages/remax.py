"""A_i = s_i - R(greedy): row score minus the scaled return of the greedy episode of the same group.

Source: ReMax (arXiv 2310.10505, section 3). The greedy episode is played with the policy of the same iteration and is
not trained on; where it is missing (a fault of the machinery) its group gets nothing.
"""

from __future__ import annotations

import numpy as np

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.config.advantage import Remax


def remax(batch: Batch, settings: Remax) -> Credit:
    """Difference to the greedy return [P]. Diagnostics: groups without a greedy episode."""
    baseline = batch.rollouts["group_id"].map(batch.greedy).to_numpy(dtype=np.float64, na_value=np.nan)
    baseline = batch.reward.scale * baseline[batch.rows.row]
    missing = np.isnan(baseline)
    advantage = np.where(missing, 0.0, batch.row_scores - baseline)
    lost = len(np.unique(batch.group[missing]))
    return Credit(np.asarray(advantage), diagnostics={"groups_without_baseline": float(lost)})
