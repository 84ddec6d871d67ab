"""The chance that a trained policy is compared with: calls that are carried out, episodes that are graded."""

from __future__ import annotations

import random
from itertools import chain, repeat

import pytest
from code_games import SOLUTION, SOURCE, VISIBLE, small_suite

from agentbench_rl.envs.code.actions import TOOLS, Edit, parse
from benchmarks import code_random
from benchmarks.code_random import play_at_random, random_call

FILES = {"sums.py": SOURCE, "tests/test_sums.py": VISIBLE}


def test_every_random_call_can_be_carried_out() -> None:
    rng = random.Random(0)
    tools = set()
    for _ in range(400):
        call = random_call(FILES, rng)
        tools.add(call.split()[0])
        match parse(call):
            case Edit(path, old, _):
                assert FILES[path].count(old) == 1
    assert tools == set(TOOLS)


@pytest.mark.parametrize(("calls", "repaired"), [((SOLUTION, "submit"), True), (("list", SOLUTION), True), ((), False)])
def test_an_episode_of_random_calls_is_graded_at_its_end(
    calls: tuple[str, ...], repaired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = small_suite(max_turns=2)
    planned = chain(calls, repeat("list"))
    monkeypatch.setattr(code_random, "random_call", lambda files, rng: next(planned))
    task = suite.tasks("train")[0]
    assert play_at_random(suite, suite._games, task, 2, random.Random(0)) is repaired
