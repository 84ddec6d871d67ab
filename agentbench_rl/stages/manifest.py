"""Running a stage: identity, reuse, lock, atomic publication, and the manifest that is written last.

A stage's identity is what its outputs are a function of: the config it reads, its inputs, its code and the versions
of the libraries that compute. A directory whose manifest has the same identity and whole outputs is not computed
again; a directory without a manifest is unfinished work. `outputs.json` beside it holds the outputs' hashes alone:
it is what a workflow engine watches, so that work done again with the same result makes nothing else stale.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agentbench_rl.config import Json, config_hash
from agentbench_rl.stages.files import sha256, sync_tree, write_atomic
from agentbench_rl.stages.fingerprint import code_fingerprint
from agentbench_rl.training.world import launched
from agentbench_rl.types import SCHEMA_VERSION, AgentRLError

_LIBRARIES = ("numpy", "pandas", "pyarrow", "tokenizers", "torch", "transformers")
_PARTIAL = ".partial"
#: Files whose bytes differ between identical runs; no part of any identity.
_VOLATILE = ("timings.parquet", "cost.csv")


@dataclass
class StageReport:
    """What a stage has to say beside its files: counts, its share of the cost ledger, and metrics."""

    counts: dict[str, int] = field(default_factory=dict)
    ledger: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def run_stage(
    stage: str,
    out: Path,
    *,
    config: Json,
    inputs: Mapping[str, Path],
    body: Callable[[Path], StageReport],
    seeds: Mapping[str, int] | None = None,
    code: str | None = None,
) -> Json:
    """Run `body` in a scratch directory, publish what it wrote to `out`, write the manifest last and return it.

    An existing result with the same identity is returned as it is. code: the module of `stages` that `body` comes from,
    where it is not called as the stage. Raises AgentRLError for a missing input.
    """
    identity = stage_identity(stage, config, inputs, seeds or {}, code or stage)
    if (existing := _finished(out, identity)) is not None:
        return _stamp(out, existing)
    with locked(out):
        if (existing := _finished(out, identity)) is not None:
            return _stamp(out, existing)
        scratch = out / _PARTIAL
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        started = time.perf_counter()
        report = body(scratch)
        report.ledger["wall_seconds"] = report.ledger.get("wall_seconds", 0.0) + time.perf_counter() - started
        manifest = {
            "schema": SCHEMA_VERSION,
            "stage": stage,
            "config": config,
            "identity": identity,
            "outputs": {path.name: sha256(path) for path in sorted(scratch.iterdir())},
            "counts": report.counts,
            "ledger": report.ledger,
            "metrics": report.metrics,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
            "processes": launched().size,
            "python": platform.python_version(),
            "mlflow_run_id": os.environ.get("AGENTRL_RUN_ID"),
        }
        _publish(scratch, out, manifest)
        return _stamp(out, manifest)


def read_manifest(directory: Path) -> Json | None:
    """Return the manifest of a finished stage, or None when there is none; raises AgentRLError when it is corrupt."""
    path = directory / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise AgentRLError(f"{path}: not a readable manifest ({error}); delete it and run the stage again") from None
    if not isinstance(manifest, dict) or manifest.get("schema", 0) > SCHEMA_VERSION or "identity" not in manifest:
        raise AgentRLError(f"{path}: written by a newer version (or not a manifest); upgrade or delete {directory}")
    return manifest


def require(directory: Path, stage: str, config: Json) -> Json:
    """Return the manifest of a stage that must have finished under `config`; raises AgentRLError otherwise."""
    manifest = read_manifest(directory)
    if manifest is None:
        raise AgentRLError(f"{directory} holds no finished {stage} (no manifest.json); run that stage first")
    if manifest["identity"]["config"] != config_hash(config):
        raise AgentRLError(
            f"{directory} was made under another configuration of {stage} than the one asked for: pass the same "
            "--set, or run the stages before it again (agentrl train, or delete the directory and agentrl run)"
        )
    return manifest


def stage_identity(stage: str, config: Json, inputs: Mapping[str, Path], seeds: Mapping[str, int], code: str) -> Json:
    """What the outputs of a stage are a function of; raises AgentRLError for a missing input."""
    return {
        "stage": stage,
        "config": config_hash(config),
        "inputs": {name: _digest(stage, name, path) for name, path in inputs.items()},
        "seeds": dict(seeds),
        "code": code_fingerprint(code, _rules(config).get("name")),
        "libraries": {name: _version(name) for name in (*_LIBRARIES, *_engine(config))},
    }


@cache
def _version(library: str) -> str:
    return version(library)


def _engine(config: Json) -> tuple[str, ...]:
    """Libraries that play the environment."""
    rules = _rules(config)
    if rules.get("engine") == "textworld" or rules.get("name") == "textworld":
        return ("textworld",)
    return ("gem-llm",) if rules.get("name") == "gem" else ()


def _rules(config: Json) -> Json:
    """The environment that a stage plays, if it plays any."""
    return dict(config.get("environment.rules") or config.get("environment.tasks") or {})


def _digest(stage: str, name: str, path: Path) -> str:
    """Hash of an input; of one that was pruned, the hash it had."""
    if path.exists():
        return sha256(path)
    writer = read_manifest(path.parent)
    if writer is None or path.name not in writer.get("pruned", []):
        raise AgentRLError(f"stage {stage}: its input {name} is missing: {path}; run the stage that writes it first")
    return str(writer["outputs"][path.name])


def prune(directory: Path, names: Sequence[str]) -> None:
    """Remove outputs that nothing will read again; the manifest remembers their hashes, and that they were there."""
    manifest = read_manifest(directory)
    if manifest is None:
        return
    pruned = sorted({*manifest.get("pruned", []), *names})
    if pruned != manifest.get("pruned"):
        text = json.dumps(manifest | {"pruned": pruned}, indent=2, sort_keys=True)
        write_atomic(directory / "manifest.json", text + "\n")
    for name in names:
        _remove(directory / name)


def _finished(out: Path, identity: Json) -> Json | None:
    manifest = read_manifest(out)
    return manifest if manifest is not None and manifest["identity"] == identity and _whole(out, manifest) else None


def _whole(out: Path, manifest: Json) -> bool:
    outputs = {name: digest for name, digest in _lasting(manifest).items() if name not in manifest.get("pruned", [])}
    return all((out / name).exists() and sha256(out / name) == digest for name, digest in outputs.items())


def _lasting(manifest: Json) -> dict[str, str]:
    return {name: digest for name, digest in manifest["outputs"].items() if name not in _VOLATILE}


def _stamp(out: Path, manifest: Json) -> Json:
    path = out / "outputs.json"
    text = json.dumps(_lasting(manifest), indent=1, sort_keys=True) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomic(path, text)
    return manifest


def _publish(scratch: Path, out: Path, manifest: Json) -> None:
    sync_tree(scratch)
    before = read_manifest(out)
    (out / "manifest.json").unlink(missing_ok=True)
    for name in set(before["outputs"] if before else ()) - set(manifest["outputs"]):
        _remove(out / name)
    for path in sorted(scratch.iterdir()):
        target = out / path.name
        if target.is_dir():
            _remove(target)
        path.replace(target)
    scratch.rmdir()
    write_atomic(out / "manifest.json", json.dumps(manifest, indent=2, sort_keys=True) + "\n")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def locked(out: Path) -> Iterator[None]:
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AgentRLError(f"{out} is being written by another process; wait for it or stop it") from None
        yield


def merge_ledgers(ledgers: list[Mapping[str, Any]]) -> dict[str, float]:
    """Sum ledgers entry by entry."""
    total: dict[str, float] = {}
    for ledger in ledgers:
        for name, value in ledger.items():
            total[name] = total.get(name, 0.0) + float(value)
    return total
