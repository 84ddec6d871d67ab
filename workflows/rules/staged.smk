# Staged: one job per stage and iteration, or per iteration where it is run as a whole; full lineage, restart anywhere.
RUN = "--algorithm {wildcards.algorithm} --seed {wildcards.seed} --iteration {params.number}"


rule rollout:
    input:
        sampled_with,
        entropies_before,
        outputs(LAYOUT.panels),
    output:
        stage_outputs("rollout"),
    log:
        f"{ROOT}/logs/rollout.{{algorithm}}.seed{{seed}}.{{iteration}}.log",
    wildcard_constraints:
        algorithm=methods("on_policy", "one_step_off"),
    threads: EXPERIMENT.threads
    resources:
        gpu=GPU,
    params:
        identity=lambda wildcards: identity("rollout", wildcards.algorithm),
        number=lambda wildcards: int(wildcards.iteration),
    shell:
        f"{AGENTRL} rollout {RUN} {OPTIONS} > {{log:q}} 2>&1"


rule score:
    input:
        sampled_with,
        stage_outputs("rollout"),
    output:
        stage_outputs("score"),
    log:
        f"{ROOT}/logs/score.{{algorithm}}.seed{{seed}}.{{iteration}}.log",
    wildcard_constraints:
        algorithm=methods("on_policy", "one_step_off"),
    threads: EXPERIMENT.threads * EXPERIMENT.processes
    resources:
        gpu=GPU * EXPERIMENT.processes,
    params:
        identity=lambda wildcards: identity("score", wildcards.algorithm),
        number=lambda wildcards: int(wildcards.iteration),
    shell:
        f"{SHARED} score {RUN} {OPTIONS} > {{log:q}} 2>&1"


rule advantage:
    input:
        scores_of_advantage,
        replay_of,
        stage_outputs("rollout"),
    output:
        stage_outputs("advantage"),
    log:
        f"{ROOT}/logs/advantage.{{algorithm}}.seed{{seed}}.{{iteration}}.log",
    wildcard_constraints:
        algorithm=methods("on_policy", "one_step_off"),
    params:
        identity=lambda wildcards: identity("advantage", wildcards.algorithm),
        number=lambda wildcards: int(wildcards.iteration),
    shell:
        f"{AGENTRL} advantage {RUN} {OPTIONS} > {{log:q}} 2>&1"


rule update:
    input:
        start_of,
        scores_of,
        stage_outputs("rollout"),
        stage_outputs("advantage"),
    output:
        stage_outputs("update"),
    log:
        f"{ROOT}/logs/update.{{algorithm}}.seed{{seed}}.{{iteration}}.log",
    wildcard_constraints:
        algorithm=methods("on_policy", "one_step_off"),
    threads: EXPERIMENT.threads * EXPERIMENT.processes
    resources:
        gpu=GPU * EXPERIMENT.processes,
    params:
        identity=lambda wildcards: identity("update", wildcards.algorithm),
        number=lambda wildcards: int(wildcards.iteration),
    shell:
        f"{SHARED} update {RUN} {OPTIONS} > {{log:q}} 2>&1"


rule iterate:
    input:
        start_of,
        iteration_before,
        dense_model_of,
        outputs(LAYOUT.panels),
    output:
        stage_outputs("rollout"),
        stage_outputs("advantage"),
        stage_outputs("update"),
    log:
        f"{ROOT}/logs/iterate.{{algorithm}}.seed{{seed}}.{{iteration}}.log",
    wildcard_constraints:
        algorithm=methods("post_step", "reward_swap"),
    threads: EXPERIMENT.threads * EXPERIMENT.processes
    resources:
        gpu=GPU * EXPERIMENT.processes,
    params:
        identity=lambda wildcards: iteration_identity(wildcards.algorithm),
        number=lambda wildcards: int(wildcards.iteration),
    shell:
        f"{SHARED} iterate {RUN} {OPTIONS} > {{log:q}} 2>&1"


rule validate:
    input:
        stage_outputs("update"),
        outputs(LAYOUT.panels),
    output:
        stage_outputs("validation"),
    log:
        f"{ROOT}/logs/validate.{{algorithm}}.seed{{seed}}.{{iteration}}.log",
    threads: EXPERIMENT.threads
    resources:
        gpu=GPU,
    params:
        identity=identity("evaluate"),
        number=lambda wildcards: int(wildcards.iteration),
    shell:
        f"{AGENTRL} eval validation {RUN} {OPTIONS} > {{log:q}} 2>&1"
