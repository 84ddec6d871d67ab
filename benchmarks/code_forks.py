"""What it takes to fork a work tree for a test run: an overlay, or copies of all files.

Run: PYTHONPATH=. python benchmarks/code_forks.py [--files 100 1000 5000] [--repeats 50]

Overlays need root and a kernel that offers them. An overlay's time is that of a process which mounts it, changes to it
and ends; beside it stands the time of a process that only ends. Medians of wall time, the least and the most, in ms.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from agentbench_rl.config.environment import CodeLimits
from agentbench_rl.envs.code.sandbox import Sandbox, overlay_works
from agentbench_rl.envs.code.tree import TextBase, Tree

LINES = 40


def tree_of(files: int) -> Tree:
    """A tree of so many modules, one of them changed."""
    base = TextBase({f"package{n // 50}/module{n}.py": f"value = {n}\n" * LINES for n in range(files)})
    return Tree(base).write("package0/module0.py", "value = None\n")


def milliseconds(action: Callable[[], object], repeats: int) -> str:
    """Median, least and most; the first call, which also writes the base, does not count."""
    action()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        taken.append(1e3 * (time.perf_counter() - begin))
    return f"{statistics.median(taken):7.1f} ({min(taken):.1f} to {max(taken):.1f})"


def main() -> None:
    """Print a line per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--repeats", type=int, default=50)
    given = parser.parse_args()
    sandbox = Sandbox("none", CodeLimits())

    def fork(tree: Tree) -> None:
        with tempfile.TemporaryDirectory() as place:
            prefix, directory = sandbox.fork(tree, Path(place))
            if prefix:
                subprocess.run([*prefix, "true"], cwd=directory, check=True)

    print(f"{'a process alone':>24}: {milliseconds(lambda: subprocess.run(['true'], check=True), given.repeats)}")
    print("forks by overlay" if overlay_works() else "no overlays here: all files are copied")
    for files in given.files:
        tree = tree_of(files)
        print(f"{files:>18} files: {milliseconds(partial(fork, tree), given.repeats)}")


if __name__ == "__main__":
    main()
