"""Downloads that can be resumed and are checked: a file appears under its name only when all of it is right."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from agentbench_rl.types import AgentRLError

_TIMEOUT_SECONDS = 60
_CHUNK = 1 << 20


def download(url: str, file: Path, sha256: str | None = None, hint: str = "") -> None:
    """Place the content of `url` at `file`, unless it is there; what an interrupted download left is completed.

    hint: what else a user can do without a network, appended to the message.
    Raises AgentRLError when the network fails, or when the content is not the one of SHA-256 `sha256`.
    """
    if file.is_file():
        check_sha256(file, sha256)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(file.name + ".part")
    try:
        size = _receive(url, partial)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            partial.unlink(missing_ok=True)
        raise _network_error(url, file, hint, f"the server answers {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise _network_error(url, file, hint, str(getattr(error, "reason", error))) from error
    got = partial.stat().st_size
    if size is not None and got != size:
        raise _network_error(url, file, hint, f"{got} of {size} bytes came")
    check_sha256(partial, sha256)
    partial.rename(file)


def check_sha256(file: Path, expected: str | None) -> None:
    """Raise AgentRLError, and delete the file, when its SHA-256 is another one; None: any is right."""
    if expected is None:
        return
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != expected:
        file.unlink()
        raise AgentRLError(f"{file}: SHA-256 {found}, expected {expected}; it was deleted, call again to fetch it.")


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


def _network_error(url: str, file: Path, hint: str, reason: str) -> AgentRLError:
    return AgentRLError(
        f"{url}: cannot be downloaded ({reason}). Call again to resume, or download it elsewhere and put it at "
        f"{file}{hint}."
    )
