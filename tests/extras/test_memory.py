"""The predicted peak of an update's memory against what a process of its own takes at most."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentbench_rl.config import TrainingConfig
from agentbench_rl.training.memory import predicted_peak

pytestmark = pytest.mark.extras
REPOSITORY = Path(__file__).resolve().parents[2]
#: Blocks take most of the memory, or the vocabulary does.
SIZES = {
    "deep": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6, "vocab_size": 1024},
    "wide": {"hidden_size": 320, "intermediate_size": 864, "num_hidden_layers": 3, "vocab_size": 16384},
}
#: Sequences of 256 tokens, of which 192 are trained, in micro-batches of three.
SEQUENCES = {"sequences": 6, "prompt": 64, "response": 192}
#: Freed memory goes back to the system at once: what is measured is what was alive.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@pytest.fixture(scope="module", params=SIZES)
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    heads = SIZES[request.param]["hidden_size"] // 64
    tied = request.param == "wide"
    config = LlamaConfig(**SIZES[request.param], num_attention_heads=heads, tie_word_embeddings=tied)
    with torch.random.fork_rng():
        LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.mark.parametrize(
    "settings", [{"packing": "rows"}, {"packing": "tree"}, {"packing": "rows", "gradient_checkpointing": True}]
)
def test_the_predicted_peak_is_measured_within_30_percent(policy: Path, settings: dict[str, Any]) -> None:
    settings = settings | {"micro_batch_tokens": 768}
    training = TrainingConfig(iterations=1, learning_rate=1e-5, **settings)
    predicted = sum(predicted_peak("update", policy, 1, training, 1).values())
    case = json.dumps(SEQUENCES | {"training": settings})
    done = subprocess.run(
        [sys.executable, "tests/extras/update_peak.py", str(policy), case],
        env=os.environ | ALLOCATOR | {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert 1 / 1.3 < predicted / int(done.stdout) < 1.3
