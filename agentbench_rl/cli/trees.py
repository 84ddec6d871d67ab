"""A rollout tree in the terminal: a line for every run of turns without a fork, coloured by the advantage's sign."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text
from rich.tree import Tree as Lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbench_rl.evaluation.trees import Run, Tree

#: Width in a file or a pipe, where nothing says how wide the reader's window is.
_WIDEST = 400


def print_tree(tree: Tree) -> None:
    """Print the tree: blue lines have an advantage above zero, yellow ones below."""
    from agentbench_rl.evaluation.tree_svg import short_id

    lines = Lines(Text.assemble((tree.task_id, "bold"), f" ({tree.task_type}), tree {short_id(tree)}"))
    _grow(lines, tree.starts)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDEST)
    console.print(lines)
    legend = "A advantage, w loss weight, R mean return below, H entropy (nats)"
    if any(turn.score is not None for turn in tree.turns):
        legend += ", S state score, n responses sampled there, r step reward"
    console.print(Text(legend, style="dim"))


def _grow(lines: Lines, forks: Sequence[Run]) -> None:
    from agentbench_rl.evaluation.tree_svg import state_text

    if len(forks) > 1:
        lines.add(Text(state_text(forks), style="dim"))
    for fork in forks:
        _grow(lines.add(_line(fork)), fork.forks)


def _line(run: Run) -> Text:
    """The first action and the last, how many turns stand between, what the first was credited, and the end."""
    from agentbench_rl.evaluation.tree_svg import credit_text, outcome_text

    first, last = run.turns[0], run.turns[-1]
    advantage = first.advantage or 0.0
    text = Text(style="blue" if advantage > 0 else "yellow" if advantage < 0 else "")
    text.append(f"[{first.step}] {_flat(first.action)}")
    if len(run.turns) > 2:
        text.append(f" → ({len(run.turns) - 2} more)", style="dim")
    if len(run.turns) > 1:
        text.append(f" → [{last.step}] {_flat(last.action)}")
    if credit := credit_text(first):
        text.append(f"   {credit}" + ("" if first.weight is None else f" w {first.weight:g}"))
    if not run.forks:
        text.append(f"   {outcome_text(last)}", style="bold")
    return text


def _flat(action: str) -> str:
    return " ".join(action.split())
