"""Running the workflow for real: the command line starts Snakemake, which starts the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml
from tiny_experiment import RAW, lasting_files

from agentbench_rl.config import Json

REPOSITORY = Path(__file__).resolve().parents[2]
#: What tells how a run went, not what came out; the report shows seconds.
_CONDUCT = ("logs/", "jobs/", "experiment.json", ".parent_run", ".workplace", "report/")


def command(directory: Path, *arguments: str, raw: Json = RAW) -> list[str]:
    """`agentrl run` of the tiny experiment, or of `raw`, with results below `directory`."""
    experiment = directory / "tiny.yaml"
    experiment.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    base = [sys.executable, "-m", "agentbench_rl", "run", "-e", str(experiment), "--cores", "2"]
    return [*base, *arguments, "--directory", str(directory)]


def environment(package: Path = REPOSITORY) -> dict[str, str]:
    """The environment of a run that imports the package from `package`."""
    return os.environ | {"PYTHONPATH": f"{package}:{REPOSITORY}", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}


def run(directory: Path, *arguments: str, package: Path = REPOSITORY, raw: Json = RAW) -> str:
    """Run the workflow and return what it printed; fails with the output when the exit code is not zero."""
    done = subprocess.run(
        command(directory, *arguments, raw=raw),
        cwd=REPOSITORY,
        env=environment(package),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-6000:]
    return output


def planned(output: str) -> dict[str, int]:
    """Jobs of a dry run by rule."""
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE)}


def results(directory: Path) -> dict[str, bytes]:
    """What came out of a run: all files that do not tell how it went."""
    root = directory / "results" / "tiny"
    files = lasting_files(root)
    return {
        name: content for name, content in files.items() if not name.startswith(_CONDUCT) and "segments/" not in name
    }
