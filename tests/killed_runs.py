"""Runs that end in the middle, and what is compared afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tiny_experiment import lasting_files

from agentbench_rl.stages.layout import Layout


class Killed(BaseException):
    """Stands for the end of the process."""


def killed(work: Callable[[], object], owner: object, name: str, call: int, *, after: bool = False) -> None:
    """Do work in which a function of a module or class ends the process at one of its calls, before or after it."""
    calls, original = 0, getattr(owner, name)

    def fatal(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        result = original(*arguments, **named) if calls < call or after else None
        if calls == call:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fatal)
        with pytest.raises(Killed):
            work()


def differing(layout: Layout, expected: Layout, iteration: str = "iteration000") -> list[str]:
    """Files of an iteration that are not the expected ones, byte by byte."""
    found, wanted = (
        {name: content for name, content in lasting_files(each.root).items() if iteration in name}
        for each in (layout, expected)
    )
    assert any(name.endswith("update/metrics.jsonl") for name in wanted)
    return sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
