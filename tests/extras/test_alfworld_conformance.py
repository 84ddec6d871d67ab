"""The native engine plays real games exactly as TextWorld does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentbench_rl.envs.alfworld.gamefile import GameFile, load_packed
from agentbench_rl.envs.alfworld.suite import AlfworldSuite
from agentbench_rl.envs.alfworld.textworld_cache import memoised
from agentbench_rl.types import InfrastructureError
from benchmarks.alfworld_conformance import check_game

pytestmark = pytest.mark.extras
pytest.importorskip("textworld")


@pytest.fixture(scope="module")
def games(data_dir: Path) -> list[GameFile]:
    folder = data_dir / "alfworld"
    domain, grammar = (folder / "domain.pddl").read_text(), (folder / "grammar.twl2").read_text()
    return load_packed(folder / "sample_72.jsonl.xz", domain, grammar)


@pytest.fixture
def _fast() -> Iterator[None]:
    with memoised():
        yield


@pytest.mark.usefixtures("_fast")
@pytest.mark.parametrize("number", range(72))
def test_both_engines_agree_in_every_command(games: list[GameFile], number: int) -> None:
    check = check_game(games[number], steps=25, seed=0)
    assert check.differences == ()
    assert check.commands >= 25 + len(games[number].walkthrough)


def test_memoising_changes_nothing(games: list[GameFile]) -> None:
    suite = AlfworldSuite({"train": games[:1]}, engine="textworld")
    (task,) = suite.tasks("train")

    def trace() -> list[object]:
        engine = suite.make()
        seen: list[object] = [engine.reset(task)]
        for command in ["look", "inventory", "nonsense", *games[0].walkthrough]:
            seen += [engine.step(command), engine.admissible(), engine.digest()]
        return seen

    with memoised():
        fast = trace()
    assert trace() == fast


@pytest.mark.usefixtures("_fast")
def test_snapshots_by_replay_are_verified(games: list[GameFile]) -> None:
    suite = AlfworldSuite({"train": games[:2]}, engine="textworld")
    first, second = suite.tasks("train")
    engine = suite.make()
    engine.reset(first)
    for command in ("", *games[0].walkthrough[:2]):
        engine.step(command)
    snapshot, key, digest = engine.snapshot(), engine.state_key(), engine.digest()
    fork = engine.fork()
    engine.step("look")
    assert (engine.state_key(), engine.digest() == digest) == (key, False)
    engine.reset(second)
    engine.restore(snapshot)
    for copy in (fork, engine):
        assert (copy.snapshot(), copy.state_key(), copy.digest()) == (snapshot, key, digest)
    with pytest.raises(InfrastructureError, match="differs after 2 actions"):
        engine.restore(replace(snapshot, digests=(*snapshot.digests[:2], "other", *snapshot.digests[3:])))
    with pytest.raises(InfrastructureError, match="no snapshot"):
        engine.restore(None)
