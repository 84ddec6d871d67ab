"""Fetching ALFWorld's games: complete or nothing, resumable, and clear about what to do when it fails."""

from __future__ import annotations

import io
import re
import socket
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentbench_rl.envs.alfworld.fetch import fetch
from agentbench_rl.envs.download import download
from agentbench_rl.types import AgentRLError

COUNTS = {"train": 2, "valid_seen": 1}
MEMBERS = [
    "json_2.1.1/train/task-a/trial_1/game.tw-pddl",
    "json_2.1.1/train/task-b/trial_1/game.tw-pddl",
    "json_2.1.1/valid_seen/task-a/trial_1/game.tw-pddl",
    "json_2.1.1/train/task-a/trial_1/notes.txt",
]


def archive(members: list[str] = MEMBERS) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for member in members:
            bundle.writestr(member, f"content of {member}")
    return buffer.getvalue()


class Server(ThreadingHTTPServer):
    """Serves `content` at /games.zip with range requests; `cut` bytes are left out of each answer's end."""

    content = archive()
    cut = 0
    ranges: list[str | None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/games.zip"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/games.zip")
            self.end_headers()
            return
        if self.path != "/games.zip":
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        first = int(re.findall(r"\d+", wanted)[0]) if wanted else 0
        body = self.server.content[first:]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) - self.server.cut])

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.ranges = []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_the_games_alone_are_placed(server: Server, tmp_path: Path) -> None:
    assert fetch(tmp_path / "data", server.url, COUNTS) == COUNTS
    files = sorted(str(file.relative_to(tmp_path / "data")) for file in tmp_path.rglob("*") if file.is_file())
    assert files == MEMBERS[:3]
    assert (tmp_path / "data" / MEMBERS[0]).read_text() == f"content of {MEMBERS[0]}"


def test_what_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    fetch(tmp_path, server.url, COUNTS)
    assert fetch(tmp_path, server.url, COUNTS) == COUNTS
    assert server.ranges == [None]


def test_an_interrupted_download_is_told_and_resumed(server: Server, tmp_path: Path) -> None:
    server.cut = 100
    with pytest.raises(AgentRLError, match="Call again to resume"):
        fetch(tmp_path, server.url, COUNTS)
    server.cut = 0
    assert fetch(tmp_path, server.url, COUNTS) == COUNTS
    assert server.ranges == [None, f"bytes={len(server.content) - 100}-"]


def test_a_download_is_resumed_behind_a_redirection(server: Server, tmp_path: Path) -> None:
    (tmp_path / "games.zip.part").write_bytes(server.content[:100])
    download(server.url.replace("games.zip", "moved"), tmp_path / "games.zip")
    assert (tmp_path / "games.zip").read_bytes() == server.content
    assert server.ranges == ["bytes=100-"]


def test_a_truncated_archive_is_told_and_fetched_anew(server: Server, tmp_path: Path) -> None:
    server.content = archive()[:-60]
    with pytest.raises(AgentRLError, match=r"damaged archive.*call again to fetch it"):
        fetch(tmp_path, server.url, COUNTS)
    assert not (tmp_path / "json_2.1.1").exists()
    server.content = archive()
    assert fetch(tmp_path, server.url, COUNTS) == COUNTS


def test_an_archive_with_damaged_content_leaves_no_games(server: Server, tmp_path: Path) -> None:
    server.content = archive().replace(b"content of json_2.1.1/valid_seen", b"contempt of json_2.1.1/valid_see")
    with pytest.raises(AgentRLError, match="damaged archive"):
        fetch(tmp_path, server.url, COUNTS)
    assert not (tmp_path / "json_2.1.1").exists()


def test_missing_games_are_told(server: Server, tmp_path: Path) -> None:
    server.content = archive(MEMBERS[1:])
    with pytest.raises(AgentRLError, match="1 games in the split 'train' instead of 2"):
        fetch(tmp_path, server.url, COUNTS)
    assert not (tmp_path / "json_2.1.1").exists()


def test_nothing_is_written_outside_the_destination(server: Server, tmp_path: Path) -> None:
    server.content = archive(["x/../train/../../game.tw-pddl", *MEMBERS[1:]])
    with pytest.raises(AgentRLError, match="unsafe path"):
        fetch(tmp_path / "data", server.url, COUNTS)
    server.content = archive([*MEMBERS, "../../outside.txt", "/etc/outside.txt"])
    (tmp_path / "data" / "games.zip").unlink()
    fetch(tmp_path / "data", server.url, COUNTS)
    assert not list(tmp_path.rglob("outside.txt"))


def test_a_wrong_address_is_told_with_what_to_do_by_hand(server: Server, tmp_path: Path) -> None:
    with pytest.raises(AgentRLError, match=r"404.*download it elsewhere and put it at .*absent\.zip"):
        fetch(tmp_path, server.url.replace("games.zip", "absent.zip"), COUNTS)


def test_an_unreachable_server_is_told_with_what_to_do_by_hand(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(AgentRLError, match=r"cannot be downloaded .*download it elsewhere"):
        fetch(tmp_path, f"http://127.0.0.1:{port}/games.zip", COUNTS)


def test_an_archive_placed_by_hand_is_used(tmp_path: Path) -> None:
    (tmp_path / "games.zip").write_bytes(archive())
    assert fetch(tmp_path, "http://127.0.0.1:9/games.zip", COUNTS) == COUNTS
