"""A sampler over any transformers causal LM: batched decoding on a preallocated key-value cache.

Token t of a request is the inverse CDF of softmax(logits / temperature) at u = hash(request seed, t): the random
numbers of a request depend on nothing but its seed, whatever shares its batch.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentbench_rl.policies.base import Completion, Sampler, SamplingRequest
from agentbench_rl.policies.kv_cache import RowCache
from agentbench_rl.policies.loading import load_policy, load_tokenizer
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.types import AgentRLError, InfrastructureError

_CANARY_TOKENS = 16
_CANARY_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
_BUCKET_TOKENS = 8192
_BUCKET_RATIO = 1.4


@dataclass(eq=False, slots=True)
class _Slot:
    """One row of the cache: whose it is, which ids are in it, and when it was last used."""

    session: str | None = None
    ids: list[int] = field(default_factory=list)
    used: int = 0


@dataclass(eq=False, slots=True)
class _Live:
    """One request on its way: the ids not yet in the cache, and what was sampled."""

    request: SamplingRequest
    slot: _Slot
    pending: list[int]
    limit: int
    completion: Completion = field(default_factory=lambda: Completion([], [], [], False))


def uniform(seed: int, index: int) -> float:
    """Return the random number in [0, 1) of token `index` of a request: 53 bits of BLAKE2b(seed, index)."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2.0**53


class HFSampler(Sampler):
    """Samples from a policy directory; keeps the last `slots` sessions of at most `max_context` tokens cached."""

    entropies_are_lower_bounds = False

    def __init__(self, *, slots: int, max_context: int, dtype: str = "float32", device: str = "cpu") -> None:
        self._size, self._max_context, self._dtype, self._device = slots, max_context, dtype, device
        self._model: Any = None
        self._cache: Any = None
        self._slots: list[_Slot] = []
        self._clock = 0

    def load(self, policy: Path, version: int) -> None:
        """Load a policy directory and prove with a canary that the sampler uses its weights.

        Raises AgentRLError for an unusable directory or architecture, InfrastructureError when the canary fails.
        """
        self.close()
        end = ChatCodec(load_tokenizer(policy)).end_id
        model = load_policy(policy, self._dtype, self._device)
        config = model.config.get_text_config()
        _check_attention(config, self._max_context, policy)
        self._model, self._version, self._end = model, version, end
        self._decoder, self._head = model.get_decoder(), model.get_output_embeddings()
        parameters = inspect.signature(self._decoder.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._cache = RowCache(config, self._size, self._max_context, model.dtype, self._device)
        self._slots = [_Slot() for _ in range(self._size)]
        self._canary(policy)

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one response per request as one batch, in the order of the requests.

        A response also ends, unfinished, where prompt and response reach `max_context` tokens.
        Raises AgentRLError for a prompt that leaves no room, too many requests, or a policy that is not finite.
        """
        if self._model is None:
            raise AgentRLError("the sampler has no policy: call load first")
        self._check(requests)
        with torch.inference_mode():
            batch = self._claim(requests)
            live, logits = self._prefill(batch)
            while True:
                self._sample(live, logits)
                live = [one for one in live if not one.completion.finished and one.limit > 0]
                if not live:
                    break
                live = self._compact(live)
                logits = self._forward(0, live)
        return [one.completion for one in batch]

    def release(self, session: str) -> None:
        """Forget what is cached for a session."""
        for slot in self._slots:
            if slot.session == session:
                slot.session, slot.ids = None, []

    def close(self) -> None:
        """Drop the model and the cache."""
        self._model = self._decoder = self._head = self._cache = None
        self._slots = []

    def _check(self, requests: Sequence[SamplingRequest]) -> None:
        sessions = [request.session for request in requests]
        if len(requests) > self._size or len(set(sessions)) < len(sessions):
            raise AgentRLError(
                f"{len(requests)} requests of {len(set(sessions))} sessions: a batch holds at most {self._size} "
                "requests (rollout.batch_slots), one per session"
            )
        prompts: dict[str, list[int]] = {}
        for request in requests:
            length = len(request.prompt_ids)
            name, prompt = request.shared_prompt, list(request.prompt_ids)
            if name is not None and prompts.setdefault(name, prompt) != prompt:
                raise AgentRLError(
                    f"request of session {request.session!r}: its prompt is not the first one of this batch that is "
                    f"named {name!r}; requests with the same shared_prompt need the same prompt_ids"
                )
            if not 0 < length < self._max_context or request.max_tokens < 1:
                raise AgentRLError(
                    f"request of session {request.session!r}: a prompt of {length} tokens and {request.max_tokens} "
                    f"new ones; prompts need 1 to {self._max_context - 1} tokens (rollout.max_context_tokens)"
                )

    def _claim(self, requests: Sequence[SamplingRequest]) -> list[_Live]:
        """Give every request its session's row, or the free or least recently used one."""
        self._clock += 1
        owned = {slot.session: slot for slot in self._slots if slot.session is not None}
        wanted = {request.session for request in requests}
        spare = [slot for slot in self._slots if slot.session not in wanted]
        spare.sort(key=lambda slot: (slot.session is not None, slot.used))
        batch = []
        for request in requests:
            slot = owned.get(request.session) or spare.pop(0)
            prompt = list(request.prompt_ids)
            known = slot.session == request.session and request.shared_prompt is None
            kept = min(_common(slot.ids, prompt), len(prompt) - 1) if known else 0
            slot.session, slot.ids, slot.used = request.session, prompt[:kept], self._clock
            limit = min(request.max_tokens, self._max_context - len(prompt))
            batch.append(_Live(request, slot, prompt[kept:], limit))
        return batch

    def _prefill(self, batch: Sequence[_Live]) -> tuple[list[_Live], Tensor]:
        """Compute the pending ids, a shared prompt once; return the requests in the order of their rows, and logits.

        Who shares a prompt is told by the requests of this batch alone, never by what is cached.
        """
        groups: dict[tuple[bool, str], list[_Live]] = {}
        for one in batch:
            name = one.request.shared_prompt
            groups.setdefault((name is None, name or one.request.session), []).append(one)
        ordered = sorted(groups.values(), key=lambda group: len(group[0].pending))
        first = [group[0] for group in ordered]
        others = [(one, row) for row, group in enumerate(ordered) for one in group[1:]]
        live = [*first, *(one for one, _ in others)]
        self._arrange(live)
        logits = torch.cat([self._forward(row, part) for row, part in _buckets(first)])
        if not others:
            return live, logits
        for row, (one, source) in enumerate(others, len(first)):
            one.slot.ids = first[source].slot.ids
            self._cache.copy(source, row, len(one.slot.ids))
        return live, torch.cat([logits, logits[[source for _, source in others]]])

    def _arrange(self, live: Sequence[_Live]) -> None:
        """Put the rows of `live` first, in that order."""
        chosen = [one.slot for one in live]
        taken = set(map(id, chosen))
        self._permute([*chosen, *(slot for slot in self._slots if id(slot) not in taken)])

    def _compact(self, live: Sequence[_Live]) -> list[_Live]:
        """Fill the rows of ended requests from the back; return the live requests in the order of their rows."""
        by_slot = {id(one.slot): one for one in live}
        order = list(self._slots)
        holes = [row for row in range(len(live)) if id(order[row]) not in by_slot]
        strays = [row for row in range(len(live), len(order)) if id(order[row]) in by_slot]
        for hole, stray in zip(holes, strays, strict=True):
            order[hole], order[stray] = order[stray], order[hole]
        self._permute(order)
        return [by_slot[id(slot)] for slot in order[: len(live)]]

    def _permute(self, order: list[_Slot]) -> None:
        place = {id(slot): row for row, slot in enumerate(self._slots)}
        moves = [(row, place[id(slot)]) for row, slot in enumerate(order) if slot is not self._slots[row]]
        used = max((len(order[row].ids) for row, _ in moves), default=0)
        if used:
            self._cache.move([row for row, _ in moves], [source for _, source in moves], used)
        self._slots = order

    def _forward(self, first: int, live: Sequence[_Live]) -> Tensor:
        """Run the pending ids of the rows from `first` on; return float32 logits [rows, vocabulary] after the last."""
        width = max(len(one.pending) for one in live)
        ids, positions = [], []
        for one in live:
            pad, start = width - len(one.pending), len(one.slot.ids)
            ids.append(one.pending + [0] * pad)
            positions.append([*range(start, start + len(one.pending)), *[self._cache.scratch] * pad])
            one.slot.ids = one.slot.ids + one.pending
        places = torch.tensor(positions, device=self._device)
        longest = max(len(one.slot.ids) for one in live) - 1
        hidden = self._decoder(
            input_ids=torch.tensor(ids, device=self._device),
            attention_mask=self._cache.aim(first, places, longest),
            position_ids=places,
            use_cache=True,
            **{self._cache_argument: self._cache},
        ).last_hidden_state
        last = torch.tensor([len(one.pending) - 1 for one in live], device=self._device)
        logits: Tensor = self._head(hidden[torch.arange(len(live), device=self._device), last])
        return logits.float()

    def _sample(self, live: Sequence[_Live], logits: Tensor) -> None:
        """Draw one token per row and append it with its log-prob and the entropy of its distribution."""
        logp = logits.log_softmax(-1)
        entropies = torch.special.entr(logp.exp()).sum(-1).tolist()
        chosen = logits.argmax(-1)
        rows = [row for row, one in enumerate(live) if one.request.temperature > 0]
        if rows:
            index = torch.tensor(rows, device=logits.device)
            numbers = [uniform(live[row].request.seed, len(live[row].completion.token_ids)) for row in rows]
            heat = torch.tensor([live[row].request.temperature for row in rows], dtype=torch.float64)
            cdf = (logits[index].double() / heat.to(logits.device)[:, None]).softmax(-1).cumsum(-1)
            target = torch.tensor(numbers, dtype=torch.float64, device=logits.device)[:, None] * cdf[:, -1:]
            chosen[index] = torch.searchsorted(cdf, target, right=True)[:, 0].clamp_(max=cdf.shape[1] - 1)
        logprobs = logp.gather(1, chosen[:, None])[:, 0].tolist()
        draws = zip(live, chosen.tolist(), logprobs, entropies, strict=True)
        for row, (one, token, logprob, entropy) in enumerate(draws):
            if not math.isfinite(logprob):
                raise AgentRLError(
                    f"policy version {self._version} gives a log-prob of {logprob} (row {row}): it diverged"
                )
            done = one.completion
            one.completion = Completion(
                [*done.token_ids, token], [*done.logprobs, logprob], [*done.entropies, entropy], token == self._end
            )
            one.pending = [token]
            one.limit -= 1

    def _canary(self, policy: Path) -> None:
        """Compare greedy log-probs of the sampler with a plain forward pass of the loaded weights."""
        prompt = [(7 * index + 3) % self._head.weight.shape[0] for index in range(min(8, self._max_context - 1))]
        request = SamplingRequest("canary", prompt, _CANARY_TOKENS, seed=0, temperature=0.0)
        done = self.generate([request])[0]
        self.release("canary")
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *done.token_ids]], device=self._device)
            logp = self._model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        expected = logp.gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()
        gap = max(abs(a - b) for a, b in zip(expected, done.logprobs, strict=True))
        if not gap <= _CANARY_TOLERANCE[self._dtype]:
            self.close()
            raise InfrastructureError(
                f"{policy}: log-probs of the sampler and of a plain forward pass differ by {gap:.3g}; "
                "this architecture or these weights cannot be sampled faithfully"
            )


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    if left == right[: len(left)]:
        return len(left)
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _buckets(live: Sequence[_Live]) -> list[tuple[int, Sequence[_Live]]]:
    """Cut requests sorted by pending length into (first row, requests) so that little of a prefill is padding."""
    buckets: list[tuple[int, Sequence[_Live]]] = []
    first = 0
    for row, one in enumerate(live):
        longest, shortest = len(one.pending), len(live[first].pending)
        if longest > _BUCKET_RATIO * shortest + 4 or longest * (row + 1 - first) > _BUCKET_TOKENS:
            if row > first:
                buckets.append((first, live[first:row]))
            first = row
    return [*buckets, (first, live[first:])]


def _check_attention(config: Any, max_context: int, policy: Path) -> None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    window = getattr(config, "sliding_window", None)
    if kinds or (window is not None and window < max_context):
        what = ", ".join(sorted(kinds)) or f"a sliding window of {window}"
        raise AgentRLError(f"{policy}: the sampler supports full attention only, this model has {what}")
    limit = getattr(config, "max_position_embeddings", None) or max_context
    if limit < max_context:
        raise AgentRLError(f"{policy}: max_context {max_context} exceeds the model's {limit} positions")
