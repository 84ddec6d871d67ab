"""What rescales an estimator's credit: a name for each modifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentbench_rl.algorithms.batch import Batch, Credit
from agentbench_rl.algorithms.modifiers.empg import empg
from agentbench_rl.algorithms.modifiers.entropy_scale import entropy_scale
from agentbench_rl.algorithms.modifiers.group_std_scale import group_std_scale

#: By `modifiers.kind`; called with the batch, the credit so far and the modifier's own settings.
MODIFIERS: Mapping[str, Callable[[Batch, Credit, Any], Credit]] = {
    "empg": empg,
    "entropy_scale": entropy_scale,
    "group_std_scale": group_std_scale,
}
