"""What it costs to start a job per stage: the same small experiment staged and online, through `agentrl run`.

Run: PYTHONPATH=. python benchmarks/startup.py [--repeats 3] [--iterations 2] [--out results/benchmarks/startup.json]

Experiment: `smoke` with GRPO, one thread, one core, from one start policy on. Timed is a run of Snakemake from there to
the last validation: online one job with all iterations, staged a job per stage. Both write the same files, and the
seconds that stages spend on their work stand in their manifests; the rest is overhead: Snakemake, processes, imports,
and in staged runs what a stage loads again. Overhead per job: what staged runs have more of it, over their further
jobs. Processor seconds (of all processes) say the same where other programs take their share of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAME, ALGORITHM = "startup", "grpo"
MODES = ("online", "staged")
REPOSITORY = Path(__file__).resolve().parents[1]


def run(directory: Path, mode: str, iterations: int, target: str) -> dict[str, float]:
    """Make one file of the experiment; seconds on the clock, and of processors in all processes."""
    settings = [
        f"name={NAME}",
        f"mode={mode}",
        f"algorithms=[{ALGORITHM}]",
        f"training.iterations={iterations}",
        f"iterations_per_job={iterations}",
        f"evaluation.every={iterations}",
        "tracking.enabled=false",
        "demos.episodes=16",
        "sft.steps=20",
    ]
    command = [sys.executable, "-m", "agentbench_rl", "run", "-e", "smoke", "--cores", "1"]
    command += [part for setting in settings for part in ("--set", setting)]
    command += [f"results/{NAME}/{target}", "--directory", str(directory), "--quiet", "all"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"the {mode} run failed:\n{(done.stdout + done.stderr)[-3000:]}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "processor_seconds": processor}


def measure(directory: Path, mode: str, iterations: int) -> dict[str, float]:
    """Train anew in one mode: seconds of the run, of its stages' work, and the rest; number of stages and jobs."""
    runs = directory / "results" / NAME / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    last = f"runs/{ALGORITHM}/seed0/iteration{iterations - 1:03d}/validation/outputs.json"
    segment = f"runs/{ALGORITHM}/seed0/segments/{iterations - 1:03d}.json"
    found = run(directory, mode, iterations, last if mode == "staged" else segment)
    manifests = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(runs.rglob("manifest.json"))]
    work = sum(manifest["ledger"]["wall_seconds"] for manifest in manifests)
    jobs = len(manifests) if mode == "staged" else 1
    return found | {"work_seconds": work, "overhead_seconds": found["seconds"] - work, "jobs": jobs}


def per_job(staged: dict[str, float], online: dict[str, float], name: str) -> float:
    """How much more of something a staged run has, over its further jobs."""
    return (staged[name] - online[name]) / (staged["jobs"] - online["jobs"])


def spread(values: list[float]) -> dict[str, float]:
    """Median and extremes."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def main() -> None:
    """Run both modes in turn, print medians, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/startup.json"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run(Path(scratch), "online", given.iterations, "sft/outputs.json")
        rounds = [
            {mode: measure(Path(scratch), mode, given.iterations) for mode in MODES} for _ in range(given.repeats)
        ]
    medians = {
        mode: {name: statistics.median(one[mode][name] for one in rounds) for name in rounds[0][mode]} for mode in MODES
    }
    for mode, values in medians.items():
        print(
            f"{mode}: {values['seconds'] / given.iterations:.1f} s per iteration "
            f"({values['work_seconds'] / given.iterations:.1f} s of work), {values['jobs']:.0f} jobs, "
            f"{values['processor_seconds'] / given.iterations:.1f} processor seconds per iteration"
        )
    ratio = spread([one["staged"]["seconds"] / one["online"]["seconds"] for one in rounds])
    overhead = {
        name: spread([per_job(one["staged"], one["online"], name) for one in rounds])
        for name in ("overhead_seconds", "processor_seconds")
    }
    for name, values in overhead.items():
        print(f"{name} per job: {values['median']:.2f} ({values['least']:.2f} to {values['most']:.2f})")
    print(f"staged takes {ratio['median']:.2f} times as long ({ratio['least']:.2f} to {ratio['most']:.2f})")
    settings = {"iterations": given.iterations, "repeats": given.repeats}
    result = {"settings": settings, "medians": medians, "per_job": overhead, "staged_over_online": ratio}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result | {"runs": rounds}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
