# Online: one job runs a segment of iterations and writes the same files as the staged rules.
def segment_of(wildcards):
    """The segment whose last iteration the wildcard names."""
    return next(part for part in SEGMENTS if part[-1] == int(wildcards.iteration))


def segment_inputs(wildcards):
    """The start policy, or the segment before."""
    first = segment_of(wildcards)[0]
    if first == 0:
        return [outputs(LAYOUT.sft)]
    return [LAYOUT.segment(wildcards.algorithm, wildcards.seed, first - 1)]


rule train:
    input:
        segment_inputs,
    output:
        f"{ROOT}/runs/{{algorithm}}/seed{{seed}}/segments/{{iteration}}.json",
    log:
        f"{ROOT}/logs/train.{{algorithm}}.seed{{seed}}.{{iteration}}.log",
    threads: EXPERIMENT.threads
    params:
        identity=run_identity,
        first=lambda wildcards: segment_of(wildcards)[0],
        last=lambda wildcards: segment_of(wildcards)[-1],
    shell:
        "{AGENTRL} train --algorithm {wildcards.algorithm} --seed {wildcards.seed}"
        " --first {params.first} --last {params.last} {OPTIONS} > {log} 2>&1"
