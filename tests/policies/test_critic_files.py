"""Critics on disk: round trip, equal bytes, damaged files, other architectures."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from small_policies import SMALL

from agentbench_rl.policies.critic import FACTS, TENSORS, Backbone, Critic, build_critic, load_critic, save_critic
from agentbench_rl.policies.loading import load_policy
from agentbench_rl.policies.tiny import build_policy
from agentbench_rl.types import AgentRLError

BACKBONES: tuple[Backbone, ...] = ("separate", "shared")


def trained(policy: Path, backbone: Backbone) -> Critic:
    critic = build_critic(load_policy(policy), backbone)
    with torch.no_grad():
        for value in critic.parameters():
            value.add_(0.25)
    return critic


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_critic_comes_back_as_it_was_and_gives_the_same_bytes_again(
    policy: Path, backbone: Backbone, tmp_path: Path
) -> None:
    critic = trained(policy, backbone)
    save_critic(critic, tmp_path / "one")
    loaded = load_critic(tmp_path / "one", load_policy(policy), backbone)
    expected = critic.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
    assert {name for name in expected if name.startswith("head")} == {"head.weight", "head.bias"}
    assert (len(expected) > 2) == (backbone == "separate")
    save_critic(loaded, tmp_path / "two")
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()} == files
    assert set(files) == {TENSORS, FACTS}


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_new_critic_says_0_of_every_state_and_draws_no_random_number(policy: Path, backbone: Backbone) -> None:
    before = torch.get_rng_state()
    critic = build_critic(load_policy(policy), backbone)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(critic(torch.rand(5, 32)), torch.zeros(5))


@pytest.mark.parametrize("name", [TENSORS, FACTS])
@pytest.mark.parametrize("keep", [None, 0.0, 0.5, 0.9])
def test_a_deleted_or_truncated_file_is_refused(policy: Path, name: str, keep: float | None, tmp_path: Path) -> None:
    save_critic(trained(policy, "separate"), tmp_path / "critic")
    file = tmp_path / "critic" / name
    content = file.read_bytes()
    file.unlink()
    if keep is not None:
        file.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(AgentRLError, match="missing or damaged"):
        load_critic(tmp_path / "critic", load_policy(policy), "separate")


def test_a_newer_version_and_another_backbone_are_refused(policy: Path, tmp_path: Path) -> None:
    save_critic(trained(policy, "shared"), tmp_path / "critic")
    with pytest.raises(AgentRLError, match=r"shared backbone, critic\.backbone is separate"):
        load_critic(tmp_path / "critic", load_policy(policy), "separate")
    facts = tmp_path / "critic" / FACTS
    facts.write_text(facts.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(AgentRLError, match="newer"):
        load_critic(tmp_path / "critic", load_policy(policy), "shared")


@pytest.mark.parametrize(
    ("backbone", "changes"),
    [("separate", {"layers": 1}), ("separate", {"hidden_size": 64}), ("shared", {"hidden_size": 64})],
)
def test_the_critic_of_another_architecture_is_refused(
    tokenizer: Any, changes: dict[str, int], backbone: Backbone, tmp_path: Path
) -> None:
    save_critic(build_critic(build_policy(SMALL, tokenizer, 0), backbone), tmp_path / "critic")
    other = build_policy(SMALL.model_copy(update=changes), tokenizer, 0)
    with pytest.raises(AgentRLError, match="another model"):
        load_critic(tmp_path / "critic", other, backbone)


def test_a_full_disk_is_an_error_of_the_operating_system(policy: Path, small_disk: Path) -> None:
    with pytest.raises(OSError, match=TENSORS) as caught:
        save_critic(build_critic(load_policy(policy), "separate"), small_disk / "critic")
    assert caught.value.errno == errno.ENOSPC
