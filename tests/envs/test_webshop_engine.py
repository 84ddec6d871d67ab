"""Episodes in the shop: pages, buttons, rewards, and what every environment must keep."""

from __future__ import annotations

import pickle
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_shop import MUG, mug_task, small_suite

from agentbench_rl.config.environment import WebshopEnvironment
from agentbench_rl.envs import open_source
from agentbench_rl.envs.base import Environment
from agentbench_rl.types import AgentRLError, InfrastructureError, Task

INSTRUCTION = "Find me double wall, easy clean mugs with color: red, and size: large, and price lower than"


@pytest.fixture
def episode() -> Environment:
    suite = small_suite()
    environment = suite.make()
    environment.reset(mug_task(suite))
    return environment


def test_the_pages_read_as_in_the_text_environment() -> None:
    suite = small_suite(page_size=2)
    episode = suite.make()
    start = episode.reset(mug_task(suite)).text
    wish = start.split(" [SEP] ")[2]
    assert wish.startswith(INSTRUCTION)
    assert start == f"WebShop [SEP] Instruction: [SEP] {wish} [SEP] Search"
    head = f"Instruction: [SEP] {wish} [SEP] Back to Search"

    found = episode.step("search[alder birch mug]").observation
    mugs = "B00000MUG1 [SEP] Alder Coffee Mug [SEP] $12.5 [SEP] B00000MUG2 [SEP] Birch Coffee Mug [SEP] $95.0"
    assert found == f"{head} [SEP] Page 1 (Total results: 3) [SEP] Next > [SEP] {mugs}"
    more = episode.step("click[next >]").observation
    assert (
        more == f"{head} [SEP] Page 2 (Total results: 3) [SEP] < Prev [SEP] B00000BOOK [SEP] A Book of Mugs [SEP] $12.5"
    )
    assert episode.step("click[< prev]").observation == found

    item = episode.step(f"click[{MUG}]").observation
    options = "color [SEP] blue [SEP] red [SEP] size [SEP] small [SEP] large"
    foot = "Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    assert item == f"{head} [SEP] < Prev [SEP] {options} [SEP] Alder Coffee Mug [SEP] Price: $12.5 [SEP] {foot}"
    assert episode.step("click[red]").observation == item
    assert episode.step("click[description]").observation == f"{head} [SEP] < Prev [SEP] For hot drinks."
    assert episode.step("click[< prev]").observation == item
    features = episode.step("click[features]").observation
    assert features == f"{head} [SEP] < Prev [SEP] Dishwasher safe. [SEP] Made of clay."
    episode.step("click[< prev]")
    assert episode.step("click[reviews]").observation == f"{head} [SEP] < Prev [SEP] No reviews found"
    episode.step("click[< prev]")
    assert episode.step("click[large]").process_reward == 1.0  # sub-pages kept the colour
    assert episode.step("click[< prev]").observation == found
    assert episode.step(f"click[{MUG}]").process_reward == pytest.approx(3 / 5)  # the options are gone
    assert episode.step("click[back to search]").observation == start


def test_buttons_are_listed_and_a_search_is_always_possible(episode: Environment) -> None:
    assert episode.admissible() is None
    episode.step("search[mug]")
    assert f"click[{MUG.lower()}]" in (episode.admissible() or [])
    episode.step(f"click[{MUG}]")
    assert episode.admissible() == sorted(
        f"click[{label}]"
        for label in (
            *("back to search", "< prev", "description", "features", "reviews", "buy now"),
            *("blue", "red", "small", "large"),
        )
    )
    assert "B000000CUP" in episode.step("search[tea cup]").observation


def test_buying_ends_the_episode_and_pays_its_reward(episode: Environment) -> None:
    for action in ("search[mug]", f"click[{MUG}]", "click[red]", "click[blue]", "click[red]"):
        result = episode.step(action)
        assert (result.reward, result.done, result.success) == (0.0, False, False)
    assert result.process_reward == pytest.approx(4 / 5)
    partial = episode.fork()
    bought = partial.step("click[Buy Now]")
    assert (bought.reward, bought.done, bought.success) == (pytest.approx(4 / 5), True, False)
    episode.step("click[large]")
    bought = episode.step("click[buy now]")
    assert (bought.reward, bought.done, bought.success, bought.process_reward) == (1.0, True, True, 1.0)
    assert episode.expert_action() is None
    assert episode.admissible() == []
    with pytest.raises(InfrastructureError, match="over"):
        episode.step("click[buy now]")


@pytest.mark.parametrize(
    ("action", "valid"),
    [
        ("", False),
        ("buy now", False),
        ("click[]", False),
        ("search[]", False),
        ("click[red] now", False),
        ("Search[mug]", False),
        ("click[large]\nclick[red]", True),
        ("click[search]", True),
        ("click[b0000000000]", True),
        ("\x00\ud800\U0001f600", False),
        ("click[" + "x" * 100_000 + "]", True),
        ("search" * 20_000, False),
    ],
)
def test_actions_without_effect_are_harmless(episode: Environment, action: str, valid: bool) -> None:
    episode.step("search[mug]")
    episode.step(f"click[{MUG}]")
    before, key, digest = episode.step("click[red]"), episode.state_key(), episode.digest()
    after = episode.step(action)
    assert (after.observation, after.reward, after.done) == (before.observation, 0.0, False)
    assert after.valid is valid
    assert episode.state_key() == key
    assert episode.digest() != digest  # the step counts


def test_a_huge_query_is_cut(episode: Environment) -> None:
    result = episode.step("search[mug " + "\U0001f600é " * 50_000 + "]")
    assert MUG in result.observation
    assert len(pickle.dumps(episode.snapshot())) < 20_000


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=12), st.lists(st.integers(0, 30), max_size=8))
def test_episodes_are_functions_of_their_actions(first: list[int], then: list[int]) -> None:
    suite = small_suite(page_size=2)
    task = mug_task(suite)
    one, other = suite.make(), suite.make()
    one.reset(task)
    other.reset(task)
    for choice in first:
        action = choose(one, choice)
        if action is None:
            break
        assert one.step(action) == other.step(action)
    moment = pickle.loads(pickle.dumps(one.snapshot()))
    branch, digest, worth = one.fork(), one.digest(), one.process_reward()
    for choice in then:
        action = choose(branch, choice)
        if action is None:
            break
        branch.step(action)
    assert one.digest() == other.digest() == digest
    branch.restore(moment)
    assert branch.digest() == digest
    assert (branch.state_key(), branch.process_reward()) == (one.state_key(), worth)
    branch.reset(task)
    fresh = suite.make()
    fresh.reset(task)
    assert branch.digest() == fresh.digest()


def choose(episode: Environment, choice: int) -> str | None:
    actions = ["search[mug]", "search[coffee cup]", *(episode.admissible() or [])]
    return None if episode.admissible() == [] else actions[choice % len(actions)]


def test_equal_pages_of_different_goals_have_different_keys() -> None:
    suite = small_suite()
    keys = set()
    for task in suite.tasks("train"):
        episode = suite.make()
        episode.reset(task)
        keys.add(episode.state_key())
    assert len(keys) == len(suite.tasks("train"))


def test_misuse_is_refused() -> None:
    suite = small_suite()
    episode = suite.make()
    with pytest.raises(InfrastructureError, match="reset must be called"):
        episode.step("search[mug]")
    with pytest.raises(InfrastructureError, match="no snapshot"):
        episode.restore("nonsense")
    with pytest.raises(AgentRLError, match="no goal"):
        episode.reset(Task("unknown", "garden", "train", ""))
    task = mug_task(suite)
    with pytest.raises(AgentRLError, match="differ"):
        episode.reset(Task(task.task_id, task.task_type, task.split, "0" * 64))
    with pytest.raises(AgentRLError, match="no expert 'search'"):
        suite.demonstrator("search", episode, task, 0)


def success_of(environment: WebshopEnvironment, expert: str, counts: dict[str, int | None], step: int = 1) -> float:
    suite = open_source(environment, counts)
    won = []
    for split in counts:
        for task in suite.tasks(split)[::step]:
            episode = suite.make()
            observation, action = episode.reset(task).text, None
            follow = suite.demonstrator(expert, episode, task, 0)
            won.append(False)
            for _ in range(environment.max_turns):
                action = follow(observation, action)
                if action is None:
                    break
                result = episode.step(action)
                observation = result.observation
                if result.done:
                    won[-1] = result.success
                    break
    return sum(won) / len(won)


@pytest.mark.parametrize("page_size", [4, 10])
def test_experts_win_in_the_generated_shop(page_size: int) -> None:
    environment = WebshopEnvironment(name="webshop", page_size=page_size)
    counts: dict[str, int | None] = {"train": 60, "validation": 20, "test": 20}
    assert success_of(environment, "oracle", counts) == 1.0
    assert success_of(environment, "scripted", counts) >= 0.9


def test_the_oracle_wins_every_official_goal(data_dir: Path) -> None:
    environment = WebshopEnvironment(name="webshop", data=data_dir / "webshop")
    counts: dict[str, int | None] = {"train": None, "validation": None, "test": None}
    assert success_of(environment, "oracle", counts, step=7) == 1.0
    assert success_of(environment, "scripted", {"test": None}, step=4) >= 0.8


def test_steps_are_quick() -> None:
    suite = open_source(WebshopEnvironment(name="webshop"), {"train": 200})
    rng = random.Random(0)
    plans = []
    for task in suite.tasks("train"):
        episode = suite.make()
        observation = episode.reset(task).text
        plan = [suite.demonstrator("scripted", episode, task, 0)(observation, None) or ""]
        episode.step(plan[0])
        while len(plan) < 8:
            plan.append(rng.choice(sorted({*(episode.admissible() or ["search[x]"])} - {"click[buy now]"})))
            episode.step(plan[-1])
        plans.append((task, plan))
    fastest = 0.0
    for _ in range(3):
        begin = time.process_time()
        for task, plan in plans:
            episode.reset(task)
            for action in plan:
                episode.step(action)
        fastest = max(fastest, sum(len(plan) for _, plan in plans) / (time.process_time() - begin))
    assert fastest > 4000  # about 20,000 on a quiet core
