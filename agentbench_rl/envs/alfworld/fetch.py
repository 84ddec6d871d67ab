"""Download of ALFWorld's official games: the release archive that `alfworld-download` of alfworld 0.4.2 takes."""

from __future__ import annotations

import re
import shutil
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from agentbench_rl.envs.download import download
from agentbench_rl.types import AgentRLError

URL = "https://github.com/alfworld/alfworld/releases/download/0.4.0/json_2.1.2_tw-pddl.zip"
#: Games per split as published (Shridhar et al. 2021, table 1).
COUNTS: Mapping[str, int] = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
TREE = "json_2.1.1"
_GAME = re.compile(r"(?:^|/)(train|valid_seen|valid_unseen|valid_train)/([^/]+)/([^/]+)/game\.tw-pddl$")


def fetch(destination: Path, url: str = URL, counts: Mapping[str, int] = COUNTS) -> dict[str, int]:
    """Place the official games under `destination/json_2.1.1` and return the number of games per split.

    An interrupted download is resumed. Raises AgentRLError when the network or the archive fails, or when a split
    does not hold the number of games that `counts` says.
    """
    tree = destination / TREE
    if not tree.is_dir():
        destination.mkdir(parents=True, exist_ok=True)
        archive = destination / url.rsplit("/", 1)[-1]
        if not archive.is_file():
            unpacked = f"{tree}/train/<task>/<trial>/game.tw-pddl"
            download(url, archive, hint=f", or unpack it so that {unpacked} exists")
        _extract(archive, tree, counts)
        archive.unlink()
    return _checked({split: len(list((tree / split).glob("*/*/game.tw-pddl"))) for split in counts}, counts, tree)


def _extract(archive: Path, tree: Path, counts: Mapping[str, int]) -> None:
    """Extract the game files alone, to paths made of split, task and trial; `tree` appears when all is there."""
    scratch = tree.with_name(tree.name + ".part")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        with zipfile.ZipFile(archive) as bundle:
            members = [(info, match.groups()) for info in bundle.infolist() if (match := _GAME.search(info.filename))]
            _checked(Counter(split for _, (split, _, _) in members), counts, archive)
            for info, (split, task, trial) in members:
                if {task, trial} & {".", ".."}:
                    raise AgentRLError(
                        f"{archive}: unsafe path {info.filename!r}; delete it and do not trust its source."
                    )
                file = scratch / split / task / trial / "game.tw-pddl"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(bundle.read(info))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        archive.unlink()
        raise AgentRLError(f"{archive}: damaged archive ({error}); it was deleted, call again to fetch it.") from error
    scratch.rename(tree)


def _checked(found: Mapping[str, int], counts: Mapping[str, int], origin: Path) -> dict[str, int]:
    for split, count in counts.items():
        if found.get(split, 0) != count:
            raise AgentRLError(
                f"{origin}: {found.get(split, 0)} games in the split {split!r} instead of {count}; "
                f"delete {origin} and fetch again."
            )
    return dict(found)
