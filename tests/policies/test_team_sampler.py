"""Several policies in one directory: who answers a request, what is loaded, and where only one is expected."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from agentbench_rl.policies.base import SamplingRequest
from agentbench_rl.policies.hf import HFSampler
from agentbench_rl.policies.loading import load_policy, load_tokenizer, policy_names, policy_path, save_policy
from agentbench_rl.policies.team import TeamSampler
from agentbench_rl.types import AgentRLError

SIZES = {"slots": 6, "max_context": 200}


@pytest.fixture
def team(policy: Path, tokenizer: Any, tmp_path: Path) -> Path:
    """Directory of two different policies."""
    directory = tmp_path / "policy"
    shutil.copytree(policy, directory / "solver")
    model = load_policy(policy)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(0.5)
    save_policy(model, tokenizer, directory / "verifier")
    return directory


def requests(turn: int) -> list[SamplingRequest]:
    """Six sessions whose prompts grow from turn to turn, of two policies in turns."""
    draw = [random.Random(session) for session in range(6)]
    return [
        SamplingRequest(
            f"episode{session}",
            [one.randrange(5, 290) for _ in range(20 + 3 * session + 15 * turn)],
            5 + session,
            100 * turn + session,
            policy=("solver", "verifier")[session % 2],
        )
        for session, one in enumerate(draw)
    ]


def loaded(policy: Path) -> HFSampler:
    sampler = HFSampler(**SIZES)
    sampler.load(policy, 0)
    return sampler


def team_of(directory: Path, *names: str) -> TeamSampler:
    sampler = TeamSampler(names, lambda name: HFSampler(**SIZES))
    sampler.load(directory, 0)
    return sampler


def test_answers_are_bit_for_bit_those_of_a_sampler_per_policy(team: Path) -> None:
    together = team_of(team, "solver", "verifier")
    alone = {name: loaded(team / name) for name in policy_names(team)}
    for turn in range(3):
        answers = dict(zip([one.session for one in requests(turn)], together.generate(requests(turn)), strict=True))
        for name, sampler in alone.items():
            own = [one for one in requests(turn) if one.policy == name]
            assert [answers[one.session] for one in own] == sampler.generate(own)
        together.release("episode0")
        alone["solver"].release("episode0")


def test_names_that_share_a_directory_answer_as_one_policy_in_one_batch(policy: Path) -> None:
    together, alone = team_of(policy, "solver", "verifier"), loaded(policy)
    for turn in range(2):
        assert together.generate(requests(turn)) == alone.generate(requests(turn))
    assert together._samplers["solver"] is together._samplers["verifier"]


def test_a_load_replaces_every_policy(team: Path, policy: Path) -> None:
    sampler, fresh = team_of(policy, "solver", "verifier"), team_of(team, "solver", "verifier")
    sampler.generate(requests(0))
    sampler.load(team, 1)
    assert sampler.generate(requests(1)) == fresh.generate(requests(1))


def test_a_request_for_a_policy_that_is_not_loaded_is_refused(team: Path) -> None:
    sampler = team_of(team, "solver")
    with pytest.raises(AgentRLError, match="session 'episode1': policy 'verifier' is not loaded, only solver"):
        sampler.generate(requests(0))
    sampler.close()
    with pytest.raises(AgentRLError, match="only none"):
        sampler.generate(requests(0))


def test_a_directory_that_lacks_a_policy_of_the_team_is_refused(team: Path) -> None:
    with pytest.raises(AgentRLError, match="holds the policies solver, verifier, and none for 'aggregator'"):
        team_of(team, "solver", "aggregator")


def test_a_directory_of_one_policy_is_that_of_every_name(policy: Path, team: Path) -> None:
    assert (policy_names(policy), policy_path(policy, "solver")) == ((), policy)
    assert (policy_names(team), policy_path(team, "solver")) == (("solver", "verifier"), team / "solver")
    assert policy_names(team / "absent") == ()


@pytest.mark.parametrize("load", [load_policy, load_tokenizer, loaded])
def test_several_policies_where_one_is_expected_are_an_error_that_names_them(team: Path, load: Any) -> None:
    with pytest.raises(AgentRLError, match=r"policies of a team \(solver, verifier\).*such as .*/solver"):
        load(team)
