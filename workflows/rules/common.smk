# The resolved experiment, and what every rule takes from it.
import json
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

from agentbench_rl.config import config_hash, stage_config, validated_iterations
from agentbench_rl.presets import load_experiment
from agentbench_rl.stages.fingerprint import code_fingerprint
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.preflight import check_experiment
from agentbench_rl.stages.record import (
    forget_foreign,
    record_experiment,
    record_workplace,
)
from agentbench_rl.stages.score import needs_scores
from agentbench_rl.stages.train import segments
from agentbench_rl.types import AgentRLError

RESULTS = Path(config.get("results", "results"))

try:
    EXPERIMENT = load_experiment(
        {key: value for key, value in config.items() if key != "results"}
    )
    check_experiment(EXPERIMENT)
except AgentRLError as error:
    raise WorkflowError(str(error))

RESOLVED = json.loads(EXPERIMENT.model_dump_json())
# The defaults stand in the pydantic models; filled in here, they would break the choice between architectures.
validate(RESOLVED, "../schemas/experiment.schema.yaml", set_default=False)

LAYOUT = Layout(RESULTS / EXPERIMENT.name)
ROOT = LAYOUT.root
LAST = EXPERIMENT.training.iterations - 1
SEGMENTS = segments(EXPERIMENT.training.iterations, EXPERIMENT.iterations_per_job)
VALIDATED = validated_iterations(EXPERIMENT)
GPU = 1 if EXPERIMENT.device == "cuda" else 0
AGENTRL = f"{shlex.quote(sys.executable)} -m agentbench_rl"
# Jobs that score or train are shared by several processes; results never depend on how many, but for rounding.
SHARED = (
    f"{shlex.quote(sys.executable)} -m torch.distributed.run --standalone"
    f" --nproc-per-node {EXPERIMENT.processes} -m agentbench_rl"
    if EXPERIMENT.processes > 1 or EXPERIMENT.training.cpu_offload
    else AGENTRL
)
OPTIONS = f"--experiment {shlex.quote(str(ROOT / 'experiment.json'))} --results {shlex.quote(str(RESULTS))}"


# Jobs on other machines read this file, too, where paths may differ.
if workflow.is_main_process and forget_foreign(EXPERIMENT, LAYOUT):
    print(
        f"{ROOT}: Snakemake has no records of these results; every stage is looked at again, what is finished is kept",
        file=sys.stderr,
    )


wildcard_constraints:
    algorithm="|".join(EXPERIMENT.algorithms),
    seed="|".join(str(seed) for seed in EXPERIMENT.seeds),
    iteration=r"\d{3}",
    panel="validation|test",


def methods(*schedules):
    """Pattern of the methods that follow one of the schedules; where there are none it matches nothing."""
    follow = [
        name
        for name, method in EXPERIMENT.algorithms.items()
        if method.schedule.kind in schedules
    ]
    return "|".join(follow) or "(?!)"


def record():
    """Write the resolved experiment, which the jobs read, into the results directory."""
    try:
        record_experiment(EXPERIMENT, LAYOUT)
        record_workplace(LAYOUT)
    except AgentRLError as error:
        raise WorkflowError(str(error))


def identity(stage, algorithm=None):
    """What a job's result is a function of beside its inputs: the config it reads, and its code."""
    settings = config_hash(stage_config(EXPERIMENT, stage, algorithm))
    return f"{settings} {code_fingerprint(stage, EXPERIMENT.environment.name)}"


def iteration_identity(algorithm):
    """Identity of an iteration that is run as a whole: that of its stages, and of its schedule."""
    stages = ("rollout", "score", "advantage", "update")
    schedule = EXPERIMENT.algorithms[algorithm].schedule.kind
    code = code_fingerprint(schedule, EXPERIMENT.environment.name)
    return [*(identity(stage, algorithm) for stage in stages), code]


def run_identity(wildcards):
    """Identity of an online segment: that of all stages of the loop."""
    stages = ("rollout", "score", "advantage", "update")
    parts = [identity(stage, wildcards.algorithm) for stage in stages]
    validated = [
        iteration for iteration in segment_of(wildcards) if iteration in VALIDATED
    ]
    return [*parts, identity("evaluate"), code_fingerprint("train"), *validated]


def outputs(directory):
    """The file that tells that a stage is done: the hashes of its outputs."""
    return str(directory / "outputs.json")


def stage_outputs(stage):
    """The pattern of one stage of an iteration, with wildcards."""
    return f"{ROOT}/runs/{{algorithm}}/seed{{seed}}/iteration{{iteration}}/{stage}/outputs.json"


def runs():
    """All (algorithm, seed) of the comparison."""
    return [
        (algorithm, seed)
        for algorithm in EXPERIMENT.algorithms
        for seed in EXPERIMENT.seeds
    ]


def trained(wildcards):
    """What tells that a run's last policy is there."""
    if EXPERIMENT.mode == "online":
        return LAYOUT.segment(wildcards.algorithm, wildcards.seed, LAST)
    return outputs(LAYOUT.stage(wildcards.algorithm, wildcards.seed, LAST, "update"))


def validations():
    """What tells that the validation panel was played where the learning curves need it."""
    if EXPERIMENT.mode == "online":
        return [
            LAYOUT.segment(algorithm, seed, segment[-1])
            for algorithm, seed in runs()
            for segment in SEGMENTS
        ]
    return [
        outputs(LAYOUT.stage(algorithm, seed, iteration, "validation"))
        for algorithm, seed in runs()
        for iteration in VALIDATED
    ]


def final_outputs():
    """What `rule all` asks for."""
    return [outputs(LAYOUT.report), str(LAYOUT.report / "report.html")]


def segment_of(wildcards):
    """The segment whose last iteration the wildcard names."""
    return next(part for part in SEGMENTS if part[-1] == int(wildcards.iteration))


def segment_inputs(wildcards):
    """The start policy, or the segment before."""
    first = segment_of(wildcards)[0]
    if first == 0:
        return [outputs(LAYOUT.sft)]
    return [LAYOUT.segment(wildcards.algorithm, wildcards.seed, first - 1)]


def start_of(wildcards):
    """What the iteration's update goes on from."""
    iteration = int(wildcards.iteration)
    return outputs(LAYOUT.start(wildcards.algorithm, wildcards.seed, iteration))


def sampled_with(wildcards):
    """What the policy comes from that samples the iteration's rollout."""
    method = EXPERIMENT.algorithms[wildcards.algorithm]
    version = method.behaviour_version(int(wildcards.iteration))
    return outputs(LAYOUT.start(wildcards.algorithm, wildcards.seed, version))


def entropies_before(wildcards):
    """The rollout before, if the method takes a threshold of its entropies."""
    topology = EXPERIMENT.algorithms[wildcards.algorithm].topology
    online = getattr(topology, "select", None) == "online_threshold"
    return iteration_before(wildcards) if online else []


def dense_model_of(wildcards):
    """The model of dense rewards, if the method has one."""
    needed = EXPERIMENT.algorithms[wildcards.algorithm].needs_dense_model
    return [outputs(LAYOUT.dense_model)] if needed else []


def stage_of(wildcards, stage, iteration):
    """What tells that a stage of the same run is done."""
    return outputs(LAYOUT.stage(wildcards.algorithm, wildcards.seed, iteration, stage))


def scores_of(wildcards):
    """The scores that the update reads, if its method needs any."""
    if not needs_scores(EXPERIMENT, wildcards.algorithm):
        return []
    return [stage_of(wildcards, "score", int(wildcards.iteration))]


def scores_of_advantage(wildcards):
    """The scores that the advantage stage reads, if its method needs any there."""
    if not EXPERIMENT.algorithms[wildcards.algorithm].advantage_reads_scores:
        return []
    return [stage_of(wildcards, "score", int(wildcards.iteration))]


def replay_of(wildcards):
    """The replay buffer as the iteration before left it, if the method has one."""
    iteration = int(wildcards.iteration)
    if EXPERIMENT.algorithms[wildcards.algorithm].replay is None or iteration == 0:
        return []
    return [stage_of(wildcards, "advantage", iteration - 1)]


def iteration_before(wildcards):
    """The iteration before, whose states a search begins with, and whose loop goes on."""
    iteration = int(wildcards.iteration)
    return [stage_of(wildcards, "rollout", iteration - 1)] if iteration else []
