"""Presets: inheritance, the reason of every setting, the table of methods, refusals before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tiny_experiment import RAW
from typer.testing import CliRunner

from agentbench_rl import presets
from agentbench_rl.algorithms.requirements import Capability, check_requirements, requirements
from agentbench_rl.cli import app
from agentbench_rl.cli.composition import composition_lines
from agentbench_rl.config.topology import Expand
from agentbench_rl.presets import load_algorithm, load_experiment, load_preset, preset_names
from agentbench_rl.stages.preflight import check_experiment
from agentbench_rl.types import AgentRLError

NAMES = preset_names("algorithms")
#: The presets that the documentation promises.
PROMISED = (
    "ppo ppo-turn grpo drgrpo rloo reinforcepp reinforcepp-baseline gigpo hgpo dapo gspo cispo empg spear starpo-s "
    "sampo dr-bot grpo-verl-agent rloo-verl-agent gigpo-verl-agent "
    "bpo bpo-tree-weighted vineppo 3spo 3spo-paper srpo grpo-team dr-mas gspo-team"
)


def test_the_promised_presets_are_there() -> None:
    assert set(PROMISED.split()) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_a_preset_has_a_reason(name: str) -> None:
    lines = list(composition_lines(name))
    bare = [line for line in lines[1:] if "#" not in line and not line.endswith(":")]
    assert [line.split(":")[0] for line in bare] == ["source"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_shown_is_the_method_that_runs(name: str) -> None:
    shown = yaml.safe_load("\n".join(composition_lines(name)))
    assert shown == load_algorithm(name).model_dump(mode="json")


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-verl-agent")])
def test_only_parity_presets_count_rows_and_they_pay_ten(name: str) -> None:
    parity, plain = load_algorithm(name), load_algorithm(name.removesuffix("-verl-agent"))
    assert (parity.advantage.statistics, plain.advantage.statistics) == ("per_row", "per_trajectory")
    assert (parity.reward.scale, parity.reward.invalid_action_penalty) == (10.0, 0.1)
    assert parity.loss == plain.loss


def test_every_other_preset_counts_episodes() -> None:
    for name in NAMES:
        statistics = getattr(load_algorithm(name).advantage, "statistics", "per_trajectory")
        assert statistics == ("per_row" if name.endswith("-verl-agent") else "per_trajectory")


def test_the_table_names_every_method_with_its_needs_and_source() -> None:
    result = CliRunner().invoke(app, ["algorithms"])
    assert result.exit_code == 0
    for name in NAMES:
        assert f" {name} " in result.output
    needs = ("anchor keys", "dense rewards", "token entropies")
    for part in (*needs, "replay", "critic", "resampled", "arXiv 2505.10978"):
        assert part in result.output


@pytest.fixture
def own_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of algorithm presets in place of the shipped ones."""
    directory = tmp_path / "configs" / "algorithms"
    directory.mkdir(parents=True)
    monkeypatch.setattr(presets, "configs_directory", lambda: tmp_path / "configs")
    return directory


def test_a_preset_starts_from_its_base_and_a_section_of_another_kind_starts_anew(own_presets: Path) -> None:
    (own_presets / "root.yaml").write_text("loss: {kind: token_clip, dual_clip: 3.0}\nreward: {scale: 2}")
    (own_presets / "middle.yaml").write_text("base: root\nreward: {invalid_action_penalty: 1}")
    (own_presets / "leaf.yaml").write_text("base: middle\nloss: {kind: cispo}")
    assert load_preset("algorithms", "leaf") == {
        "loss": {"kind": "cispo"},
        "reward": {"scale": 2, "invalid_action_penalty": 1},
    }


def test_presets_that_are_each_others_base_are_refused(own_presets: Path) -> None:
    (own_presets / "a.yaml").write_text("base: b")
    (own_presets / "b.yaml").write_text("base: a")
    with pytest.raises(AgentRLError, match=r"b.yaml: base: a leads back to itself"):
        load_preset("algorithms", "a")
    (own_presets / "b.yaml").write_text("base: c")
    with pytest.raises(AgentRLError, match="unknown algorithm 'c'"):
        load_preset("algorithms", "a")


def test_an_override_of_a_kind_takes_the_new_kinds_defaults() -> None:
    experiment = load_experiment(RAW, ["algorithms.grpo.loss.kind=sapo", "algorithms.grpo.loss.tau_negative=1.2"])
    loss = experiment.algorithms["grpo"].loss
    assert (loss.kind, loss.tau_positive, loss.tau_negative) == ("sapo", 1.0, 1.2)  # type: ignore[union-attr]


def test_an_override_may_name_presets_and_a_later_one_change_them() -> None:
    changes = ["algorithms=[ppo, spear]", "algorithms.ppo.topology.group_size=3", "algorithms.mine={base: dapo}"]
    methods = load_experiment(RAW, changes).algorithms
    assert list(methods) == ["ppo", "spear", "mine"]
    assert methods["ppo"] == load_algorithm("ppo").model_copy(
        update={"topology": load_algorithm("ppo").topology.model_copy(update={"group_size": 3})}
    )
    assert (methods["spear"], methods["mine"]) == (load_algorithm("spear"), load_algorithm("dapo"))
    with pytest.raises(AgentRLError, match="did you mean 'ppo'"):
        load_experiment(RAW, ["algorithms=[pppo]"])


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("algorithms.grpo.loss.tau_negative=1.2", "algorithms.grpo.loss.tau_negative: unknown key"),
        ("algorithms.grpo.advantage.gamma=0.9", "algorithms.grpo.advantage.gamma: unknown key"),
        ("algorithms.grpo.modifiers=[{kind: empg, zetta: 1}]", "algorithms.grpo.modifiers.0.zetta: unknown key"),
        ("algorithms.grpo.loss.kind=gpso", "algorithms.grpo.loss: Input tag 'gpso'"),
        ("algorithms.grpo.topology.group_size=1", "needs groups larger than one"),
        ("algorithms.grpo.critic={}", "critic goes with advantage.estimator: gae"),
        ("algorithms.grpo.advantage.estimator=gae", "critic goes with advantage.estimator: gae"),
        ("algorithms.mine={base: ppo, topology: {group_size: 1, resample: {}}}", "larger than one"),
        ("algorithms.grpo.topology.greedy_baseline=true", "greedy_baseline goes with advantage.estimator: remax"),
        ("algorithms.grpo.reward.overlong={max_tokens: 4, cache_tokens: 5}", "cache_tokens 5 is larger"),
    ],
)
def test_a_setting_that_means_nothing_to_a_method_is_refused(override: str, key: str) -> None:
    with pytest.raises(AgentRLError) as error:
        load_experiment(RAW, [override])
    assert key in str(error.value)


@pytest.mark.parametrize(
    ("method", "capability"),
    [
        ("grpo", Capability.GROUPS),
        ("gigpo", Capability.ANCHOR_KEYS),
        ("hgpo", Capability.ANCHOR_KEYS),
        ("mt-grpo", Capability.DENSE_REWARDS),
        ("empg", Capability.TOKEN_ENTROPIES),
        ("aepo", Capability.TOKEN_ENTROPIES),
        ("bpo", Capability.SNAPSHOTS),
        ("vineppo", Capability.SNAPSHOTS),
    ],
)
def test_a_method_that_lacks_something_is_refused_by_the_name_of_it(method: str, capability: Capability) -> None:
    config = load_algorithm(method)
    check_requirements(config, set(Capability))
    with pytest.raises(AgentRLError, match=f"needs {capability}"):
        check_requirements(config, set(Capability) - {capability})


def test_methods_without_groups_do_not_ask_for_them() -> None:
    for name in ("ppo", "ppo-turn", "reinforcepp"):
        assert Capability.GROUPS not in requirements(load_algorithm(name))


def test_what_compares_groups_beside_the_estimator_asks_for_them() -> None:
    assert requirements(load_algorithm("starpo-s"))[Capability.GROUPS] == "selection.keep_groups"
    resampled = load_experiment(RAW, ["algorithms.mine={base: ppo, topology: {resample: {}}}"]).algorithms["mine"]
    assert requirements(resampled)[Capability.GROUPS] == "topology.resample"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"environment": {"base": "alfworld", "engine": "textworld"}, "algorithms": ["mt-grpo"]},
            "algorithm mt-grpo: advantage.estimator: mt_grpo needs dense rewards",
        ),
        *(
            (
                {"environment": environment, "algorithms": ["rspo-grpo"]},
                "algorithm rspo-grpo: schedule.source: dense needs dense rewards, which this experiment does not offer "
                r"\(schedule\.dense_reward: model learns them from outcomes, and schedule\.source: outcome explores",
            )
            for environment in ({"base": "gem", "game": "rg:chain_sum"}, {"base": "alfworld", "engine": "textworld"})
        ),
        (
            {"algorithms": {"mine": {"base": "grpo", "reward": {"tool_call_bonus": {"value": 0.1}}}}},
            "algorithm mine: reward.tool_call_bonus needs tool calls",
        ),
    ],
)
def test_an_experiment_is_refused_before_anything_runs(changes: dict[str, object], message: str) -> None:
    with pytest.raises(AgentRLError, match=message):
        check_experiment(load_experiment(RAW | changes))


def test_3spo_is_offered_in_the_robust_and_in_the_literal_reading() -> None:
    trees = [load_algorithm(name).topology for name in ("3spo", "3spo-paper")]
    assert all(isinstance(tree, Expand) for tree in trees)
    robust, paper = (tree.score for tree in trees if isinstance(tree, Expand))
    assert (robust.alpha, robust.clock, robust.key, robust.scope) == (1.0, "iteration", "state", "task")
    assert (paper.alpha, paper.clock, paper.key, paper.scope) == (50.0, "trajectories", "observation", "global")
    assert (robust.gate_root, robust.count, robust.decay) == (False, "tree", 0.98)
    assert (paper.gate_root, paper.count, paper.decay, paper.warmup_iterations) == (True, "leaf", 1.0, 0)
    assert (robust.novelty, robust.potential, paper.novelty, paper.potential) == (
        *("trajectory", "ungated"),
        *("changed", "gated"),
    )
    for score in (robust, paper):
        assert (score.max_failures, score.min_success, score.novelty_decay) == (10, 0.1, 0.1)
    limits = [(tree.max_responses, tree.max_leaves, tree.children) for tree in trees if isinstance(tree, Expand)]
    assert limits == [(128, 8, "distinct"), (512, 32, "all")]


def test_3spo_with_another_reward_view_is_refused() -> None:
    with pytest.raises(AgentRLError, match="step reward"):
        load_experiment(RAW | {"algorithms": {"one": {"base": "3spo", "reward": {"view": "process"}}}})


def test_srpo_and_its_baselines_differ_in_the_unit_alone() -> None:
    srpo, grpo, dr_mas, gspo = (load_algorithm(name) for name in ("srpo", "grpo-team", "dr-mas", "gspo-team"))
    shared = {"topology", "schedule", "reward", "selection", "modifiers", "critic", "replay", "old_logprobs"}
    assert all(method.model_dump(include=shared) == srpo.model_dump(include=shared) for method in (grpo, dr_mas, gspo))
    assert Capability.SNAPSHOTS not in requirements(srpo)
    assert (srpo.loss.kind, srpo.advantage.estimator) == ("set_clip", "event_zscore")
    assert (dr_mas.loss, gspo.advantage) == (grpo.loss, grpo.advantage)
    assert {method.loss.kl_coefficient for method in (srpo, grpo, dr_mas, gspo)} == {0.0}
