"""The rollout stage with vLLM: both schedulers give the same episodes, with log-probs that agree."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_experiment import RAW, tiny

from agentbench_rl.config import Experiment
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.prerequisites import prepare_start
from agentbench_rl.stages.rollout import rollout
from agentbench_rl.types import rollout_schema, silent

pytestmark = pytest.mark.extras


def experiment(scheduler: str) -> Experiment:
    """vLLM's attention on a CPU wants heads of at least 32 dimensions."""
    sampling = {"sampler": "vllm", "scheduler": scheduler, "workers": 2, "vllm": {"cpu_cache_gb": 1}}
    architecture = RAW["model"]["architecture"] | {"hidden_size": 64, "intermediate_size": 96}
    return tiny(rollout=RAW["rollout"] | sampling, model={"base": "tiny", "architecture": architecture})


def test_episodes_do_not_depend_on_the_scheduler(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    prepare_start(experiment("deterministic"), Layout(tmp_path / "start"), lambda _: silent)
    frames = {}
    for scheduler in ("deterministic", "continuous"):
        layout = Layout(shutil.copytree(tmp_path / "start", tmp_path / scheduler))
        manifest = rollout(experiment(scheduler), layout, "grpo", 0, 0)
        assert manifest["counts"]["retried"] == 0
        frames[scheduler] = read_frame(layout.stage("grpo", 0, 0, "rollout") / "rollouts.parquet", rollout_schema())
    one, other = frames.values()
    assert len(one) > 8
    for name in ("turn_id", "action", "observation", "state_key", "reward", "ending"):
        assert one[name].equals(other[name]), name
    for name in ("prompt_ids", "response_ids"):
        assert [list(ids) for ids in one[name]] == [list(ids) for ids in other[name]]
    for left, right in zip(one["response_logprobs"], other["response_logprobs"], strict=True):
        np.testing.assert_allclose(left, right, atol=1e-4)
