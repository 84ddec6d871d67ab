"""A method's resolved composition, each setting with the reason that stands behind it in the preset files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from agentbench_rl.presets import load_algorithm, preset_files

_COMMENT = re.compile(r"\s#\s+(.*)$")
_WIDTH = 44


def composition_lines(name: str) -> Iterator[str]:
    """YAML of the resolved method, reasons as comments; raises AgentRLError for an unknown preset."""
    files = preset_files("algorithms", name)
    yield f"# {name}" + "".join(f", from {file.stem}" for file in files[1:])
    reasons: dict[str, str] = {}
    for file in reversed(files):
        reasons |= _reasons(file)
    yield from _lines(load_algorithm(name).model_dump(mode="json"), "", reasons)


def _lines(section: dict[str, Any], prefix: str, reasons: dict[str, str]) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for key, value in section.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _lines(value, f"{path}.", reasons)
            continue
        text = f"{indent}{key}: {_value(value)}"
        reason = reasons.get(path, "off: not a part of this method" if value in (None, False, []) else "")
        yield f"{text:{_WIDTH}}# {reason}" if reason else text


def _value(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def _reasons(file: Path) -> dict[str, str]:
    """Comment of every setting's line, by dotted key."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return dict(_walk(root, "", lines)) if isinstance(root, yaml.MappingNode) else {}


def _walk(node: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode):
            yield from _walk(value, f"{path}.", lines)
        found = _COMMENT.search(lines[key.start_mark.line])
        if found and not (isinstance(value, yaml.MappingNode) and value.start_mark.line > key.start_mark.line):
            yield path, found[1]
