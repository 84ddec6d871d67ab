"""Causal LMs of several architectures, loaded from a directory with a chat template of their own: sampled, scored."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from small_policies import TEXTS, VOCABULARY
from transformers import AutoConfig, AutoModelForCausalLM

from agentbench_rl.config import ModelConfig
from agentbench_rl.config.environment import PromptConfig
from agentbench_rl.policies.base import SamplingRequest
from agentbench_rl.policies.context import EpisodeContext
from agentbench_rl.policies.hf import HFSampler
from agentbench_rl.policies.loading import load_policy, load_tokenizer, save_policy
from agentbench_rl.policies.tokenisation import ChatCodec, train_tokenizer
from agentbench_rl.training.scoring import policy_measure, score_tokens
from agentbench_rl.training.sharding import blocks
from agentbench_rl.types import AgentRLError

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {"num_key_value_heads": 2}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen2": GROUPED | {"tie_word_embeddings": True},
    "gpt_neox": {"use_parallel_residual": True},
    "gemma": GROUPED | {"head_dim": 8},
}
#: Like Qwen3 and DeepSeek-R1: what an earlier turn thought is gone from a conversation that is rendered anew.
FORGETFUL = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}"
    "{{ m['content'] if m['role'] == 'user' else m['content'].split('</think>')[-1] }}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
OBSERVATIONS = ["you see a fridge 1.", "you see a cabinet 2.", "you see a drawer 3."]
THOUGHT = "<think>the fridge is near</think>go to fridge 1"


@pytest.fixture(scope="module", params=ARCHITECTURES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy of one architecture, whose tokenizer has the forgetful template."""
    tokenizer = train_tokenizer(TEXTS, VOCABULARY)
    tokenizer.chat_template = FORGETFUL
    rest = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "pad_token_id": None,
    }
    config = AutoConfig.for_model(request.param, **SIZES, **rest, **ARCHITECTURES[request.param])
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)
    directory = tmp_path_factory.mktemp(request.param)
    save_policy(model, tokenizer, directory)
    return directory


def episode(sampler: HFSampler, codec: ChatCodec, name: str) -> list[dict[str, Any]]:
    """The turns of an episode whose prompts grow."""
    context = EpisodeContext(codec, PromptConfig(), ModelConfig(context="append"))
    rows: list[dict[str, Any]] = []
    for step, observation in enumerate(OBSERVATIONS):
        prompt = context.prompt(observation)
        (done,) = sampler.generate([SamplingRequest(name, prompt.whole_ids, 12, seed=len(name) + step)])
        context.respond(done.token_ids, done.finished, "look")
        row = {"turn_id": f"{name}.{step}", "parent_id": f"{name}.{step - 1}" if step else None}
        row |= {"extends_parent": prompt.extends_parent, "prompt_ids": prompt.added_ids}
        rows.append(row | {"response_ids": done.token_ids, "sampled": done.logprobs})
    return rows


def test_what_was_sampled_is_scored_as_it_was_sampled(saved: Path) -> None:
    """Also where two episodes share a row, and the prompt that both begin with."""
    codec = ChatCodec(load_tokenizer(saved))
    sampler = HFSampler(slots=1, max_context=200)
    sampler.load(saved, 0)
    turns = pd.DataFrame([row for name in ("first", "another") for row in episode(sampler, codec, name)])
    model = load_policy(saved)
    assert len(blocks(model)) == SIZES["num_hidden_layers"]
    for packing in ("rows", "packed", "tree"):
        scores = score_tokens(model, policy_measure(model), turns, 512, packing=packing)["logprobs"]
        for turn, sampled in zip(turns["turn_id"], turns["sampled"], strict=True):
            np.testing.assert_allclose(scores[turn], sampled, atol=1e-4)


def test_a_template_that_forgets_thoughts_does_not_change_what_was_said(saved: Path) -> None:
    tokenizer = load_tokenizer(saved)
    codec = ChatCodec(tokenizer)
    context = EpisodeContext(codec, PromptConfig(), ModelConfig(context="append"))
    said: list[int] = []
    messages = []
    for observation in OBSERVATIONS:
        said += context.prompt(observation).added_ids
        response = codec.encode_response(THOUGHT)
        context.respond(response, True, "go to fridge 1")
        said += response
        messages += [{"role": "user", "content": observation}, {"role": "assistant", "content": THOUGHT}]
    whole = context.prompt("you see a bed 1.").whole_ids
    assert whole[: len(said)] == said
    assert tokenizer.decode(whole).count(THOUGHT) == len(OBSERVATIONS)
    assert "near" not in tokenizer.apply_chat_template(messages, tokenize=False)


def test_weights_of_another_architecture_are_refused(saved: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(saved, tmp_path / "copy")
    kind = "llama" if "llama" not in saved.name else "gemma"
    sizes = SIZES | GROUPED | {"vocab_size": VOCABULARY, "head_dim": 16}
    AutoConfig.for_model(kind, **sizes).save_pretrained(copy)
    with pytest.raises(AgentRLError, match=r"the weights do not fit config\.json|cannot load"):
        load_policy(copy)
