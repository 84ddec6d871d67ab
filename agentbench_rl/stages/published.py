"""What an iteration of rounds publishes where other methods have their stages: all rounds' rows, the last policy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agentbench_rl.config import Json
from agentbench_rl.policies.entropies import LOWER_BOUNDS
from agentbench_rl.rollout.chains import Rollouts
from agentbench_rl.rollout.expansion_metrics import expansion_metrics
from agentbench_rl.stages.files import link, readable
from agentbench_rl.stages.iteration import SearchIteration
from agentbench_rl.stages.manifest import StageReport, merge_ledgers, read_manifest, run_stage
from agentbench_rl.stages.rounds import FRONTIER, STATES, own_rows
from agentbench_rl.stages.sampling import write_rollouts
from agentbench_rl.training.checkpoint import TrainerState, save_trainer_state
from agentbench_rl.types import ALLOCATION, INFRASTRUCTURE_ENDINGS, ROUND, AgentRLError, advantage_schema, score_schema

_ROWS = ("rollouts", "episodes")
#: The stages whose rows are published: their file and its columns.
_FILES = {"score": ("scores", score_schema), "advantage": ("advantages", advantage_schema)}


@dataclass(frozen=True)
class Batch:
    """Rounds that are trained on together, in the update of the last one; `rollouts`: the directory of their rows."""

    rounds: tuple[int, ...]
    rollouts: Path

    @property
    def number(self) -> int:
        """The round that has the update."""
        return self.rounds[-1]

    def turn_ids(self) -> pa.Array:
        """The rows that were sampled in these rounds; the others are their context."""
        table = _read(self.rollouts, "rollouts", ["turn_id", ROUND])
        return table.filter(pc.is_in(table[ROUND], pa.array(self.rounds, pa.int32())))["turn_id"].combine_chunks()


def gather(iteration: SearchIteration, rounds: Sequence[int]) -> Batch:
    """The rows of several rounds, each once, as one rollout directory; that of a single round is there already.

    Rows of other rounds are context: they are compared with nothing, so no response is planned beside them.
    """
    sources = [iteration.round(number, "rollout") for number in rounds]
    if len(sources) == 1:
        return Batch(tuple(rounds), sources[0])
    files = {f"{source.parent.name}/{name}": source / f"{name}.parquet" for source in sources for name in _ROWS}

    def body(scratch: Path) -> StageReport:
        rows, episodes = ([row for source in sources for row in _read(source, name).to_pylist()] for name in _ROWS)
        turns = {row["turn_id"]: row if row[ROUND] in rounds else row | {ALLOCATION: 0} for row in rows}
        write_rollouts(Rollouts(list(turns.values()), episodes), scratch)
        return StageReport()

    out = iteration.round(rounds[-1], "batch")
    run_stage("batch", out, config=iteration.config("rollout"), inputs=files, body=body, code="published")
    return Batch(tuple(rounds), out)


def publish_rollout(iteration: SearchIteration, rounds: int, updates: int) -> Json:
    """All rows and leaves of an iteration, its last frontier, and the states that it leaves to the next.

    Raises AgentRLError when too many of its responses ended in infrastructure faults.
    """
    sources = [iteration.round(number, "rollout") for number in range(rounds)]

    def body(scratch: Path) -> StageReport:
        merged = Rollouts()
        for number, source in enumerate(sources):
            turns = own_rows(_read(source, "rollouts").to_pylist(), number)
            tables = [_read(source, name).to_pylist() for name in ("episodes", "timings")]
            merged.add(Rollouts(turns, *tables))
        merged.metrics = expansion_metrics(merged.turns, iteration.search, _dropped(sources[-1]))
        report = write_rollouts(merged, scratch)
        for name in (FRONTIER, STATES):
            shutil.copy2(sources[-1] / name, scratch / name)
        parts = _sum(sources)
        report.ledger, report.counts = parts.ledger, parts.counts | {"rounds": rounds}
        report.metrics |= _per_update(parts, rounds, updates)
        report.metrics |= {name: parts.metrics[name] for name in (LOWER_BOUNDS,) if name in parts.metrics}
        report.metrics["boundaries_without_snapshot"] = rounds * parts.metrics["boundaries_without_snapshot"]
        _check_faults(iteration, parts.counts)
        return report

    return _publish(iteration, "rollout", _outputs(sources), body)


def publish_rows(iteration: SearchIteration, stage: str, batches: Sequence[Batch]) -> Json:
    """The rows that `score` or `advantage` wrote of the responses of every batch."""
    sources = [iteration.round(batch.number, stage) for batch in batches]
    file, schema = _FILES[stage]

    def body(scratch: Path) -> StageReport:
        tables = [schema().empty_table()]
        for batch, source in zip(batches, sources, strict=True):
            table = _read(source, file)
            tables.append(table.filter(pc.is_in(table["turn_id"], batch.turn_ids())))
        pq.write_table(pa.concat_tables(tables), scratch / f"{file}.parquet", compression="zstd", compression_level=3)
        return _sum(sources)

    return _publish(iteration, stage, _outputs(sources), body)


def publish_update(iteration: SearchIteration, batches: Sequence[Batch], policies: int) -> Json:
    """The policy and the trainer's state of the last update, or those before the iteration where it had none.

    policies: how many the run has made by now.
    """
    sources = [iteration.round(batch.number, "update") for batch in batches]
    last = sources[-1] if sources else iteration.start
    states = {name: last / name for name in (("policy",) if last == iteration.layout.sft else ("policy", "trainer"))}

    def body(scratch: Path) -> StageReport:
        for name, directory in states.items():
            if not directory.exists():
                raise AgentRLError(
                    f"{directory}: this checkpoint was removed when the update was published, and what was published "
                    f"is not there as it was; delete {iteration.stage('update').parent} and run the iteration again"
                )
            shutil.copytree(directory, scratch / name, copy_function=link)
        if "trainer" not in states:
            save_trainer_state(scratch / "trainer", TrainerState())
        lines = [
            {"round": batch.number} | json.loads(line)
            for batch, source in zip(batches, sources, strict=True)
            for line in (source / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        text = "".join(json.dumps(line | {"step": step}, sort_keys=True) + "\n" for step, line in enumerate(lines))
        (scratch / "metrics.jsonl").write_text(text, encoding="utf-8")
        parts = _sum(sources)
        ledger = dict.fromkeys(("optimizer_steps", "trained_tokens", "processed_tokens"), 0.0) | parts.ledger
        return StageReport({"updates": len(sources), "policies": policies}, ledger, parts.metrics)

    return _publish(iteration, "update", _outputs(sources) | states, body)


def _publish(
    iteration: SearchIteration, stage: str, inputs: Mapping[str, Path], body: Callable[[Path], StageReport]
) -> Json:
    return run_stage(
        stage,
        iteration.stage(stage),
        config=iteration.config(stage),
        inputs=inputs,
        seeds=iteration.seeds,
        body=body,
        code="published",
    )


def _outputs(sources: Sequence[Path]) -> dict[str, Path]:
    return {source.parent.name: source / "outputs.json" for source in sources}


def _read(directory: Path, name: str, columns: list[str] | None = None) -> pa.Table:
    path = directory / f"{name}.parquet"
    with readable(path):
        return pq.read_table(path, columns=columns)


def _sum(sources: Sequence[Path]) -> StageReport:
    """Sums of the counts and ledgers, means (or maxima) of the metrics, of the stages of several rounds."""
    manifests = [manifest for source in sources if (manifest := read_manifest(source)) is not None]
    metrics: dict[str, list[float]] = {}
    for manifest in manifests:
        for name, value in manifest["metrics"].items():
            metrics.setdefault(name, []).append(value)
    return StageReport(
        {name: round(total) for name, total in merge_ledgers([part["counts"] for part in manifests]).items()},
        merge_ledgers([manifest["ledger"] for manifest in manifests]),
        {name: max(of) if name.endswith("_max") else sum(of) / len(of) for name, of in metrics.items()},
    )


def _dropped(source: Path) -> int:
    """States that the gate closed before they were expanded, of the iteration up to a round."""
    return int(json.loads((source / FRONTIER).read_text(encoding="utf-8"))["search"]["dropped"])


def _per_update(parts: StageReport, rounds: int, updates: int) -> dict[str, float]:
    metrics = {"rounds": float(rounds), "updates": float(updates)}
    if updates:
        metrics |= {
            "responses_per_update": parts.counts["responses"] / updates,
            "tokens_per_update": parts.ledger["sampled_tokens"] / updates,
        }
    return metrics


def _check_faults(iteration: SearchIteration, counts: Mapping[str, int]) -> None:
    faults = sum(counts.get(str(ending), 0) for ending in INFRASTRUCTURE_ENDINGS)
    share = iteration.experiment.rollout.max_fault_share
    if faults > share * max(counts["responses"], faults):
        raise AgentRLError(
            f"{faults} of {counts['responses']} responses ended in infrastructure faults; rollout.max_fault_share "
            f"allows {share:.0%}. Check the environment with `agentrl env check`, then delete "
            f"{iteration.round(0, 'rollout').parents[1]} and run the iteration again"
        )
