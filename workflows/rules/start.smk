# Panels, demonstrations and the start policy, shared by all methods.
rule panel:
    input:
        [str(EXPERIMENT.environment.data)] if EXPERIMENT.environment.data else [],
    output:
        outputs(LAYOUT.panels),
    log:
        f"{ROOT}/logs/panel.log",
    params:
        identity=identity("panel"),
    shell:
        f"{AGENTRL} panel {OPTIONS} > {{log:q}} 2>&1"


rule demos:
    input:
        outputs(LAYOUT.panels),
    output:
        outputs(LAYOUT.demos),
    log:
        f"{ROOT}/logs/demos.log",
    params:
        identity=identity("demos"),
    shell:
        f"{AGENTRL} demos {OPTIONS} > {{log:q}} 2>&1"


rule sft:
    input:
        outputs(LAYOUT.demos),
    output:
        outputs(LAYOUT.sft),
    log:
        f"{ROOT}/logs/sft.log",
    threads: EXPERIMENT.sft.threads * EXPERIMENT.processes
    resources:
        gpu=GPU * EXPERIMENT.processes,
    params:
        identity=identity("sft"),
    shell:
        f"{SHARED} sft {OPTIONS} > {{log:q}} 2>&1"


rule dense_model:
    input:
        outputs(LAYOUT.sft),
        outputs(LAYOUT.panels),
    output:
        outputs(LAYOUT.dense_model),
    log:
        f"{ROOT}/logs/dense_model.log",
    threads: EXPERIMENT.threads * EXPERIMENT.processes
    resources:
        gpu=GPU * EXPERIMENT.processes,
    params:
        identity=identity("dense_model"),
        episodes=config_hash(stage_config(EXPERIMENT, "dense_rollout")),
    shell:
        f"{SHARED} dense-model {OPTIONS} > {{log:q}} 2>&1"
