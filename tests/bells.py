"""A game whose dense reward is misaligned on purpose: the door wins, the bell pays for being rung."""

from __future__ import annotations

import random

from agentbench_rl.envs.replay import TextGame
from agentbench_rl.types import StepResult, Task

TURNS = 4


class Bells(TextGame):
    """To open the door ends the game in success; the dense reward counts rings, and knows nothing of the door."""

    def start(self, task: Task) -> str:
        self._rings, self._patience = 0, random.randrange(TURNS)
        return "A door and a bell."

    def act(self, action: str) -> StepResult:
        if action == "open":
            return StepResult("It opens.", reward=1.0, done=True, success=True)
        rung = action == "ring"
        self._rings = min(self._rings + rung, TURNS)
        return StepResult("It rings." if rung else "What?", reward=0.0, done=False, success=False, valid=rung)

    def state(self) -> str:
        return str(self._rings)

    def progress(self) -> float:
        return self._rings / TURNS

    def expert_action(self) -> str:
        """Some rings before the door, so that the start policy knows both."""
        return "ring" if self._rings < self._patience else "open"
