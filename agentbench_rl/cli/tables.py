"""Tables and transcripts in the terminal."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

#: Width of tables in a file or a pipe, where nothing says how wide the reader's window is.
_WIDEST = 400


def print_comparison(summary: Path) -> None:
    """Print success with its interval and the paired difference to the start policy, one line per method."""
    import pandas as pd

    frame = pd.read_csv(summary)
    success = frame.loc[frame["metric"] == "success"]
    gain = frame.loc[frame["metric"] == "success_minus_sft"]
    table = Table(title=f"Success on the test panel ({success['interval_over'].iloc[-1]})")
    for column in ("method", "success", "minus sft", "episodes", "seeds", "sampled tokens", "updates"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in success.to_dict("records"):
        matching = gain.loc[gain["method"] == row["method"]].to_dict("records")
        counts = (str(row[name]) for name in ("episodes", "seeds", "sampled_tokens", "updates"))
        table.add_row(str(row["method"]), _interval(row), _interval(matching[0]) if matching else "", *counts)
    Console().print(table)


def _interval(row: Mapping[Hashable, Any]) -> str:
    return f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def print_rows(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table of strings: as wide as the terminal, or, into a file or a pipe, as wide as it needs to be."""
    table = Table(title=title, show_lines=False)
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDEST)
    console.print(table)
