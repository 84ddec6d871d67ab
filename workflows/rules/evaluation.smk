# Final evaluations, the comparison and the report.
rule evaluate_start:
    input:
        outputs(LAYOUT.sft),
        outputs(LAYOUT.panels),
    output:
        f"{ROOT}/evaluation/sft/{{panel}}/outputs.json",
    log:
        f"{ROOT}/logs/evaluate.sft.{{panel}}.log",
    threads: EXPERIMENT.threads
    resources:
        gpu=GPU,
    params:
        identity=identity("evaluate"),
    shell:
        f"{AGENTRL} eval start-{{wildcards.panel}} {OPTIONS} > {{log:q}} 2>&1"


rule evaluate_test:
    input:
        trained,
        outputs(LAYOUT.panels),
    output:
        f"{ROOT}/evaluation/{{algorithm}}/seed{{seed}}/outputs.json",
    log:
        f"{ROOT}/logs/evaluate.{{algorithm}}.seed{{seed}}.log",
    threads: EXPERIMENT.threads
    resources:
        gpu=GPU,
    params:
        identity=identity("evaluate"),
    shell:
        f"{AGENTRL} eval test --algorithm {{wildcards.algorithm}} --seed {{wildcards.seed}} {OPTIONS} > {{log:q}} 2>&1"


rule compare:
    input:
        validations(),
        [outputs(LAYOUT.test(algorithm, seed)) for algorithm, seed in runs()],
        expand(
            f"{ROOT}/evaluation/sft/{{panel}}/outputs.json",
            panel=["validation", "test"],
        ),
    output:
        outputs(LAYOUT.tables),
    log:
        f"{ROOT}/logs/compare.log",
    params:
        identity=identity("compare"),
        methods=list(EXPERIMENT.algorithms),
        seeds=list(EXPERIMENT.seeds),
        iterations=EXPERIMENT.training.iterations,
        validated=VALIDATED,
    shell:
        f"{AGENTRL} compare {OPTIONS} > {{log:q}} 2>&1"


rule report:
    input:
        outputs(LAYOUT.tables),
    output:
        outputs(LAYOUT.report),
        report(f"{ROOT}/report/report.html", category="Comparison"),
    log:
        f"{ROOT}/logs/report.log",
    params:
        identity=identity("report"),
    shell:
        f"{AGENTRL} report {OPTIONS} > {{log:q}} 2>&1"
