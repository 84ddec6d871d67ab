"""What a loop of `reward_swap` begins with: a copy of the policy, the explorer, fills the buffer.

Below the loop's first iteration the explorer has a round for each of its updates, with the stages of an iteration, and
a last one in which it collects. Then the rewards are swapped: dense ones are gone, the outcome stays. The stage `swap`
publishes the buffer and what all of this cost. Nothing of the policy's own checkpoint is touched; only where
`schedule.critic` says that the explorer shares the policy's critic, the policy goes on with the one that it trained.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from agentbench_rl.algorithms.dense_rewards import dense_rewards, explorer_method
from agentbench_rl.algorithms.reward_swap import buffer_schema, swap
from agentbench_rl.config import Experiment, Json, iteration_config, stage_config
from agentbench_rl.config.advantage import GroupMean
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.config.schedule import OnPolicy
from agentbench_rl.policies.critic import open_critic, save_critic
from agentbench_rl.policies.dense_model import load_dense_model
from agentbench_rl.policies.loading import load_policy, load_tokenizer
from agentbench_rl.stages.advantage import advantage
from agentbench_rl.stages.files import link, read_frame, readable, write_table
from agentbench_rl.stages.groups import sample_groups, tasks_of_round
from agentbench_rl.stages.layout import Layout, RoundLayout
from agentbench_rl.stages.loop import LoopIteration
from agentbench_rl.stages.manifest import StageReport, merge_ledgers, prune, read_manifest, require, run_stage
from agentbench_rl.stages.panel import load_panel
from agentbench_rl.stages.sampling import PolicyRef
from agentbench_rl.stages.score import score
from agentbench_rl.stages.threads import use_threads
from agentbench_rl.stages.update import write_update
from agentbench_rl.training.checkpoint import TrainerState, save_trainer_state
from agentbench_rl.training.dense_model import dense_scores, shard_dense_model, turn_sequences
from agentbench_rl.training.world import current_world, together
from agentbench_rl.types import (
    EXPLORER,
    AgentRLError,
    Progress,
    advantage_schema,
    episode_schema,
    rollout_schema,
    score_schema,
)

BUFFER = "buffer.parquet"


def explore(run: LoopIteration, progress: Progress) -> Json:
    """Fill the buffer of the loop that an iteration begins; returns the manifest of the stage `swap`."""
    if run.schedule.source == "history":
        return _publish(run, run.start)
    if run.method.needs_dense_model:
        require(run.layout.dense_model, "dense_model", stage_config(run.experiment, "dense_model"))
    with run.open_rounds():
        before = _copy(run)
        for number in range(run.schedule.period):
            before = _learn(run, number, before, progress)
        _collect(run, before, progress)
        manifest = _publish(run, before)
        prune(before, run.method.checkpoint)
    return manifest


def buffer_of(run: LoopIteration) -> pa.Table:
    """The buffer of an iteration's loop, made anew from the rounds where it was emptied already.

    Raises AgentRLError for one that was filled under other settings.
    """
    require(run.first.stage("swap"), "swap", iteration_config(run.experiment, run.algorithm))
    path = run.first.stage("swap") / BUFFER
    if not path.exists():
        return _filled(run.first)
    with readable(path):
        return pq.read_table(path)


def _copy(run: LoopIteration) -> Path:
    """The explorer's first checkpoint: the policy's, or but for its weights a fresh one."""
    copied = run.schedule.optimizer == "copied"
    kept = tuple(name for name in run.states if copied or name == "critic")

    def body(scratch: Path) -> StageReport:
        _write_checkpoint(run, scratch, run.start, kept)
        return StageReport()

    out = run.round(0, "copy").parents[1] / "copy"
    inputs = {name: run.start / name for name in ("policy", *run.states)}
    config = run.config("rollout") | run.config("update")
    run_stage("copy", out, config=config, inputs=inputs, body=body, code="explore")
    return out


def _write_checkpoint(run: LoopIteration, scratch: Path, critic: Path, kept: tuple[str, ...]) -> None:
    """Write the policy's checkpoint, of its states those to be kept and the others fresh; `critic`: whose critic."""
    for name in ("policy", *kept):
        source = critic if name.startswith("critic") else run.start
        if not (source / name).exists():
            iteration = run.start.parent if source == run.start else run.stage("swap").parent
            raise AgentRLError(
                f"{source / name}: this checkpoint was removed when nothing was left to read it, and what was made of "
                f"it is not there as it was; delete {iteration} and run that iteration again"
            )
        shutil.copytree(source / name, scratch / name, copy_function=link)
    for name in set(run.method.checkpoint) - {"policy", *kept}:
        if name == "critic":
            assert run.method.critic is not None
            policy = load_policy(run.start / "policy", "float32", run.experiment.device)
            save_critic(open_critic(policy, run.method.critic.backbone, None), scratch / name)
        else:
            save_trainer_state(scratch / name, TrainerState())


def _learn(run: LoopIteration, number: int, before: Path, progress: Progress) -> Path:
    """A round in which the explorer samples and is updated; returns the directory of its new checkpoint."""
    size = run.counts.dense_episodes // run.schedule.period
    _sample(run, number, before, run.counts.fresh_tasks, run.after(number * size, progress))
    credited = run.round(number, "rollout")
    if run.schedule.source == "dense":
        credited = _dense(run, number)
    learner = _with_method(run, explorer_method(run.method, run.schedule))
    of_round = _of_round(run, learner, run.of_round(number, before, credited))
    score(*of_round)
    advantage(*of_round)
    write_update(*of_round, phase=number + 1)
    prune(before, run.method.checkpoint)
    return run.round(number, "update")


def _collect(run: LoopIteration, before: Path, progress: Progress) -> None:
    """The round in which the explorer plays what the buffer is filled with."""
    number, counts = run.schedule.period, run.counts
    _sample(run, number, before, counts.buffer_tasks, run.after(counts.dense_episodes, progress))
    view = run.of_round(number, before, run.round(number, "rollout"))
    of_round = _of_round(run, _collector(run), view)
    if run.schedule.behaviour == "trainer":
        score(*of_round)
    if run.method.critic is None:
        advantage(*of_round)


def _sample(run: LoopIteration, number: int, before: Path, count: int, progress: Progress) -> None:
    tasks = tasks_of_round(load_panel(run.layout.panels, "train"), count, run.seed, run.number, number)
    policy = PolicyRef(before / "policy", EXPLORER, number)
    prefix = f"s{run.seed}.i{run.number}.e{number}"
    sample_groups(run, run.round(number, "rollout"), policy, tasks, prefix, progress)


def _of_round(
    run: LoopIteration, experiment: Experiment, view: RoundLayout
) -> tuple[Experiment, RoundLayout, str, int, int]:
    return experiment, view, run.algorithm, run.seed, run.number


def _dense(run: LoopIteration, number: int) -> Path:
    """The rows of a round with their dense rewards as they are credited; returns their directory."""
    out, source = run.round(number, "dense"), run.round(number, "rollout")
    inputs = {name: source / f"{name}.parquet" for name in ("rollouts", "episodes")}
    config, ledger = run.config("rollout"), {}
    if run.method.needs_dense_model:
        inputs |= {"model": run.layout.dense_model / "model", "start": run.layout.sft / "policy"}
        config |= run.config("score")

    def body(scratch: Path) -> StageReport:
        rollouts = read_frame(inputs["rollouts"], rollout_schema())
        episodes = read_frame(inputs["episodes"], episode_schema())
        if run.method.needs_dense_model:
            rollouts["process_reward"], ledger["processed_tokens"] = together(_told, run.experiment, inputs, rollouts)
        credited = dense_rewards(rollouts, episodes, run.schedule, [run.seed, run.number, number])
        table = pa.Table.from_pandas(credited, schema=rollout_schema(), preserve_index=False)
        write_table(table.replace_schema_metadata(rollout_schema().metadata), scratch / "rollouts.parquet")
        shutil.copy2(inputs["episodes"], scratch / "episodes.parquet")
        healthy = credited["tree_id"].isin(episodes.loc[episodes["return"].notna(), "tree_id"])
        summed = credited[healthy].groupby("tree_id")["process_reward"].sum()
        return StageReport(ledger=ledger, metrics={"dense_return": float(summed.mean())} if len(summed) else {})

    run_stage("dense", out, config=config, inputs=inputs, seeds=run.seeds, body=body, code="explore")
    return out


def _told(experiment: Experiment, inputs: Mapping[str, Path], rollouts: pd.DataFrame) -> tuple[pd.Series, float]:
    """Dense rewards of the rollouts' rows by the learned model, and the tokens they took; all processes say them."""
    use_threads(experiment.threads)
    world, training = current_world(), experiment.training
    model = load_dense_model(inputs["model"], experiment.device if world.mesh is None else "cpu")
    sequences = turn_sequences(model, load_tokenizer(inputs["start"]), rollouts)
    shard_dense_model(model, training, world)
    scores, tokens = dense_scores(model, sequences, training, world=world)
    return rollouts["turn_id"].map(scores), float(tokens)


def _collector(run: LoopIteration) -> Experiment:
    """The experiment as the collection sees it: the host, but nothing that only an update needs is computed."""
    loss = run.method.loss.model_copy(update={"kl_coefficient": 0.0})
    changes: Json = {"schedule": OnPolicy(), "loss": loss}
    if run.method.critic is not None:
        changes |= {"critic": None, "advantage": GroupMean()}
    return _with_method(run, run.method.model_copy(update=changes))


def _with_method(run: LoopIteration, method: AlgorithmConfig) -> Experiment:
    return run.experiment.model_copy(update={"algorithms": {run.algorithm: method}})


def _filled(run: LoopIteration) -> pa.Table:
    """The episodes that a loop may draw from, with swapped rewards: the collected ones, or the policy's own."""
    period = run.schedule.period
    if run.schedule.source != "history":
        view = run.of_round(period, run.start, run.round(period, "rollout"))
        return _swapped(run, view, run.number)
    tables = [_swapped(run, run.layout, number) for number in run.history]
    return pa.concat_tables([buffer_schema().empty_table(), *tables])


def _swapped(run: LoopIteration, layout: Layout, number: int) -> pa.Table:
    rollout, scored, credited = (
        layout.stage(run.algorithm, run.seed, number, stage) for stage in ("rollout", "score", "advantage")
    )
    rollouts = read_frame(rollout / "rollouts.parquet", rollout_schema())
    behaviour = rollouts["response_logprobs"]
    if run.schedule.behaviour == "trainer":
        behaviour = _scored(rollouts["turn_id"], scored / "scores.parquet")
    advantages = None
    if run.method.critic is None:
        advantages = read_frame(credited / "advantages.parquet", advantage_schema())
        advantages = advantages[advantages["source"].isna()]
    episodes = read_frame(rollout / "episodes.parquet", episode_schema())
    return swap(rollouts, episodes, behaviour, advantages, run.method.reward.view)


def _scored(turns: pd.Series, path: Path) -> pd.Series:
    """Log-probs of the turns' tokens under the policy that sampled them, by the trainer's own forward pass."""
    known = read_frame(path, score_schema()).set_index("turn_id")["old_logprobs"]
    missing = ~turns.isin(known.index[known.notna()])
    if missing.any():
        raise AgentRLError(f"{path}: turn {turns[missing].iloc[0]!r} has no log-probs; run its stage again")
    return known[turns].reset_index(drop=True)


def _publish(run: LoopIteration, before: Path) -> Json:
    """Write the buffer, the checkpoint that the policy goes on with where it shares its critic, and the loop's cost."""
    sources = _sources(run)

    def body(scratch: Path) -> StageReport:
        buffer = _filled(run)
        write_table(buffer, scratch / BUFFER)
        if run.shares_critic:
            kept = ("critic", "critic_trainer", *(name for name in run.states if name == "trainer"))
            _write_checkpoint(run, scratch, before, kept)
        explored = {} if run.schedule.source == "history" else sources
        report = _explored([manifest for source in explored.values() if (manifest := read_manifest(source))])
        report.counts["buffer_responses"] = len(buffer)
        return report

    inputs = {name: source / "outputs.json" for name, source in sources.items()}
    config = iteration_config(run.experiment, run.algorithm)
    return run_stage(
        "swap", run.stage("swap"), config=config, inputs=inputs, seeds=run.seeds, body=body, code="explore"
    )


def _sources(run: LoopIteration) -> dict[str, Path]:
    """Directories of all that the buffer is made of, by name; raises AgentRLError for a history of other settings."""
    if run.schedule.source == "history":
        history = {}
        for number, stage in [(number, stage) for number in run.history for stage in run.stages[:-1]]:
            directory = run.layout.stage(run.algorithm, run.seed, number, stage)
            require(directory, stage, run.config(stage))
            history[f"{number}/{stage}"] = directory
        return history
    directory = run.round(0, "rollout").parents[1]
    found = sorted(path.parent for path in directory.glob("*/*/outputs.json"))
    return {str(path.relative_to(directory)): path for path in found}


def _explored(manifests: Sequence[Json]) -> StageReport:
    """Counts, cost and metrics of the rounds: of those that the explorer learns in, and of the collection, the last."""
    played = [manifest for manifest in manifests if manifest["stage"] == "rollout"]
    if not played:
        return StageReport()
    *learnt, collected = played
    counts = {
        "dense_episodes": sum(round(manifest["ledger"]["episodes"]) for manifest in learnt),
        "collected_episodes": round(collected["ledger"]["episodes"]),
    }
    metrics = {f"collected_{name}": collected["metrics"][name] for name in ("success", "return", "distinct_states")}
    metrics["dense_success"] = sum(manifest["metrics"]["success"] for manifest in learnt) / len(learnt)
    returns = [value for manifest in manifests if (value := manifest["metrics"].get("dense_return")) is not None]
    if returns:
        metrics["dense_return"] = sum(returns) / len(returns)
    return StageReport(counts, merge_ledgers([manifest["ledger"] for manifest in manifests]), metrics)
