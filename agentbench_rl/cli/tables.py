"""Tables and transcripts in the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table


def print_comparison(summary: Path) -> None:
    """Print success with its interval and the paired difference to the start policy, one line per method."""
    import pandas as pd

    frame = pd.read_csv(summary)
    success = frame.loc[frame["metric"] == "success"].set_index("method")
    gain = frame.loc[frame["metric"] == "success_minus_sft"].set_index("method")
    table = Table(title=f"Success on the test panel ({success['interval_over'].iloc[-1]})")
    for column in ("method", "success", "minus sft", "episodes", "seeds", "sampled tokens", "updates"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for method, row in success.iterrows():
        difference = _interval(gain.loc[method]) if method in gain.index else ""
        counts = (str(row[name]) for name in ("episodes", "seeds", "sampled_tokens", "updates"))
        table.add_row(str(method), _interval(row), difference, *counts)
    Console().print(table)


def _interval(row: object) -> str:
    mean, low, high = (float(row[name]) for name in ("mean", "low", "high"))  # type: ignore[index]
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def print_rows(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table of strings."""
    table = Table(title=title, show_lines=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
