"""Policies as directories: loading with explained errors, saving with reproducible bytes.

A directory is one policy, or holds several policies of a team, each in a subdirectory of its name. A policy that was
trained by adapters is whole like any other; `ADAPTER` and `BASE` in it are the same policy in two parts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

from agentbench_rl.policies.disk import disk_errors
from agentbench_rl.types import AgentRLError

logging.disable_progress_bar()  # type: ignore[no-untyped-call]
#: Subdirectories of a policy: its adapters in peft's format, and the policy that they belong on.
ADAPTER, BASE = "adapter", "base"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
#: Kept by transformers and written into tokenizer_config.json, though it says nothing about the tokenizer.
_HOW_IT_WAS_LOADED = ("is_local", "local_files_only", "name_or_path")


def load_policy(
    directory_or_name: str | Path, dtype: str = "float32", device: str = "cpu", revision: str | None = None
) -> Any:
    """Load a causal LM from a directory or by its hub name, in evaluation mode with SDPA attention.

    Raises AgentRLError when the directory is incomplete or damaged, weights are missing, the name cannot be fetched,
    or there is no such device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise AgentRLError("device: cuda is set, but torch finds no usable GPU here; see `agentrl doctor`")
    source = _source(directory_or_name)
    if isinstance(source, Path):
        _check_directory(source)
    arguments = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa", "output_loading_info": True}
    model, info = _load(AutoModelForCausalLM, source, revision, **arguments)
    absent = sorted(str(key) for key in [*info["missing_keys"], *info["mismatched_keys"]])
    if absent:
        raise AgentRLError(f"{source}: the weights do not fit config.json; missing or of another shape: {absent[:5]}")
    return model.to(device).eval()


def load_tokenizer(directory_or_name: str | Path, revision: str | None = None) -> Any:
    """Load a tokenizer from a directory or by its hub name; raises AgentRLError like `load_policy`."""
    source = _source(directory_or_name)
    if isinstance(source, Path):
        _require(source, _TOKENIZER_FILES, "tokenizer")
    tokenizer = _load(_tokenizer_class(source), source, revision)
    for key in _HOW_IT_WAS_LOADED:
        tokenizer.init_kwargs.pop(key, None)
    return tokenizer


def save_policy(model: Any, tokenizer: Any, directory: Path) -> None:
    """Write weights (safetensors), config and tokenizer; equal policies give equal bytes, wherever they came from.

    Raises OSError when the disk is full or refuses.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with disk_errors(directory):
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


def policy_names(directory: Path) -> tuple[str, ...]:
    """Names of the policies that a directory holds, sorted; none where it is one policy itself."""
    if (directory / "config.json").is_file():
        return ()
    return tuple(sorted(config.parent.name for config in directory.glob("*/config.json")))


def policy_path(directory: Path, name: str) -> Path:
    """The directory of a named policy: a subdirectory where there are several, otherwise `directory` itself.

    Raises AgentRLError for a name that is not among several.
    """
    names = policy_names(directory)
    if names and name not in names:
        raise AgentRLError(f"{directory} holds the policies {', '.join(names)}, and none for {name!r}")
    return directory / name if names else directory


def _tokenizer_class(source: str | Path) -> Any:
    """Return the class that reads a tokenizer as it was saved; AutoTokenizer may prefer the model's usual one."""
    settings = Path(source) / "tokenizer_config.json"
    if isinstance(source, Path) and settings.is_file():
        name = json.loads(settings.read_text(encoding="utf-8")).get("tokenizer_class")
        if name in ("TokenizersBackend", "PreTrainedTokenizerFast"):
            return PreTrainedTokenizerFast
    return AutoTokenizer


def _source(directory_or_name: str | Path) -> str | Path:
    path = Path(directory_or_name).expanduser()
    looks_local = isinstance(directory_or_name, Path) or path.is_absolute() or path.parts[:1] in ((".",), ("..",))
    if path.is_dir():
        return path
    if looks_local or len(path.parts) > 2:
        raise AgentRLError(f"policy directory {path} does not exist")
    return str(directory_or_name)


def _require(directory: Path, names: tuple[str, ...], what: str) -> None:
    if not any((directory / name).is_file() for name in names):
        if several := policy_names(directory):
            raise AgentRLError(
                f"{directory} holds the policies of a team ({', '.join(several)}) where one policy is expected; "
                f"name one of them, such as {directory / several[0]}"
            )
        raise AgentRLError(f"policy directory {directory} has no {what}: expected {' or '.join(names)}")


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise AgentRLError(f"policy directory {directory} does not exist")
    _require(directory, ("config.json",), "config")
    shards = sorted(directory.glob("*.safetensors"))
    if not shards:
        raise AgentRLError(f"policy directory {directory} has no weights: expected *.safetensors")
    for shard in shards:
        try:
            with safe_open(shard, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise AgentRLError(f"{shard} is damaged or truncated ({error}); write the policy again") from error


def _load(auto: Any, source: str | Path, revision: str | None, **arguments: Any) -> Any:
    try:
        return auto.from_pretrained(source, revision=revision, **arguments)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = (
            "the directory holds no model that transformers can load"
            if isinstance(source, Path)
            else "check the name and the revision; without a network connection give a local directory"
        )
        raise AgentRLError(f"cannot load {str(source)!r}: {reason} ({hint})") from error
