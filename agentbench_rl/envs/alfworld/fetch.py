"""Download of ALFWorld's official games: the release archive that `alfworld-download` of alfworld 0.4.2 takes."""

from __future__ import annotations

import re
import shutil
import urllib.error
import urllib.request
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from agentbench_rl.types import AgentRLError

URL = "https://github.com/alfworld/alfworld/releases/download/0.4.0/json_2.1.2_tw-pddl.zip"
#: Games per split as published (Shridhar et al. 2021, table 1).
COUNTS: Mapping[str, int] = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
TREE = "json_2.1.1"
_GAME = re.compile(r"(?:^|/)(train|valid_seen|valid_unseen|valid_train)/([^/]+)/([^/]+)/game\.tw-pddl$")
_TIMEOUT_SECONDS = 60
_CHUNK = 1 << 20


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
            _download(url, archive)
        _extract(archive, tree, counts)
        archive.unlink()
    return _checked({split: len(list((tree / split).glob("*/*/game.tw-pddl"))) for split in counts}, counts, tree)


def _download(url: str, file: Path) -> None:
    partial = file.with_name(file.name + ".part")
    try:
        size = _receive(url, partial)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            partial.unlink(missing_ok=True)
        raise _network_error(url, file, f"the server answers {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise _network_error(url, file, str(getattr(error, "reason", error))) from error
    got = partial.stat().st_size
    if size is not None and got != size:
        raise _network_error(url, file, f"{got} of {size} bytes came; call again to resume")
    partial.rename(file)


def _receive(url: str, partial: Path) -> int | None:
    """Append to `partial` what is missing of it; returns the full size where the server tells it."""
    have = partial.stat().st_size if partial.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
        resumed = response.status == 206
        length = response.headers.get("Content-Length")
        start = have if resumed else 0
        size = start + int(length) if length is not None else None
        _copy(response, partial, start, size)
    return size


def _copy(response: HTTPResponse, partial: Path, start: int, size: int | None) -> None:
    columns = (*Progress.get_default_columns()[:1], BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with (
        partial.open("ab" if start else "wb") as out,
        Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task(partial.stem, total=size, completed=start)
        while chunk := response.read(_CHUNK):
            out.write(chunk)
            progress.advance(bar, len(chunk))


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


def _network_error(url: str, file: Path, reason: str) -> AgentRLError:
    return AgentRLError(
        f"{url}: cannot be downloaded ({reason}). Call again to resume, or download it elsewhere and put it at "
        f"{file}, or unpack it so that {file.parent / TREE}/train/<task>/<trial>/game.tw-pddl exists."
    )
