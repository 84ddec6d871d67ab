"""Log-probs of trained tokens only: log p(y) = z_y - logsumexp(z), H = logsumexp(z) - sum p z, in float32 or wider.

The LM head runs on the hidden states that predict a trained token, in chunks, so that no [tokens x vocabulary] tensor
exists for prompts and padding.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint

from agentbench_rl.training.packing import PackedBatch
from agentbench_rl.types import AgentRLError

HEAD_LOGITS = 2**26  # of a chunk: 256 MiB in float32
_FLEX = "flex_attention"
_COMPILATIONS = 64  # FlexAttention's, a few for rows of all shapes, again with gradients; after 8 torch goes on without
# Settings of architectures that change the logits after the LM head; only these neutral values are supported.
_NEUTRAL = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}


def token_logprobs(model: Any, batch: PackedBatch, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Log-probs [T] (nats) of the batch's trained tokens, and the entropies [T] of their distributions if asked for.

    Raises AgentRLError for a model whose logits are rescaled after its head, and for packed rows without sdpa.
    """
    _, logp, entropies = token_pass(model, batch, entropy=entropy)
    return logp, entropies


def token_pass(model: Any, batch: PackedBatch, *, entropy: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """States [T, H] that predict the trained tokens, and what `token_logprobs` returns."""
    states = trained_states(row_states(model.base_model, batch), batch)
    return states, *head_logprobs(model, states, batch, entropy=entropy)


def trained_pass(
    model: Any, batch: PackedBatch, dtype: Literal["float32", "bfloat16"], *, entropy: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`token_pass` through a model in training, which may be sharded: its forward pass gathers its weights."""
    if isinstance(model, FSDPModule):
        passed: tuple[Tensor, Tensor, Tensor | None] = model(batch, entropy=entropy)  # type: ignore[operator]
        return passed
    with precision(model, dtype):
        return token_pass(model, batch, entropy=entropy)


def row_states(backbone: Any, batch: PackedBatch) -> Tensor:
    """Last hidden states [B * L, H] of all positions of the batch's rows.

    Raises AgentRLError for rows of several sequences where the model was not loaded with sdpa, or has layers that do
    not attend to a whole sequence.
    """
    device = backbone.device
    inputs: dict[str, Any] = {"input_ids": batch.input_ids.to(device)}
    if batch.masked:
        inputs["position_ids"] = batch.position_ids.to(device)
        inputs["attention_mask"] = _tree_mask(backbone, batch)
    elif backbone.config._attn_implementation == _FLEX:
        backbone.config._attn_implementation = "sdpa"
    hidden: Tensor = backbone(**inputs, use_cache=False).last_hidden_state
    return hidden.reshape(-1, hidden.shape[-1])


def _tree_mask(backbone: Any, batch: PackedBatch) -> Any:
    """The rows' mask: block-sparse on a GPU, where the model is switched to FlexAttention, dense elsewhere."""
    used = backbone.config._attn_implementation
    if used not in ("sdpa", _FLEX):
        raise AgentRLError(f"rows of several sequences need attn_implementation sdpa; this model uses {used}")
    _check_layers(backbone.config, batch)
    if not block_sparse(backbone.device):
        return batch.attention_mask().to(backbone.device)
    from torch.compiler import config as compiler  # slow to import, as is what follows
    from torch.nn.attention.flex_attention import create_block_mask

    backbone.config._attn_implementation = _FLEX
    compiler.recompile_limit = max(compiler.recompile_limit, _COMPILATIONS)
    ends = batch.ends.to(backbone.device)
    rows, length = ends.shape

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[row, key])

    return create_block_mask(visible, rows, None, length, length, device=backbone.device)


def _check_layers(config: Any, batch: PackedBatch) -> None:
    """Raise AgentRLError for layers that would see more, or other tokens, under a mask than in a sequence alone."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention"])
    if window is None or int(batch.position_ids.max()) < window:
        kinds -= {"sliding_attention"}
    if kinds - {"full_attention"}:
        what = f"a sliding window of {window}" if "sliding_attention" in kinds else ", ".join(sorted(kinds))
        raise AgentRLError(
            f"the model has {what}, which does not go with several sequences in a row: set training.packing=rows"
        )


def block_sparse(device: torch.device) -> bool:
    """Whether masks are block-sparse: FlexAttention has a backward pass on GPUs only."""
    return device.type == "cuda"


def trained_states(states: Tensor, batch: PackedBatch) -> Tensor:
    """The states [T, H] that predict the trained tokens, of all states [B * L, H]."""
    return states.index_select(0, batch.positions.to(states.device))


def head_logprobs(model: Any, states: Tensor, batch: PackedBatch, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """What `token_logprobs` returns, from the states [T, H] that predict the trained tokens."""
    _check_head(model)
    head = model.get_output_embeddings()
    targets = batch.targets.to(states.device)
    size = max(1, HEAD_LOGITS // head.weight.shape[0])
    chunks = list(zip(torch.split(states, size), torch.split(targets, size), strict=True))
    # Several chunks: keep no logits for the backward pass, compute them again chunk by chunk.
    recompute = len(chunks) > 1 and torch.is_grad_enabled()
    parts = [
        checkpoint(_head, head, part, ids, entropy, use_reentrant=False)
        if recompute
        else _head(head, part, ids, entropy)
        for part, ids in chunks
    ]
    logps, entropies = zip(*parts, strict=True)
    return torch.cat(logps), torch.cat(entropies) if entropy else None


def precision(model: Any, dtype: Literal["float32", "bfloat16"]) -> AbstractContextManager[Any]:
    """Autocast to bfloat16 over float32 weights, or nothing; a sharded model computes in its type by itself."""
    if dtype == "float32" or isinstance(model, FSDPModule):
        return nullcontext()
    return torch.autocast(model.device.type, dtype=torch.bfloat16)


def _head(head: Any, hidden: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
    logits = head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    normaliser = logits.logsumexp(-1)
    logp = logits.gather(-1, targets[:, None]).squeeze(-1) - normaliser
    if not entropy:
        return logp, None
    return logp, normaliser - ((logits - normaliser[:, None]).exp() * logits).sum(-1)


def _check_head(model: Any) -> None:
    for name, neutral in _NEUTRAL.items():
        value = getattr(model.config, name, neutral)
        if value not in (None, neutral):
            raise AgentRLError(f"model: {name} = {value} changes the logits after the head; not supported in training")
