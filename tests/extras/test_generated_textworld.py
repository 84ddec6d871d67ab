"""TextWorld accepts generated games with their own rules and plays them as the native engine does."""

from __future__ import annotations

import pytest

from agentbench_rl.config.environment import TASK_TYPES
from agentbench_rl.envs.alfworld.gamefile import GameFile
from agentbench_rl.envs.alfworld.generator import SPLITS, Sizes, generate_split
from agentbench_rl.envs.alfworld.textworld_cache import memoised
from benchmarks.alfworld_conformance import check_game

pytestmark = pytest.mark.extras
pytest.importorskip("textworld")

SIZES = {
    "small": Sizes(receptacles=(5, 9), objects=(4, 12), floor_plans=8, task_types=TASK_TYPES),
    "large": Sizes(receptacles=(15, 35), objects=(20, 40), floor_plans=8, task_types=TASK_TYPES),
}


def games() -> list[GameFile]:
    return [game for sizes in SIZES.values() for split in SPLITS for game in generate_split(17, split, 6, **sizes)]


@pytest.mark.parametrize("game", games(), ids=lambda game: game.task_id.split("/")[1])
def test_both_engines_agree_in_every_command(game: GameFile) -> None:
    with memoised():
        check = check_game(game, steps=25, seed=1)
    assert check.differences == ()
    # Commands at random may win, and so end, a game early.
    assert check.commands > len(game.walkthrough)
