"""Loading of experiments: presets by name, changes to them, dotted overrides.

An experiment file names an environment, a model and a list of algorithms by preset (`configs/<kind>/<name>.yaml`);
a mapping `{base: NAME, key: value, …}` in their place changes single settings of the preset, and a preset may start
from another one by `base: NAME` too. A section that changes its `kind` or `estimator` starts anew: the settings of the
old kind mean nothing to the new one. Unknown keys are errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from agentbench_rl.config import Experiment, Json
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.config.environment import EnvironmentConfig
from agentbench_rl.types import AgentRLError

#: Keys that name which of several kinds of settings a section holds.
_DISCRIMINATORS = ("kind", "estimator")
#: Sections that are unions by such a key; pydantic puts the kind's name behind theirs.
_UNIONS = ("environment", "topology", "schedule", "advantage", "loss", "architecture", "modifiers")


def configs_directory() -> Path:
    """The shipped presets: inside the wheel, or beside the package in a checkout."""
    inside = Path(str(resources.files("agentbench_rl"))) / "configs"
    return inside if inside.is_dir() else inside.parent.parent / "configs"


def preset_names(kind: str) -> list[str]:
    """Names of the presets of a kind (`algorithms`, `environments`, `models`, `experiments`)."""
    return sorted(path.stem for path in (configs_directory() / kind).glob("*.yaml"))


def load_experiment(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Experiment:
    """Load an experiment from a file, a preset's name or a mapping, apply `a.b=value` overrides and validate it.

    As in a file, the value of an override may be a preset's name: `algorithms=[ppo,grpo]`.
    Raises AgentRLError naming the file and the key of each mistake.
    """
    if isinstance(source, Mapping):
        raw, origin = deepcopy(dict(source)), "experiment"
    else:
        path = _experiment_path(source)
        raw, origin = _read_yaml(path), str(path)
    resolved = _resolve_presets(raw, origin)
    for override in overrides:
        _apply_override(resolved, override)
        resolved = _resolve_presets(resolved, f"override {override!r}")
    try:
        return Experiment.model_validate(resolved)
    except ValidationError as error:
        raise AgentRLError(_explain(error, origin)) from None


def _experiment_path(source: str | Path) -> Path:
    path = Path(source)
    if path.suffix in {".yaml", ".yml", ".json"} or path.is_file():
        return path
    preset = configs_directory() / "experiments" / f"{source}.yaml"
    if not preset.exists():
        raise AgentRLError(_unknown("experiment", str(source), preset_names("experiments")))
    return preset


def _resolve_presets(raw: Json, origin: str) -> Json:
    resolved = dict(raw)
    for key, kind in (("environment", "environments"), ("model", "models")):
        if key in resolved:
            resolved[key] = _with_base(resolved[key], kind, f"{origin}: {key}")
    methods = resolved.get("algorithms")
    if isinstance(methods, list):
        methods = {str(name): name for name in methods}
    if isinstance(methods, dict):
        resolved["algorithms"] = {
            name: _with_base(value, "algorithms", f"{origin}: algorithms.{name}") for name, value in methods.items()
        }
    return resolved


def load_preset(kind: str, name: str) -> Json:
    """Read a preset's mapping, on top of its bases; raises AgentRLError with the known names when there is none such.

    Raises AgentRLError for presets that are each other's base, too.
    """
    merged: Json = {}
    for file in reversed(preset_files(kind, name)):
        merged = _merge(merged, {key: value for key, value in _read_yaml(file).items() if key != "base"})
    return merged


def preset_files(kind: str, name: str) -> list[Path]:
    """The preset's own file and those of its bases, the root last."""
    files: list[Path] = []
    while True:
        path = configs_directory() / kind / f"{name}.yaml"
        if not path.exists():
            raise AgentRLError(_unknown(kind.removesuffix("s"), name, preset_names(kind)))
        if path in files:
            raise AgentRLError(f"{files[-1]}: base: {name} leads back to itself")
        files.append(path)
        base = _read_yaml(path).get("base")
        if base is None:
            return files
        name = str(base)


def load_environment(name: str, overrides: Sequence[str] = ()) -> EnvironmentConfig:
    """Load an environment's preset, or a file's (`base: PRESET` may stand in it), with `key=value` overrides.

    Raises AgentRLError for unknown names and keys.
    """
    path = Path(name)
    is_file = path.suffix in {".yaml", ".yml"}
    raw = _with_base(_read_yaml(path), "environments", name) if is_file else load_preset("environments", name)
    for override in overrides:
        _apply_override(raw, override.removeprefix("environment."))
    try:
        environment: EnvironmentConfig = TypeAdapter(EnvironmentConfig).validate_python(raw)
        return environment
    except ValidationError as error:
        raise AgentRLError(_explain(error, f"environment {name}")) from None


def add_algorithm(experiment: Experiment, name: str) -> Experiment:
    """Return the experiment with the preset `name` among its methods; raises AgentRLError when there is none."""
    if name in experiment.algorithms:
        return experiment
    return experiment.model_copy(update={"algorithms": {**experiment.algorithms, name: load_algorithm(name)}})


def load_algorithm(name: str) -> AlgorithmConfig:
    """Load a method's preset; raises AgentRLError for unknown names and keys."""
    try:
        return AlgorithmConfig.model_validate(load_preset("algorithms", name))
    except ValidationError as error:
        raise AgentRLError(_explain(error, f"algorithm {name}")) from None


def _with_base(value: Any, kind: str, where: str) -> Json:
    if isinstance(value, str):
        return load_preset(kind, value)
    if not isinstance(value, dict):
        raise AgentRLError(f"{where}: expected a preset's name or a mapping, found {value!r}")
    if "base" not in value:
        return dict(value)
    if not isinstance(value["base"], str):
        raise AgentRLError(f"{where}.base: expected a preset's name, found {value['base']!r}")
    return _merge(load_preset(kind, value["base"]), {key: v for key, v in value.items() if key != "base"})


def _merge(base: Json, changes: Json) -> Json:
    if any(key in changes and changes[key] != base.get(key, changes[key]) for key in _DISCRIMINATORS):
        return dict(changes)
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _apply_override(target: Json, override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals:
        raise AgentRLError(f"override {override!r}: write it as section.key=value")
    *sections, last = path.split(".")
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise AgentRLError(f"override {override!r}: {section!r} is a value, not a section")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise AgentRLError(f"override {override!r}: the value cannot be read as YAML: {error}") from None
    changed = _merge(target, {last: value}) if last in _DISCRIMINATORS else target | {last: value}
    target.clear()
    target.update(changed)


def _read_yaml(path: Path) -> Json:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AgentRLError(f"{path}: no such configuration file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise AgentRLError(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(content, dict):
        raise AgentRLError(f"{path}: expected a mapping at the top level, found {type(content).__name__}")
    return content


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"unknown {kind} {name!r}{hint} Known: {', '.join(known)}"


def _explain(error: ValidationError, origin: str) -> str:
    lines = [f"{origin}: the configuration is not valid:"]
    for item in error.errors():
        key = _key(item["loc"]) or "(top level)"
        message = "unknown key; remove it or check its spelling" if item["type"] == "extra_forbidden" else item["msg"]
        lines.append(f"  {key}: {message}")
    return "\n".join(lines)


def _key(location: tuple[str | int, ...]) -> str:
    """Dotted key of a mistake, as it stands in the file."""
    parts: list[str] = []
    for number, part in enumerate(location):
        before = [str(item) for item in location[max(0, number - 2) : number]]
        of_union = before[-1:] in [[name] for name in _UNIONS if name != "modifiers"]
        of_modifier = len(before) == 2 and before[0] == "modifiers" and isinstance(location[number - 1], int)
        if not (of_union or of_modifier):
            parts.append(str(part))
    return ".".join(parts)
