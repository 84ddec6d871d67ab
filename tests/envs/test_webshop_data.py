"""Products, goals, splits and the generator: the official numbers, stable ids, clear errors for damaged files."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from small_shop import RECORDS, record, small_catalogue, small_suite

from agentbench_rl.config.environment import ShopGeneratorConfig, WebshopEnvironment
from agentbench_rl.envs import open_source, open_suite
from agentbench_rl.envs.webshop.catalogue import Catalogue, load_catalogue, make_product, write_catalogue
from agentbench_rl.envs.webshop.generator import generate_catalogue
from agentbench_rl.envs.webshop.goals import Goal, human_goals, parse_goal, synthetic_goals
from agentbench_rl.envs.webshop.suite import WebshopSuite
from agentbench_rl.types import AgentRLError

SPLITS = ("train", "validation", "test")


def all_goals(catalogue: Catalogue) -> list[Goal]:
    return [goal for product in catalogue.products.values() for goal in synthetic_goals(product)]


def shop(**settings: Any) -> WebshopEnvironment:
    return WebshopEnvironment(name="webshop", **settings)


def test_official_numbers(data_dir: Path) -> None:
    catalogue = load_catalogue(data_dir / "webshop")
    assert len(catalogue.products) == 1000
    sources = [product for product in catalogue.products.values() if "instruction" in product.record]
    assert len(sources) == 415
    assert sum(math.prod(len(values) for values in product.options.values()) for product in sources) == 6910
    goals = all_goals(catalogue)
    assert len({goal.task_id for goal in goals}) == len(goals) == 6901  # nine combinations occur twice
    assert sum(len(list(human_goals(product))) for product in catalogue.products.values()) == 13
    suite = open_source(shop(data=data_dir / "webshop"), dict.fromkeys(SPLITS))
    assert [len(suite.tasks(split)) for split in SPLITS] == [5507, 708, 686]


def test_goals_of_the_official_shop_are_disjoint_by_content(data_dir: Path) -> None:
    suite = open_source(shop(data=data_dir / "webshop"), dict.fromkeys(SPLITS))
    tasks = [task for split in SPLITS for task in suite.tasks(split)]
    assert len({task.content_hash for task in tasks}) == len({task.task_id for task in tasks}) == len(tasks)


def test_ids_and_splits_do_not_depend_on_the_rest_of_the_shop() -> None:
    alone = Catalogue([make_product(record(), "test")])
    known = {goal.task_id: goal for goal in all_goals(small_catalogue())}
    assert all(known[goal.task_id] == goal for goal in all_goals(alone))
    assert [(goal.task_id, goal.split, goal.price_bound) for goal in all_goals(alone)] == [
        ("B00000MUG1.0a06d4e3f3", "train", 50.0),
        ("B00000MUG1.dc0149463a", "train", 50.0),
        ("B00000MUG1.a4af0d2bf0", "train", 50.0),
        ("B00000MUG1.a2b0084d1a", "train", 40.0),
    ]
    assert known["B00000MUG2.a2b0084d1a"].split == known["B000000CUP.dc0149463a"].split == "test"


def test_price_bounds_lie_within_four_steps() -> None:
    for price in (4.0, 10.0, 12.5, 969.0, 985.0, 995.0):
        for goal in all_goals(Catalogue([make_product(record(pricing=[price]), "test")])):
            above = [step for step in range(10, 1000, 10) if step > price][:4]
            if len(above) < 2:
                assert goal.price_bound == 1e6
                assert "price lower" not in goal.instruction
            else:
                assert goal.price_bound in above[1:]
                assert goal.instruction.endswith(f", and price lower than {goal.price_bound:.2f} dollars")


def test_a_generated_shop_is_a_function_of_its_settings(tmp_path: Path) -> None:
    files = []
    for number, seed in enumerate((0, 0, 1)):
        files.append(tmp_path / f"{number}.jsonl.gz")
        write_catalogue(generate_catalogue(ShopGeneratorConfig(seed=seed, products=50)), files[-1])
    first, same, other = (file.read_bytes() for file in files)
    assert first == same != other


def test_generated_splits_are_disjoint_and_grow_in_place() -> None:
    suite = open_source(shop(), {"train": 300, "validation": 60, "test": 60})
    tasks = [task for split in SPLITS for task in suite.tasks(split)]
    assert len({task.content_hash for task in tasks}) == len({task.task_id for task in tasks}) == 420
    more = {task.task_id for task in open_source(shop(), {"train": 400}).tasks("train")}
    assert {task.task_id for task in suite.tasks("train")} < more


def test_generated_products_have_near_misses() -> None:
    products = generate_catalogue(ShopGeneratorConfig()).products.values()
    kinds = Counter(product.query for product in products)
    assert len(kinds) == 16
    assert min(kinds.values()) >= 20
    assert len({(product.query, product.attributes) for product in products}) > 200


def test_too_many_generated_tasks_are_refused() -> None:
    with pytest.raises(AgentRLError, match=r"raise environment\.generator\.products"):
        open_source(shop(generator={"products": 5}), {"train": 100_000})


def test_an_exported_panel_opens_as_an_equal_suite(tmp_path: Path) -> None:
    suite = open_source(shop(), {"train": 30, "test": 10})
    tasks = [*suite.tasks("train")[::2], *suite.tasks("test")]
    suite.export(tasks, tmp_path)
    opened = open_suite(shop(), tmp_path)
    assert opened.tasks("train") + opened.tasks("test") == tasks
    only = open_suite(shop(), tmp_path, ["test"])
    assert only.splits() == ("test",)
    one, other = suite.make(), only.make()
    assert one.reset(tasks[-1]) == other.reset(tasks[-1])
    assert one.step("search[vegan shampoo]") == other.step("search[vegan shampoo]")
    with pytest.raises(AgentRLError, match="no goal"):
        other.reset(tasks[0])


def test_options_may_hold_any_character(tmp_path: Path) -> None:
    product = make_product(record(options={"color": ["blue\u2028green", "red\x85"]}), "test")
    suite = WebshopSuite(Catalogue([product]), {"train": synthetic_goals(product)}, 10)
    suite.export(suite.tasks("train"), tmp_path)
    assert open_suite(shop(), tmp_path).tasks("train") == suite.tasks("train")


def test_changed_products_are_noticed(tmp_path: Path) -> None:
    suite = small_suite()
    changed = Catalogue([make_product(entry | {"pricing": [1.0]}, "test") for entry in RECORDS])
    before = suite.tasks("train")[0].content_hash
    assert all(goal.content_hash(changed) != before for goal in all_goals(changed))


def test_goals_that_people_wrote_need_data() -> None:
    with pytest.raises(ValueError, match="people wrote them"):
        shop(goals="human")


def test_a_goal_survives_writing() -> None:
    for goal in all_goals(small_catalogue()):
        assert parse_goal(goal.as_json(), "test") == goal
    with pytest.raises(AgentRLError, match="games, line 3: not a goal"):
        parse_goal('{"task_id": 1}', "games, line 3")


def write_lines(file: Path, *lines: str) -> Path:
    file.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode()))
    return file


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "holds no products"),
        (["{"], "line 1: invalid JSON"),
        (["[]"], "line 1: a JSON object is expected"),
        ([json.dumps(record()), json.dumps(record())], "1 lines repeat an asin"),
        ([json.dumps(record() | {"pricing": "free"})], "'pricing' holds a str"),
        ([json.dumps(record() | {"pricing": ["free"]})], "'pricing' holds something that is no number"),
        ([json.dumps(record() | {"options": {"color": "red"}})], "'options.color' holds something else"),
        ([json.dumps({k: v for k, v in record().items() if k != "title_nouns"})], "'title_nouns' is missing"),
    ],
)
def test_damaged_products_are_named(tmp_path: Path, lines: list[str], message: str) -> None:
    file = write_lines(tmp_path / "products.jsonl.gz", *lines)
    with pytest.raises(AgentRLError, match=message) as error:
        load_catalogue(tmp_path)
    assert str(file) in str(error.value)


def test_missing_truncated_and_ambiguous_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(AgentRLError, match="found: none; fetch the data with `agentrl env fetch webshop DIR`"):
        load_catalogue(tmp_path)
    with pytest.raises(AgentRLError, match="does not exist"):
        open_source(shop(data=tmp_path / "nowhere"), {"train": 1})
    file = write_lines(tmp_path / "products.jsonl.gz", *map(json.dumps, RECORDS))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AgentRLError, match="truncated or damaged gzip file"):
        load_catalogue(tmp_path)
    file.write_bytes(b"no gzip" + whole)
    with pytest.raises(AgentRLError, match="truncated or damaged gzip file"):
        load_catalogue(tmp_path)
    file.write_bytes(whole)
    (tmp_path / "products_2.jsonl.gz").write_bytes(whole)
    with pytest.raises(AgentRLError, match=r"found: products\.jsonl\.gz, products_2\.jsonl\.gz"):
        load_catalogue(tmp_path)
