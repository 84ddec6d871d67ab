"""Questions from files: splits, damage, export; and the published formats."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from search_data import PASSAGES, QUESTION, generated, play, write_data

from agentbench_rl.config.environment import SearchEnvironment
from agentbench_rl.envs import open_source as open_environment
from agentbench_rl.envs import open_suite
from agentbench_rl.envs.search.corpus import read_questions
from agentbench_rl.envs.search.fetch import SOURCES, Source, fetch
from agentbench_rl.types import AgentRLError

ALL: dict[str, int | None] = {"train": None, "validation": None, "test": None}


def environment(directory: Path, **settings: Any) -> SearchEnvironment:
    return SearchEnvironment(name="search", data=directory, **settings)


def test_files_are_split_by_question_id(tmp_path: Path) -> None:
    suite = open_environment(environment(write_data(tmp_path)), ALL)
    ids = {split: {task.task_id for task in suite.tasks(split)} for split in ALL}
    assert sum(map(len, ids.values())) == len(set().union(*ids.values())) == 40
    assert len(ids["train"]) > len(ids["test"]) > 0
    assert ids["validation"]
    half = [QUESTION | {"qid": f"q{n}", "question": f"Question {n}?"} for n in range(0, 40, 2)]
    again = open_environment(environment(write_data(tmp_path, half)), ALL)
    for split in ALL:
        assert {task.task_id for task in again.tasks(split)} == {i for i in ids[split] if int(i[1:]) % 2 == 0}


def test_files_of_one_split_are_taken_as_they_are(tmp_path: Path) -> None:
    write_data(tmp_path)
    (tmp_path / "questions.jsonl").rename(tmp_path / "questions_test.jsonl")
    assert len(open_environment(environment(tmp_path), {"test": None}).tasks("test")) == 40
    with pytest.raises(AgentRLError, match=r"questions\.jsonl: no such file"):
        open_environment(environment(tmp_path), ALL)


def test_exported_files_open_to_an_equal_suite(tmp_path: Path) -> None:
    config = environment(write_data(tmp_path / "data"))
    suite = open_environment(config, ALL)
    suite.export([task for split in ALL for task in suite.tasks(split)[:3]], tmp_path / "games")
    again = open_suite(config, tmp_path / "games")
    assert set(again.splits()) == set(ALL)
    for split in ALL:
        assert again.tasks(split) == suite.tasks(split)[:3]
    assert {path.name for path in (tmp_path / "games").iterdir() if not path.name.startswith("games_")} == {
        "passages.jsonl.gz",
        "index",
    }


def test_a_split_that_was_not_exported_is_named(tmp_path: Path) -> None:
    suite = generated({"train": 6})
    suite.export(suite.tasks("train"), tmp_path)
    with pytest.raises(AgentRLError, match=r"games_test\.questions\.jsonl: no such file"):
        open_suite(SearchEnvironment(name="search"), tmp_path, ["test"])


@pytest.mark.parametrize("worlds", [1, 3])
def test_exported_worlds_are_apart_and_play_the_same(tmp_path: Path, worlds: int) -> None:
    suite = generated({"train": 6, "test": 12}, worlds=worlds)
    suite.export([*suite.tasks("train"), *suite.tasks("test")[:8]], tmp_path)
    assert all(path.name.startswith(("games_train.", "games_test.")) for path in tmp_path.iterdir())
    assert open_suite(SearchEnvironment(name="search"), tmp_path).tasks("train") == suite.tasks("train")
    again = open_suite(SearchEnvironment(name="search"), tmp_path, ["test"])
    assert again.splits() == ("test",)
    assert again.tasks("test") == suite.tasks("test")[:8]
    for task in again.tasks("test"):
        first, second = play(suite, task, "scripted"), play(again, task, "scripted")
        assert first[0].digest() == second[0].digest()
        assert first[1] == second[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gold": ["p1", "p77"]}, "'p77' is not in the corpus"),
        ({"answers": []}, "'answers' must hold one or more"),
        ({"answers": "Cestia"}, "'answers' must be a list"),
        ({"answers": [" "]}, "'answers' must hold one or more"),
        ({"question": ""}, "'question' is empty"),
        ({"qid": 3}, "'qid' must be a text"),
    ],
)
def test_damaged_questions_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_data(tmp_path, [QUESTION, QUESTION | {"qid": "q2"} | change])
    with pytest.raises(AgentRLError, match=message):
        open_environment(environment(tmp_path), ALL)


@pytest.mark.parametrize("damage", ["cut", "text", "list", "twice", "none", "directory"])
def test_damaged_or_missing_files_are_refused(tmp_path: Path, damage: str) -> None:
    directory = write_data(tmp_path / "data")
    passages = directory / "passages.jsonl.gz"
    expected = r"passages\.jsonl\.gz"
    if damage == "cut":
        passages.write_bytes(passages.read_bytes()[:-20])
    elif damage == "text":
        passages.write_bytes(b"this is no gzip file")
    elif damage == "list":
        (directory / "questions.jsonl").write_text("[1, 2]\n")
        expected = r"questions\.jsonl: damaged at line 1"
    elif damage == "twice":
        write_data(directory, None, [*PASSAGES, PASSAGES[0]])
        expected = "stand twice"
    elif damage == "none":
        passages.unlink()
        expected = r"passages\.jsonl\.gz: no such file"
    else:
        directory, expected = passages, "is not a directory"
    with pytest.raises(AgentRLError, match=expected):
        open_environment(environment(directory), ALL)


def test_questions_without_gold_passages_have_no_process_reward(tmp_path: Path) -> None:
    questions = [QUESTION | {"qid": f"q{n}", "question": f"Question {n}?", "gold": []} for n in range(40)]
    suite = open_environment(environment(write_data(tmp_path, questions)), ALL)
    _, result, steps = play(suite, suite.tasks("train")[0], "oracle")
    assert result is not None
    assert (result.success, result.process_reward, steps) == (True, None, 1)


HOTPOT = {
    "_id": "h1",
    "question": "Where was the author of Ann born?",
    "answer": "Oslo",
    "type": "bridge",
    "supporting_facts": [["Ann", 0], ["Bo Berg", 1]],
    "context": [["Ann", ["Ann is a book", " by Bo Berg."]], ["Other", ["Nothing."]], ["Bo Berg", ["Of Oslo."]]],
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Where was the author of Ann born?",
    "answer": "Oslo",
    "answer_aliases": ["Kristiania", "Oslo"],
    "paragraphs": [
        {"idx": 0, "title": "Bo Berg", "paragraph_text": "Of Oslo.", "is_supporting": True},
        {"idx": 1, "title": "Other", "paragraph_text": "Nothing.", "is_supporting": False},
        {"idx": 2, "title": "Ann", "paragraph_text": "By Bo Berg.", "is_supporting": True},
    ],
    "question_decomposition": [{"paragraph_support_idx": 2}, {"paragraph_support_idx": 0}],
}
NQ = {
    "question": "where is oslo",
    "answers": ["Norway"],
    "positive_ctxs": [{"title": "Oslo", "text": "In Norway."}, {"title": "Norway", "text": "Has Oslo."}],
    "negative_ctxs": [{"title": "Other", "text": "Nothing."}],
    "hard_negative_ctxs": [{"title": "Near", "text": "Near Oslo."}],
}
RAW = {
    "/hotpotqa/dev.json": json.dumps([HOTPOT]).encode(),
    "/hotpotqa/train.json": json.dumps(
        [HOTPOT | {"_id": "again"}, *(HOTPOT | {"_id": f"t{n}", "question": f"Question {n}?"} for n in range(40))]
    ).encode(),
    "/musique/dev.jsonl": (json.dumps(MUSIQUE) + "\n").encode(),
    "/nq/all.json.gz": gzip.compress(json.dumps([NQ, NQ | {"question": "no passage", "positive_ctxs": []}]).encode()),
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = RAW[self.path]
        first = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(body) - first))
        self.end_headers()
        self.wfile.write(body[first:])

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def sources(server: str, dataset: str, *parts: str, sha256: str | None = None) -> dict[str, tuple[Source, ...]]:
    urls = {path.rsplit("/", 1)[1].split(".")[0]: server + path for path in RAW if path.startswith(f"/{dataset}/")}
    return {dataset: tuple(Source(part, urls[part], sha256) for part in parts)}


def test_hotpotqa_becomes_official_splits_without_repeated_questions(tmp_path: Path, server: str) -> None:
    counts = fetch(tmp_path, "hotpotqa", sources(server, "hotpotqa", "train", "dev"))
    assert counts["questions_test.jsonl"] == 1
    assert counts["questions_train.jsonl"] + counts["questions_validation.jsonl"] == 40
    assert counts["passages"] == 3
    question = read_questions(tmp_path / "questions_test.jsonl")[0]
    assert (question.answers, question.type, len(question.gold)) == (("Oslo",), "bridge", 2)
    suite = open_environment(environment(tmp_path, top_k=1), ALL)
    env, result, _ = play(suite, suite.tasks("test")[0], "oracle")
    assert result is not None
    assert result.success
    assert env.process_reward() == 1.0


def test_musique_keeps_aliases_and_the_order_of_hops(tmp_path: Path, server: str) -> None:
    fetch(tmp_path, "musique", sources(server, "musique", "dev"))
    question = read_questions(tmp_path / "questions_test.jsonl")[0]
    assert (question.answers, question.type) == (("Oslo", "Kristiania"), "2hop")
    suite = open_environment(environment(tmp_path), {"test": None})
    environment_ = suite.make()
    environment_.reset(suite.tasks("test")[0])
    assert environment_.expert_action() == "<search> Ann </search>"


def test_natural_questions_take_the_first_positive_passage_as_gold(tmp_path: Path, server: str) -> None:
    counts = fetch(tmp_path, "nq", sources(server, "nq", "all"))
    assert counts == {"questions.jsonl": 1, "passages": 4}
    assert len(read_questions(tmp_path / "questions.jsonl")[0].gold) == 1


def test_an_interrupted_download_is_resumed_and_a_wrong_one_refused(tmp_path: Path, server: str) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "dev.jsonl.part").write_bytes(RAW["/musique/dev.jsonl"][:50])
    assert fetch(tmp_path, "musique", sources(server, "musique", "dev"))["questions_test.jsonl"] == 1
    with pytest.raises(AgentRLError, match="SHA-256"):
        fetch(tmp_path, "musique", sources(server, "musique", "dev", sha256="0" * 64))
    assert not (raw / "dev.jsonl").exists()


def test_files_of_another_format_and_unknown_names_are_refused(tmp_path: Path, server: str) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "dev.json").write_text('[{"question": "?"}]')
    with pytest.raises(AgentRLError, match="not a file of hotpotqa"):
        fetch(tmp_path, "hotpotqa", sources(server, "hotpotqa", "dev"))
    with pytest.raises(AgentRLError, match="there are: hotpotqa, musique, nq"):
        fetch(tmp_path, "squad")


def test_every_source_is_named_with_its_checksum() -> None:
    files = [source for members in SOURCES.values() for source in members]
    assert all(source.url.startswith("http") for source in files)
    assert all(source.sha256 is None or len(source.sha256) == 64 for source in files)


def test_the_real_questions_have_their_passages_and_the_oracle_reaches_most(data_dir: Path) -> None:
    suite = open_environment(environment(data_dir / "search"), ALL)
    tasks = [task for split in ALL for task in suite.tasks(split)]
    assert len(tasks) == 300
    won = reached = 0
    for task in tasks:
        env, result, _ = play(suite, task, "oracle")
        assert result is not None
        won += result.success
        reached += env.process_reward() == 1.0
    assert won == 300
    assert reached >= 0.9 * 300
