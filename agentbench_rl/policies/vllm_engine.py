"""vLLM's engine as its sampler needs it: arguments, replicas, and weights or adapters that are loaded in place.

tensor_parallel: devices over which one replica is spread, in vLLM itself. data_parallel: replicas, each an engine in a
process of its own with devices of its own; a session stays with its replica, where its prefixes are cached.
"""

from __future__ import annotations

import itertools
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentbench_rl.config import Json, VllmConfig
from agentbench_rl.policies.loading import ADAPTER, BASE
from agentbench_rl.types import AgentRLError, InfrastructureError

#: What vLLM takes as the greatest rank of adapters.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_DEVICES = "CUDA_VISIBLE_DEVICES"


def engine_arguments(
    policy: Path,
    settings: VllmConfig,
    *,
    slots: int,
    max_context: int,
    dtype: str = "float32",
    device: str = "cpu",
    lora_rank: int | None = None,
) -> Json:
    """The arguments of `vllm.LLM` for one replica. lora_rank: of the adapters it will be given; null: none."""
    on_gpu = device == "cuda"
    adapters = {} if lora_rank is None else {"enable_lora": True, "max_loras": 1, "max_lora_rank": lora_rank}
    return {
        "model": str(policy),
        "dtype": dtype,
        "max_model_len": max_context,
        "max_num_seqs": slots,
        "max_logprobs": -1,
        "enable_prefix_caching": True,
        "enforce_eager": settings.eager or not on_gpu,
        "enable_sleep_mode": on_gpu,
        "gpu_memory_utilization": settings.gpu_memory,
        "tensor_parallel_size": settings.tensor_parallel,
        "generation_config": "vllm",  # no sampling defaults from the policy's own files
        "seed": 0,
    } | adapters


def engine_rank(rank: int) -> int:
    """The least rank of vLLM's that holds adapters of a rank; raises AgentRLError where none does."""
    for possible in _RANKS:
        if rank <= possible:
            return possible
    raise AgentRLError(
        f"training.lora.rank {rank}: vLLM samples with adapters up to rank {_RANKS[-1]}; lower it, or set "
        "rollout.vllm.adapters to false, so that whole policies are loaded"
    )


def adapter_rank(policy: Path) -> int | None:
    """The rank of the adapters that stand in a policy directory, or None; raises AgentRLError for a damaged file."""
    path = policy / ADAPTER / "adapter_config.json"
    if not path.exists():
        return None
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AgentRLError(f"{path} does not describe adapters ({error}); write the policy again") from None


def check_parallel(policy: Path, settings: VllmConfig, device: str) -> None:
    """Raise AgentRLError where a policy cannot be spread over so many devices, or there are fewer."""
    described: Json = json.loads((policy / "config.json").read_text(encoding="utf-8"))
    sizes = described.get("text_config", described)
    if wrong := _indivisible(sizes, settings.tensor_parallel):
        possible = [count for count in range(1, settings.tensor_parallel) if not _indivisible(sizes, count)]
        raise AgentRLError(
            f"rollout.vllm.tensor_parallel {settings.tensor_parallel}: {wrong} {sizes[wrong]} of {policy} cannot be "
            f"spread evenly over so many devices; what can: {', '.join(map(str, possible))}"
        )
    wanted = settings.tensor_parallel * settings.data_parallel
    if device == "cuda" and wanted > torch.cuda.device_count():
        raise AgentRLError(
            f"rollout.vllm: tensor_parallel {settings.tensor_parallel} times data_parallel {settings.data_parallel} "
            f"needs {wanted} GPUs, and torch finds {torch.cuda.device_count()}; lower one of them"
        )


def _indivisible(sizes: Json, count: int) -> str | None:
    """The size of a model that cannot be divided among a number of devices; fewer heads of keys are copied."""
    for name in ("num_attention_heads", "intermediate_size"):
        if sizes.get(name, 0) % count:
            return name
    heads = sizes.get("num_key_value_heads") or count
    return "num_key_value_heads" if max(heads, count) % min(heads, count) else None


@dataclass(frozen=True)
class Heard:
    """What a canary was answered: tokens, their log-probs, and those of a plain forward pass of the same weights."""

    token_ids: list[int]
    logprobs: list[float]
    plain: list[float]


class Engine:
    """An engine that was started with a policy, in `settings.data_parallel` replicas."""

    def __init__(self, arguments: Json, settings: VllmConfig, device: str) -> None:
        """Start it; raises AgentRLError where vLLM is not installed."""
        self._device = device
        self._weights = _identity(Path(arguments["model"]))
        self._adapter: Any = None
        #: Ids of adapters are never used twice, so that nothing cached under one is taken for another's.
        self._ids = 0
        # One process where one is enough: it ends with this one, and tells its errors.
        several = settings.data_parallel > 1
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(several))
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(settings.cpu_cache_gb))
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        if several and device == "cpu":
            os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions go to the processes it starts
        try:
            from vllm import LLM
        except ImportError as error:
            raise AgentRLError(f"rollout.sampler: vllm needs the extra vllm ({error}): pip install '.[vllm]'") from None
        #: By session of a canary, with the last weights that could be told from those before.
        self.heard: dict[str, Heard] = {}
        self._replicas = []
        for number in range(settings.data_parallel):
            with _devices_of(number if several and device == "cuda" else None, settings.tensor_parallel):
                self._replicas.append(LLM(**arguments))

    def load(self, weights: Path, adapter: Path | None) -> None:
        """Bring a policy directory into it, without touching its weights where they are there already.

        adapter: directory of adapters on these weights.
        """
        identity = _identity(weights)
        if self._adapter is not None:
            self._each("remove_lora", self._adapter.lora_int_id)
            self._adapter = None
        for replica in self._replicas:
            if identity != self._weights:
                replica.collective_rpc("reload_weights", kwargs={"weights_path": str(weights)})
                if self._device == "cpu":
                    replica.apply_model(_repack_tied_head)
            replica.reset_prefix_cache()
        self._weights = identity
        if adapter is not None:
            from vllm.lora.request import LoRARequest

            self._ids += 1
            request = LoRARequest(f"adapter{self._ids}", self._ids, str(adapter))
            self._each("add_lora", request)
            self._adapter = request

    def add(self, session: str, prompt: Any, parameters: Any) -> None:
        """Take a request of a session."""
        engine = self._replicas[self._place(session)].llm_engine
        engine.add_request(session, prompt, parameters, lora_request=self._adapter)

    def canaries(self) -> list[str]:
        """Names of sessions, one in every replica."""
        names: dict[int, str] = {}
        numbers = itertools.count()
        while len(names) < len(self._replicas):
            name = f"canary {next(numbers)}"
            names.setdefault(self._place(name), name)
        return list(names.values())

    def step(self) -> list[Any]:
        """Sample one token of every request, and return vLLM's outputs."""
        engines = [replica.llm_engine for replica in self._replicas]
        return [output for engine in engines if engine.has_unfinished_requests() for output in engine.step()]

    def abort(self, sessions: Iterable[str]) -> None:
        """Forget the requests of sessions."""
        self._each("abort_request", list(sessions))

    def sleep(self) -> None:
        """Free the memory of its GPUs."""
        if self._device == "cuda":
            for replica in self._replicas:
                replica.sleep(level=1)

    def wake(self) -> None:
        """Take the memory again."""
        if self._device == "cuda":
            for replica in self._replicas:
                replica.wake_up()

    def _place(self, session: str) -> int:
        return zlib.crc32(session.encode()) % len(self._replicas)

    def _each(self, method: str, *arguments: object) -> None:
        for replica in self._replicas:
            getattr(replica.llm_engine, method)(*arguments)


def parts(policy: Path, settings: VllmConfig) -> tuple[Path, Path | None]:
    """What an engine loads of a policy directory: (weights, adapters on them, if there are any)."""
    if not settings.adapters or not (policy / ADAPTER).is_dir():
        return policy, None
    return policy / BASE, policy / ADAPTER


@contextmanager
def engine_faults() -> Iterator[None]:
    """Raise what fails in an engine as InfrastructureError."""
    try:
        yield
    except (AgentRLError, InfrastructureError):
        raise
    except Exception as error:  # the engine's own errors have no common class
        raise InfrastructureError(f"vLLM failed: {type(error).__name__}: {error}") from error


def _identity(weights: Path) -> tuple[tuple[int, ...], ...]:
    """Tells files of weights from each other; links to the same ones are the same."""
    facts = [path.stat() for path in sorted(weights.glob("*.safetensors"))]
    return tuple((fact.st_dev, fact.st_ino, fact.st_size, fact.st_mtime_ns) for fact in facts)


@contextmanager
def _devices_of(replica: int | None, count: int) -> Iterator[None]:
    """Let a process that is started see the devices of a replica alone."""
    if replica is None:
        yield
        return
    before = os.environ.get(_DEVICES)
    every = before.split(",") if before else [str(number) for number in range(torch.cuda.device_count())]
    os.environ[_DEVICES] = ",".join(every[replica * count : (replica + 1) * count])
    try:
        yield
    finally:
        if before is None:
            del os.environ[_DEVICES]
        else:
            os.environ[_DEVICES] = before


def _repack_tied_head(model: Any) -> None:
    """Renew the packed copy of the head that the engine keeps on a CPU; loading in place forgets it if it is tied."""
    head = getattr(model, "lm_head", None)
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    if head is not None and embedding is not None and head.weight is embedding.weight:
        head.quant_method.process_weights_after_loading(head)
