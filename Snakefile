# The whole comparison as a DAG. Without --configfile it means configs/experiments/quickstart.yaml.
from snakemake.utils import min_version

min_version("9.0")


container: "docker://python:3.11-slim"


if "name" not in config:

    configfile: "configs/experiments/quickstart.yaml"


include: "workflows/rules/common.smk"
include: "workflows/rules/start.smk"
include: "workflows/rules/online.smk"
include: "workflows/rules/staged.smk"
include: "workflows/rules/evaluation.smk"


localrules:
    all,


rule all:
    default_target: True
    input:
        final_outputs(),


onstart:
    record()
    shell("{AGENTRL} track start {OPTIONS}")


onsuccess:
    shell("{AGENTRL} track finish {OPTIONS}")
    print(f"Report: {LAYOUT.report / 'report.html'}   Tables: {LAYOUT.tables}")


onerror:
    shell("{AGENTRL} track finish --status FAILED {OPTIONS}")
