# Online: one job runs a segment of iterations and writes the same files as the staged rules.
rule train:
    input:
        segment_inputs,
        dense_model_of,
    output:
        f"{ROOT}/runs/{{algorithm}}/seed{{seed}}/segments/{{iteration}}.json",
    log:
        f"{ROOT}/logs/train.{{algorithm}}.seed{{seed}}.{{iteration}}.log",
    threads: EXPERIMENT.threads * EXPERIMENT.processes
    resources:
        gpu=GPU * EXPERIMENT.processes,
    params:
        identity=run_identity,
        first=lambda wildcards: segment_of(wildcards)[0],
        last=lambda wildcards: segment_of(wildcards)[-1],
    shell:
        f"{SHARED} train --algorithm {{wildcards.algorithm}} --seed {{wildcards.seed}}"
        f" --first {{params.first}} --last {{params.last}} {OPTIONS} > {{log:q}} 2>&1"
