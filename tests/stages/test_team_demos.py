"""Demonstrations of teams: what they show is what the engine shows, and what is wrong in them is not imitated."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from tiny_experiment import RAW, tiny

from agentbench_rl.config import Experiment, Json
from agentbench_rl.envs import open_suite
from agentbench_rl.policies.base import Completion
from agentbench_rl.policies.loading import load_tokenizer
from agentbench_rl.policies.tokenisation import ChatCodec
from agentbench_rl.rollout.episode import PlaySettings, specs_of_groups
from agentbench_rl.rollout.team import TeamEpisode
from agentbench_rl.rollout.workflows import open_workflow
from agentbench_rl.rollout.workflows.base import ActiveSet, Demonstration
from agentbench_rl.rollout.workflows.mathematics import Mathematics
from agentbench_rl.stages.demos import demo_schema, demos
from agentbench_rl.stages.files import read_frame
from agentbench_rl.stages.layout import Layout
from agentbench_rl.stages.panel import load_panel, panel
from agentbench_rl.stages.sft import demo_sequences, sft
from agentbench_rl.types import AgentRLError, Ending

ENVIRONMENTS: dict[str, Json] = {
    "mathematics": {"base": "math"},
    "search": {"base": "search", "max_turns": 7, "generator": {"entities": 40, "hops": [1, 2]}},
    "propose_act": RAW["environment"] | {"max_turns": 30},
}
EXPERTS = {"propose_act": "search"}


def experiment(workflow: str, orchestration: str = "mixed", **changes: Json) -> Experiment:
    sizes = {"train": 8, "validation": 2, "test": 2}
    sections: Json = {
        "environment": ENVIRONMENTS[workflow],
        "team": {"workflow": workflow, "orchestration": orchestration, "members": 3},
        "demos": {"episodes": 8, "expert": EXPERTS.get(workflow, "scripted")},
        "algorithms": {"grpo-team": {"base": "grpo-team", "topology": {"group_size": 2}}},
    }
    if workflow != "propose_act":
        sections["panels"] = {name: {"split": name, "size": size} for name, size in sizes.items()}
    return tiny(**sections | changes)


def record(config: Experiment, root: Path) -> tuple[Layout, pd.DataFrame]:
    layout = Layout(root)
    panel(config, layout.panels)
    demos(config, layout)
    return layout, read_frame(layout.demos / "demos.parquet", demo_schema())


@pytest.mark.parametrize("orchestration", ["fixed", "mixed", "routed"])
@pytest.mark.parametrize("workflow", list(ENVIRONMENTS))
def test_a_team_that_says_what_was_demonstrated_sees_the_demonstrated_prompts_and_succeeds(
    workflow: str, orchestration: str, tmp_path: Path
) -> None:
    config = experiment(workflow, orchestration)
    layout, frame = record(config, tmp_path)
    assert frame["episode_id"].nunique() == 8
    sft(config.model_copy(update={"sft": config.sft.model_copy(update={"steps": 0})}), layout)
    codec = ChatCodec(load_tokenizer(layout.sft / "policy"))
    suite = open_suite(config.environment, layout.panels / "games")
    tasks = {task.task_id: task for task in load_panel(layout.panels, "train")}
    assert config.team is not None
    settings = PlaySettings(
        config.environment, config.model, 10_000, 20_000, 1.0, "policy", 0, config.team,
        open_workflow(config.team, config.environment),
    )  # fmt: skip
    for _, rows in frame.groupby("episode_id"):
        spec = specs_of_groups([tasks[rows["task_id"].iloc[0]]], 1, "replay")[0]
        episode = TeamEpisode(spec, suite.make(), codec, settings)
        left = iter(rows.to_dict("records"))
        while not episode.over:
            requests = episode.requests()
            said = [next(left) for _ in requests]
            assert [list(request.prompt_ids) for request in requests] == [
                codec.open(
                    [{"role": "system", "content": row["system"]}, {"role": "user", "content": row["observation"]}]
                )
                for row in said
            ]
            ids = [codec.encode_response(str(row["action"])) for row in said]
            episode.advance([Completion(tokens, [0.0] * len(tokens), [0.0] * len(tokens), True) for tokens in ids])
        assert episode.ending is Ending.SUCCESS
        assert next(left, None) is None


@cache
def often_wrong() -> Experiment:
    return experiment("mathematics", demos={"episodes": 16, "expert": "scripted"})


def test_members_are_trained_one_by_one_and_their_mistakes_are_not_imitated(tmp_path: Path) -> None:
    layout, frame = record(often_wrong(), tmp_path)
    sft(often_wrong(), layout)
    codec = ChatCodec(load_tokenizer(layout.sft / "policy"))
    sequences = demo_sequences(frame, codec, often_wrong())
    right = frame[frame["trainable"]].reset_index(drop=True)
    assert 0 < len(right) < len(frame)
    assert len(sequences) == len(right)
    for sequence, row in zip(sequences, right.itertuples(), strict=True):
        (response,) = sequence.responses
        assert response.turn_id == f"{row.episode_id}.{row.step}"
        assert codec.decode(sequence.token_ids[response.start : response.stop]) == row.action
        assert codec.decode(sequence.token_ids[: response.start]) == f"{row.system}{row.observation}"


def test_the_tokenizer_knows_the_words_of_the_instructions(tmp_path: Path) -> None:
    team = {"workflow": "mathematics", "members": 2, "instructions": {"solver": "Ponder this."}}
    layout, _ = record(experiment("mathematics", team=team), tmp_path)
    sft(experiment("mathematics", team=team), layout)
    tokenizer = load_tokenizer(layout.sft / "policy")
    assert tokenizer.tokenize("Ponder this.") == ["Ponder", "Ġthis", "."]


def test_equal_seeds_give_equal_bytes(tmp_path: Path) -> None:
    files = [record(often_wrong(), tmp_path / name)[0].demos / "demos.parquet" for name in ("one", "two")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_an_expert_that_rarely_wins_is_reported(tmp_path: Path) -> None:
    hasty = ENVIRONMENTS["propose_act"] | {"max_turns": 1}
    with pytest.raises(AgentRLError, match=r"demos: the search expert won 0 of 20 episodes"):
        record(experiment("propose_act", environment=hasty), tmp_path)


def test_a_demonstration_outside_the_workflows_grammar_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mumble(_self: object, _memory: object, active: ActiveSet, *_: object) -> tuple[Demonstration, ...]:
        return tuple(Demonstration("mumble") for _ in active.members)

    monkeypatch.setattr(Mathematics, "demonstrate", mumble)
    with pytest.raises(AgentRLError, match="'mumble' is demonstrated in a propose event and malformed there"):
        record(experiment("mathematics"), tmp_path)
