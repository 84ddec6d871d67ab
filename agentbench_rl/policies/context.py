"""From observations to prompts and from responses to actions: append-only or windowed chat contexts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol

from agentbench_rl.config import ModelConfig
from agentbench_rl.config.environment import PromptConfig

_FIELD = re.compile(r"\{(goal|history|observation|admissible)\}")
_CJK = re.compile("[\u4e00-\u9fff]")
#: Without action tags the last characters of the response are sent, as in verl-agent's ALFWorld projection.
_FALLBACK_CHARACTERS = 30


class Codec(Protocol):
    """What a context needs of a tokenizer; see `policies.tokenisation.ChatCodec`."""

    def open(self, messages: Sequence[dict[str, str]]) -> list[int]: ...

    def follow(self, user_text: str, *, finished: bool) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens a turn adds before its response, and the whole prompt they complete."""

    added_ids: list[int]
    whole_ids: list[int]
    extends_parent: bool


class EpisodeContext:
    """The prompts of one episode; call `prompt` and `respond` in turn.

    `append`: every prompt continues the previous prompt and response, so nothing is ever tokenised twice.
    `window`: every prompt is rendered anew from the first observation, the last K turns and the current one.
    """

    def __init__(self, codec: Codec, prompt: PromptConfig, model: ModelConfig) -> None:
        self._codec = codec
        self._prompt = prompt
        self._window = model.window_turns if model.context == "window" else None
        self._ids: list[int] = []
        self._finished = True
        self._turns: list[tuple[str, str]] = []

    def prompt(self, observation: str, admissible: Sequence[str] | None = None) -> Prompt:
        """Return the prompt for the response to `observation`."""
        values = {
            "goal": self._turns[0][0] if self._turns else observation,
            "history": self._history(),
            "observation": observation,
            "admissible": "\n".join(admissible or ()),
        }
        if not self._turns or self._window is not None:
            template = self._prompt.window if self._turns else self._prompt.first
            added = self._codec.open(self._messages(_fill(template, values)))
            whole, extends = added, False
        else:
            added = self._codec.follow(_fill(self._prompt.next, values), finished=self._finished)
            whole, extends = self._ids + added, True
        self._ids = whole
        self._turns.append((observation, ""))
        return Prompt(added, whole, extends)

    def respond(self, response_ids: Sequence[int], finished: bool, action: str) -> None:
        """Record the sampled response to the last prompt."""
        self._ids = [*self._ids, *response_ids]
        self._finished = finished
        self._turns[-1] = (self._turns[-1][0], action)

    def copy(self) -> EpisodeContext:
        """The context of another continuation of the same episode; the two are independent."""
        other = copy(self)
        other._turns = list(self._turns)
        return other

    def _messages(self, user: str) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self._prompt.system}] if self._prompt.system else []
        return [*system, {"role": "user", "content": user}]

    def _history(self) -> str:
        recent = self._turns[-self._window :] if self._window else []
        return "\n".join(f"{observation}\n> {action}" for observation, action in recent)


def parse_action(text: str, finished: bool, action_format: str) -> tuple[str, bool]:
    """Return (action, well-formed) of a response's text.

    `plain`: the whole response is the action; well-formed when it ended by itself and is one non-empty line.
    `text`: the same, of any number of lines.
    `tags`: `<think>…</think><action>…</action>`; format-only validity as in verl-agent: both pairs present and no
    CJK character, whether or not the action is admissible.
    """
    if action_format in ("plain", "text"):
        action = text.strip()
        return action, finished and bool(action) and (action_format == "text" or "\n" not in action)
    tagged = _between(text, "action")
    valid = tagged is not None and _between(text, "think") is not None and _CJK.search(text) is None
    action = text[-_FALLBACK_CHARACTERS:] if tagged is None else tagged
    return action.strip().lower(), valid


def _between(text: str, tag: str) -> str | None:
    """What stands between the first `<tag>` and the next `</tag>`; linear in the text, unlike a lazy pattern."""
    _, opening, rest = text.partition(f"<{tag}>")
    inside, closing, _ = rest.partition(f"</{tag}>")
    return inside if opening and closing else None


def format_action(action: str, action_format: str) -> str:
    """The response text in which a demonstration says `action`."""
    return action if action_format in ("plain", "text") else f"<think></think><action>{action}</action>"


def _fill(template: str, values: dict[str, str]) -> str:
    return _FIELD.sub(lambda match: values[match.group(1)], template)
