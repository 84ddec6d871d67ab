"""The wheel is whole: presets and data files are read from an installed package, far from the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agentbench_rl.presets import preset_names

pytestmark = pytest.mark.extras
REPOSITORY = Path(__file__).resolve().parents[2]
KINDS = ("algorithms", "environments", "models", "experiments")
#: What reading a configuration and generating a game import.
LIGHT = ("pydantic>=2.8", "pyyaml>=6.0", "typer>=0.15", "rich>=13.7")
READ_PRESETS = """
import json, agentbench_rl
from agentbench_rl.presets import load_experiment, preset_names
from agentbench_rl.envs import open_source
experiment = load_experiment("smoke")
task = open_source(experiment.environment, {"train": 1}).tasks("train")[0].task_id
kinds = ("algorithms", "environments", "models", "experiments")
for name in preset_names("experiments"):
    load_experiment(name)
print(json.dumps([agentbench_rl.__file__, {kind: preset_names(kind) for kind in kinds}, task]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory), "."]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    (built,) = directory.glob("*.whl")
    return built


def test_presets_are_read_from_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *LIGHT], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], check=True)
    answer = subprocess.run([python, "-I", "-c", READ_PRESETS], cwd=tmp_path, check=True, capture_output=True)
    origin, names, task = json.loads(answer.stdout)
    assert Path(origin).is_relative_to(tmp_path)
    assert names == {kind: preset_names(kind) for kind in KINDS}
    assert task.startswith("train/")


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert {top for top in tops if not top.endswith(".dist-info")} == {"agentbench_rl"}
