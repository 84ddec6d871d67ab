"""A sampler over vLLM's in-process engine: continuous batching, prefix cache, tensor parallelism.

Token ids go in and come out; log-probs are those of the raw logits, so at temperature 1 whatever the temperature was.
Entropies are exact where the vocabulary is small enough to have all log-probs of every token returned, else lower
bounds from the most likely tokens. Prefixes are cached under the policy's version, so no cached state survives a new
policy. An engine is started once in a process: it sleeps while no sampler uses it, and weights are loaded in place.
Of policies trained by adapters the adapters alone are loaded, on weights that stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agentbench_rl.config import VllmConfig
from agentbench_rl.policies.base import Completion, SamplingRequest, StreamingSampler
from agentbench_rl.policies.entropies import top_k_entropy
from agentbench_rl.policies.loading import load_policy, load_tokenizer
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.policies.vllm_engine import (
    Engine,
    Heard,
    adapter_rank,
    check_parallel,
    engine_arguments,
    engine_faults,
    engine_rank,
    parts,
)
from agentbench_rl.types import AgentRLError, InfrastructureError

#: Up to so many tokens in the vocabulary all their log-probs are asked for.
FULL_VOCABULARY = 4096
#: Engines that were started in this process, by what they were started with; only one is awake at a time.
_started: dict[tuple[Any, ...], Engine] = {}
_CANARY_TOKENS = 16
_CANARY_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
#: By how much log-probs of the plain forward pass must have moved from load to load to tell new weights from old ones.
_CANARY_MOVES = {"float32": 2e-5, "bfloat16": 0.1}


class VLLMSampler(StreamingSampler):
    """Samples from a policy directory with at most `slots` responses at a time, of contexts up to `max_context`.

    name: samplers of several policies that are used at the same time need names of their own, and so engines.
    lora_rank: of the adapters that policies will have, so that the engine of the first, which has none, takes them too.
    """

    def __init__(
        self,
        *,
        slots: int,
        max_context: int,
        engine: VllmConfig,
        dtype: str = "float32",
        device: str = "cpu",
        name: str = "policy",
        lora_rank: int | None = None,
    ) -> None:
        self._slots, self._max_context, self._dtype, self._device = slots, max_context, dtype, device
        self._settings, self._name, self._lora_rank = engine, name, lora_rank
        self._engine: Engine | None = None
        self._version = 0
        #: Sessions whose requests are in the engine.
        self._sampling: set[str] = set()

    @property
    def entropies_are_lower_bounds(self) -> bool:
        """Whether the vocabulary is too large to have all log-probs returned."""
        return self._engine is not None and self._vocabulary > FULL_VOCABULARY

    def load(self, policy: Path, version: int) -> None:
        """Load a policy directory, the first by starting the engine, later ones into it; a canary proves the weights.

        Raises AgentRLError where vLLM is not installed, the directory is unusable or cannot be spread over as many
        devices, InfrastructureError when the engine or the canary fails.
        """
        self._end = ChatCodec(load_tokenizer(policy)).end_id
        self._version = version
        with engine_faults():
            self._take(policy).load(*parts(policy, self._settings))
        self._canary(policy)

    def generate(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one response per request, in the order of the requests.

        Raises AgentRLError for a prompt that leaves no room or a policy that is not finite, InfrastructureError when
        the engine fails.
        """
        for request in requests:
            self._check(request)
        for request in requests:
            self.submit(request)
        done: dict[str, Completion] = {}
        while len(done) < len(requests):
            done |= self.step()
        return [done[request.session] for request in requests]

    def submit(self, request: SamplingRequest) -> None:
        """Take a request; raises like `generate`, and AgentRLError for a second one of a session."""
        self._check(request)
        if request.session in self._sampling:
            raise AgentRLError(f"request of session {request.session!r}: its request before is still being sampled")
        from vllm.inputs import tokens_input

        prompt = tokens_input(list(request.prompt_ids), cache_salt=f"{self._version}")
        with engine_faults():
            self._loaded().add(request.session, prompt, self._parameters(request))
        self._sampling.add(request.session)

    def step(self) -> list[tuple[str, Completion]]:
        """Sample one token of every request that is in the engine's batch, and return what is done."""
        with engine_faults():
            outputs = self._loaded().step()
        done = [(output.request_id, self._completion(output.outputs[0])) for output in outputs if output.finished]
        self._sampling.difference_update(session for session, _ in done)
        return done

    def release(self, session: str) -> None:
        """Nothing to do: the engine evicts what it needs no longer."""

    def close(self) -> None:
        """Put the engine to sleep: on a GPU its memory is free for the trainer."""
        if self._engine is not None:
            self._engine.abort(sorted(self._sampling))
            self._sampling.clear()
            self._engine.sleep()
        self._engine = None

    def _check(self, request: SamplingRequest) -> None:
        self._loaded()
        if not 0 < len(request.prompt_ids) < self._max_context or request.max_tokens < 1:
            raise AgentRLError(
                f"request of session {request.session!r}: a prompt of {len(request.prompt_ids)} tokens and "
                f"{request.max_tokens} new ones; prompts need 1 to {self._max_context - 1} tokens "
                "(rollout.max_context_tokens)"
            )

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise AgentRLError("the sampler has no policy: call load first")
        return self._engine

    def _take(self, policy: Path) -> Engine:
        """Take an engine for such policies: the one that was started before, which wakes up, or a new one."""
        self._vocabulary = len(load_tokenizer(policy))
        if self._settings.adapters and (rank := adapter_rank(policy)) is not None:
            self._lora_rank = max(rank, self._lora_rank or 0)
        rank = engine_rank(self._lora_rank) if self._settings.adapters and self._lora_rank else None
        shape = (policy / "config.json").read_text(encoding="utf-8")
        key = (self._name, shape, self._slots, self._max_context, self._dtype, self._settings, rank)
        if self._engine is None or self._engine is not _started.get(key):
            self.close()
            if key in _started:
                _started[key].wake()
            else:
                _started[key] = self._start(policy, rank)
            self._engine = _started[key]
        return self._engine

    def _start(self, policy: Path, lora_rank: int | None) -> Engine:
        check_parallel(policy, self._settings, self._device)
        arguments = engine_arguments(
            parts(policy, self._settings)[0],
            self._settings,
            slots=self._slots,
            max_context=self._max_context,
            dtype=self._dtype,
            device=self._device,
            lora_rank=lora_rank,
        )
        return Engine(arguments, self._settings, self._device)

    def _parameters(self, request: SamplingRequest) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=request.temperature,
            max_tokens=min(request.max_tokens, self._max_context - len(request.prompt_ids)),
            seed=request.seed,
            logprobs=self._settings.top_logprobs if self.entropies_are_lower_bounds else -1,
            stop_token_ids=[self._end],
            ignore_eos=True,  # what ends a response is told by stop_token_ids
            detokenize=False,
            flat_logprobs=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _completion(self, output: Any) -> Completion:
        ids, logprobs, entropies = list(output.token_ids), [], []
        for token, told in zip(ids, output.logprobs, strict=True):
            logprob = told[token].logprob
            if not math.isfinite(logprob):
                raise AgentRLError(f"policy version {self._version} gives a log-prob of {logprob}: it diverged")
            logprobs.append(logprob)
            entropies.append(top_k_entropy([one.logprob for one in told.values()]))
        return Completion(ids, logprobs, entropies, output.finish_reason == "stop")

    def _canary(self, policy: Path) -> None:
        """Compare greedy log-probs of every replica with a plain forward pass, and how both moved with the weights."""
        engine = self._loaded()
        prompt = [(7 * index + 3) % self._vocabulary for index in range(min(8, self._max_context - 1))]
        names = engine.canaries()
        asked = [SamplingRequest(name, prompt, _CANARY_TOKENS, seed=0, temperature=0.0) for name in names]
        model = load_policy(policy, self._dtype, self._device)
        for name, done in zip(names, self.generate(asked), strict=True):
            heard = Heard(done.token_ids, done.logprobs, _plain_logprobs(model, prompt, done.token_ids))
            gap, before = _distance(heard.logprobs, heard.plain), engine.heard.get(name)
            if before is not None and before.token_ids != heard.token_ids:
                before = None  # other tokens: other weights
            moved = math.inf if before is None else _distance(heard.plain, before.plain)
            told_apart = moved > _CANARY_MOVES[self._dtype]
            stayed = before is not None and told_apart and _distance(heard.logprobs, before.logprobs) < moved / 10
            if not gap <= _CANARY_TOLERANCE[self._dtype] or stayed:
                self.close()
                change = "they are still those of the policy before" if stayed else f"they differ by {gap:.3g}"
                raise InfrastructureError(
                    f"{policy}: log-probs of vLLM are not those of a plain forward pass ({change}); it does not use "
                    "these weights, or cannot run this architecture faithfully"
                )
            if told_apart:
                engine.heard[name] = heard


def _plain_logprobs(model: Any, prompt: list[int], response: list[int]) -> list[float]:
    """Log-probs of a response's tokens by the model's own forward pass."""
    ids = torch.tensor([[*prompt, *response]], device=model.device)
    with torch.inference_mode():
        logp = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    told: list[float] = logp.gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()
    return told


def _distance(first: list[float], second: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(first, second, strict=True))
