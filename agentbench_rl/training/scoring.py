"""Log-probs of sampled responses under a policy (the trainer's old policy or the reference)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from agentbench_rl.training.logprobs import precision, token_logprobs
from agentbench_rl.training.packing import LAYOUTS
from agentbench_rl.training.sequences import training_sequences
from agentbench_rl.types import Progress, silent

if TYPE_CHECKING:
    import pandas as pd


def score_rollouts(
    model: Any,
    rollouts: pd.DataFrame,
    micro_batch_tokens: int,
    dtype: Literal["float32", "bfloat16"] = "float32",
    packing: Literal["rows", "packed"] = "rows",
    progress: Progress = silent,
) -> dict[str, NDArray[np.float32]]:
    """Log-probs [T] (nats) of every response's tokens, by turn_id; the model's training mode is restored.

    `progress` is told of every micro-batch.
    """
    scores: dict[str, NDArray[np.float32]] = {}
    training = model.training
    model.eval()
    with torch.no_grad(), precision(model, dtype):
        batches = LAYOUTS[packing](training_sequences(rollouts), micro_batch_tokens)
        for done, batch in enumerate(batches, start=1):
            logp = token_logprobs(model, batch, entropy=False)[0].float().cpu().numpy()
            scores |= {span.turn_id: logp[span.start : span.stop] for span in batch.spans}
            progress(done, len(batches))
    model.train(training)
    return {turn_id: scores[turn_id] for turn_id in rollouts["turn_id"]}
