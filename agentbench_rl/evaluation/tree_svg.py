"""One rollout tree as an SVG: time runs to the right, every dot is a response, every row ends in a leaf.

Colours: Okabe and Ito; blue for a positive advantage, orange for a negative one, the stronger the larger it is. The
sign also stands in the numbers below a dot. Hovering over a dot tells all that is known of its turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import escape

from agentbench_rl.evaluation.trees import Run, Tree, Turn, printable
from agentbench_rl.types import Ending

_UP, _DOWN, _NONE = "#0072B2", "#D55E00", "#8c8c8c"
_LEFT, _TOP, _ROW, _STEP = 20.0, 74.0, 60.0, 30.0
#: Width of a character of the text, in pixels, on the safe side.
_CHARACTER = 6.2
_LONGEST_LABEL, _LONGEST_LEAF, _LONGEST_TITLE = 26, 48, 400
_STYLE = (
    ".tree text{font:11px system-ui,'DejaVu Sans',sans-serif;fill:#1b1b1b}.tree .dim{fill:#555555}"
    ".tree path{fill:none;stroke:#b8b8b8;stroke-width:1.5px}.tree .hit{fill:transparent}"
)


def tree_svg(tree: Tree) -> str:
    """The picture as a document of its own; equal trees give equal bytes."""
    rows: dict[str, float] = {}
    leaves = 0
    for start in tree.starts:
        leaves = _place(start, rows, leaves)
    columns = _columns(tree)
    largest = max((abs(turn.advantage) for turn in tree.turns if turn.advantage is not None), default=0.0)
    body = [*_heading(tree), *_first_state(tree, columns, rows)]
    for run in tree.runs:
        body += _drawn(run, columns, rows, largest)
    heading = len(tree.task_id + tree.task_type + short_id(tree)) + 12
    width = max(columns[-1] + _LONGEST_LEAF * _CHARACTER, _LEFT + heading * _CHARACTER * 1.1, 700.0)
    height = _TOP + _ROW * leaves
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tree" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(body)}</svg>\n'
    )


def state_text(forks: Sequence[Run]) -> str:
    """What is known of a state where several responses were sampled: mean return R, entropy H (nats), score S, n."""
    turn = forks[0].turns[0]
    returns = [value for fork in forks for value in fork.turns[0].returns]
    mean = sum(returns) / len(returns) if returns else None
    parts = [("R", mean, ".2f"), ("H", turn.entropy, ".2f"), ("S", turn.score, ".2f"), ("n", turn.allocation, ".0f")]
    return " ".join(f"{name} {value:{form}}" for name, value, form in parts if value is not None)


def credit_text(turn: Turn) -> str:
    """What a turn was credited: advantage A, step reward r."""
    parts = [("A", turn.advantage, "+.2f"), ("r", turn.reward, "+.2f")]
    text = " ".join(f"{name} {value:{form}}" for name, value, form in parts if value is not None)
    return text.replace("-", "−")


def outcome_text(turn: Turn) -> str:
    """How the episode ended whose last turn this is."""
    if turn.ending is None:
        return "not expanded"
    value = f", return {turn.returns[0]:g}" if turn.returns else ", no return"
    return f"{'✓' if turn.ending == Ending.SUCCESS else '✗'} {turn.ending}{value}"


def short_id(tree: Tree) -> str:
    """The tree's id without the task, which stands beside it."""
    return tree.tree_id.replace(tree.task_id, "…")


def turn_text(turn: Turn) -> str:
    """All that is known of a turn, a line for each thing."""
    numbers = {
        "entropy before": (turn.entropy, "{:.3f} nats"),
        "state score": (turn.score, "{:.3f}"),
        "responses sampled there": (turn.allocation, "{:.0f}"),
        "step reward": (turn.reward, "{:+.3f}"),
        "mean return below": (turn.mean_return, f"{{:.3f}} (leaves: {len(turn.returns)})"),
        "advantage": (turn.advantage, "{:+.4f}"),
        "loss weight": (turn.weight, "{:g}"),
    }
    lines = [
        f"[{turn.step}] {turn.action}{'' if turn.valid else '   (malformed)'}",
        _cut(turn.observation, _LONGEST_TITLE),
        "",
    ]
    lines += [f"{name}: {form.format(value)}" for name, (value, form) in numbers.items() if value is not None]
    lines += [] if turn.ending is None else [f"ending: {turn.ending}"]
    return "\n".join(lines)


def _place(run: Run, rows: dict[str, float], free: int) -> int:
    """Give all runs a row, from the row `free` on, and return the next free one: a fork is in the middle of its own."""
    first = free
    for fork in run.forks:
        free = _place(fork, rows, free)
    free = max(free, first + 1)
    rows[run.turns[0].turn_id] = (first + free - 1) / 2
    return free


def _columns(tree: Tree) -> list[float]:
    """Where the first state (column 0) and the state after each step stand; labels of inner runs have room."""
    widths = [_STEP] * (max(turn.step for turn in tree.turns) + 2)
    widths[0] = max(_STEP, _CHARACTER * (len(state_text(tree.starts)) + 2))
    for run in sorted((run for run in tree.runs if run.forks), key=lambda run: run.turns[0].step):
        first, last = run.turns[0].step + 1, run.turns[-1].step + 1
        whole = _CHARACTER * (max(len(_label(run, _LONGEST_LABEL)), len(credit_text(run.turns[0]))) + 2)
        state = _CHARACTER * (len(state_text(run.forks)) + 2)
        widths[last] = max(widths[last], whole - sum(widths[first:last]), state)
    columns = [_LEFT]
    for width in widths[:-1]:
        columns.append(columns[-1] + width)
    return columns


def _heading(tree: Tree) -> Iterator[str]:
    """The tree's name, and what the marks mean."""
    yield f'<text x="{_LEFT}" y="16"><tspan font-weight="600">{_text(tree.task_id)}</tspan> '
    yield f'<tspan class="dim">{_text(tree.task_type)}, tree {_text(short_id(tree))}</tspan></text>'
    marks = [
        (_UP, "advantage above zero (stronger: larger)"),
        (_DOWN, "below zero"),
        (_NONE, "zero"),
        ("", "not trained on"),
    ]
    x = _LEFT + 5
    for colour, meaning in marks:
        look = f'fill="{colour}"' if colour else f'fill="white" stroke="{_NONE}" stroke-dasharray="2 2"'
        yield f'<circle cx="{x:.0f}" cy="34" r="5" {look}/><text x="{x + 10:.0f}" y="38">{meaning}</text>'
        x += 22 + _CHARACTER * len(meaning)
    yield f'<text class="dim" x="{_LEFT}" y="54">A: advantage, R: mean return below, H: entropy at the fork (nats)'
    yield ", S: state score, n: responses, r: step reward</text>" if _scored(tree) else "</text>"


def _first_state(tree: Tree, columns: list[float], rows: Mapping[str, float]) -> Iterator[str]:
    """The task's first state, and the edges to the responses sampled there."""
    outer = [rows[start.turns[0].turn_id] for start in tree.starts]
    x, y = columns[0], _height((outer[0] + outer[-1]) / 2)
    yield from _edges(x, y, tree.starts, columns, rows)
    yield f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="#1b1b1b"/>'
    yield f'<text class="dim" x="{x - 5:.1f}" y="{y + 31:.1f}">{_text(state_text(tree.starts))}</text>'


def _scored(tree: Tree) -> bool:
    return any(turn.score is not None for turn in tree.turns)


def _drawn(run: Run, columns: list[float], rows: Mapping[str, float], largest: float) -> Iterator[str]:
    y = _height(rows[run.turns[0].turn_id])
    places = [columns[turn.step + 1] for turn in run.turns]
    yield f'<path d="M{places[0]:.1f} {y:.1f}H{places[-1]:.1f}"/>'
    yield from _edges(places[-1], y, run.forks, columns, rows)
    left = places[0] - 5
    longest = _LONGEST_LABEL if run.forks else _LONGEST_LEAF
    yield f'<text x="{left:.1f}" y="{y - 11:.1f}">{_text(_label(run, longest))}</text>'
    yield f'<text class="dim" x="{left:.1f}" y="{y + 19:.1f}">{_text(credit_text(run.turns[0]))}</text>'
    if run.forks:
        yield f'<text class="dim" x="{places[-1] - 5:.1f}" y="{y + 31:.1f}">{_text(state_text(run.forks))}</text>'
    else:
        yield f'<text x="{places[-1] + 11:.1f}" y="{y + 4:.1f}">{_text(outcome_text(run.turns[-1]))}</text>'
    for x, turn in zip(places, run.turns, strict=True):
        yield _dot(x, y, turn, largest)


def _edges(x: float, y: float, forks: Sequence[Run], columns: list[float], rows: Mapping[str, float]) -> Iterator[str]:
    """Curves from a state to the responses sampled there."""
    for fork in forks:
        end, height = columns[fork.turns[0].step + 1], _height(rows[fork.turns[0].turn_id])
        bend = end - min(end - x, _STEP) / 2
        yield f'<path d="M{x:.1f} {y:.1f}H{end - min(end - x, _STEP):.1f}'
        yield f'C{bend:.1f} {y:.1f} {bend:.1f} {height:.1f} {end:.1f} {height:.1f}"/>'


def _dot(x: float, y: float, turn: Turn, largest: float) -> str:
    advantage = turn.advantage or 0.0
    colour = _UP if advantage > 0 else _DOWN if advantage < 0 else _NONE
    look = f'fill="{colour}" fill-opacity="{0.35 + 0.65 * abs(advantage) / largest if largest else 1.0:.2f}"'
    if turn.advantage is None or turn.weight == 0:
        look = 'fill="white" stroke-dasharray="2 2"'
    place = f'cx="{x:.1f}" cy="{y:.1f}"'
    title = f"<title>{_text(turn_text(turn))}</title>"
    # White below: an edge must not shine through a pale dot.
    return (
        f'<g>{title}<circle {place} r="5" fill="white"/><circle {place} r="5" {look} stroke="{colour}"/>'
        f'<circle {place} r="12" class="hit"/></g>'
    )


def _label(run: Run, longest: int) -> str:
    """The first action, and the last of several."""
    first, last = run.turns[0].action, run.turns[-1].action
    return _cut(first, longest) if len(run.turns) == 1 else f"{_cut(first, longest // 2)} → {_cut(last, longest // 2)}"


def _height(row: float) -> float:
    return _TOP + _ROW * (row + 0.5) - 8


def _cut(text: str, longest: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def _text(text: str) -> str:
    return str(escape(printable(text)))
