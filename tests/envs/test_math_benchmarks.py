"""Benchmarks from files: official sizes, disjoint splits, gold answers right, damaged files told, checked downloads."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentbench_rl.config.environment import MathEnvironment
from agentbench_rl.envs import open_source
from agentbench_rl.envs.math.benchmarks import load_benchmark
from agentbench_rl.envs.math.fetch import FILES, fetch
from agentbench_rl.envs.math.grading import Grade, Grader
from agentbench_rl.envs.math.problems import Problem
from agentbench_rl.types import AgentRLError

SPLITS = ("train", "validation", "test")
SIZES = {"gsm8k": 8792, "math500": 500, "svamp": 1000, "amc23": 40}
QUESTION = {"question": "How many?", "answer": "2 + 3 = <<2+3=5>>5, twice is <<5*2=10>>10.\n#### 10"}


@pytest.fixture
def real(data_dir: Path) -> Path:
    if not (data_dir / "math").is_dir():
        pytest.skip(f"no mathematics at {data_dir}")
    return data_dir / "math"


def load(directory: Path, benchmark: str) -> dict[str, list[Problem]]:
    return {split: load_benchmark(benchmark, directory, split) for split in SPLITS}


@pytest.mark.parametrize("benchmark", SIZES)
def test_real_splits_are_whole_and_disjoint(real: Path, benchmark: str) -> None:
    environment: Any = MathEnvironment.model_validate({"name": "math", "data": real, "benchmark": benchmark})
    suite = open_source(environment, dict.fromkeys(SPLITS))
    tasks = [task for split in SPLITS for task in suite.tasks(split)]
    assert len({task.task_id for task in tasks}) == len({task.content_hash for task in tasks}) == SIZES[benchmark]
    assert all(suite.tasks(split) for split in SPLITS)
    if benchmark == "gsm8k":
        assert len(suite.tasks("test")) == 1319


@pytest.mark.parametrize("benchmark", SIZES)
def test_real_gold_answers_are_right(real: Path, benchmark: str) -> None:
    grader = Grader()
    problems = [problem for split in load(real, benchmark).values() for problem in split]
    assert [p.answer for p in problems if not grader.grade(p, p.answer).correct] == []


def test_gold_answers_of_math500_are_right_to_math_verify_alone(real: Path) -> None:
    grader = Grader()
    answers = [problem.answer for problem in load_benchmark("math500", real, "test")]
    assert [answer for answer in answers if grader.compare(answer, answer) != Grade(correct=True, readable=True)] == []
    grader.close()


def test_most_real_gsm8k_problems_have_steps_to_their_answer(real: Path) -> None:
    problems = load_benchmark("gsm8k", real, "test")
    assert sum(bool(problem.steps) for problem in problems) > 0.95 * len(problems)


def write(directory: Path, name: str, *rows: dict[str, Any]) -> Path:
    file = directory / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_gsm8k_rows_give_answer_and_steps(tmp_path: Path) -> None:
    write(tmp_path, "gsm8k_test.jsonl", QUESTION, QUESTION)
    assert load_benchmark("gsm8k", tmp_path, "test") == [Problem("gsm8k", "How many?", "10", "math", ("2+3", "5*2"))]


def test_svamp_and_amc_rows_give_plain_numbers(tmp_path: Path) -> None:
    row = {"Body": "Tom had 3.", "Question": "How many?", "Equation": "( ( 3.0 + 4.0 ) / 2.0 )", "Answer": 3.5}
    write(tmp_path, "svamp_test.jsonl", row)
    write(tmp_path, "amc23_test.jsonl", {"problem": "Why?", "answer": -1.0})
    (svamp,) = [problem for split in load(tmp_path, "svamp").values() for problem in split]
    assert svamp == Problem("svamp", "Tom had 3. How many?", "3.5", "math", ("3 + 4", "7 / 2"))
    (amc,) = [problem for split in load(tmp_path, "amc23").values() for problem in split]
    assert amc.answer == "-1"


def test_a_missing_file_is_told_with_what_to_fetch(tmp_path: Path) -> None:
    with pytest.raises(
        AgentRLError, match=r"neither gsm8k_train\.jsonl nor gsm8k_train\.jsonl\.gz; `agentrl env fetch"
    ):
        load_benchmark("gsm8k", tmp_path, "train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(QUESTION) + '\n{"question": "How', "line 2: damaged"),
        ("[1]\n", "line 1: not a JSON object"),
        ('{"question": "How many?"}\n', "line 1: not a problem of this benchmark"),
        ('{"question": "How many?", "answer": "ten"}\n', "line 1: not a problem .*no ####"),
        ("", "holds no problems"),
    ],
)
def test_damaged_files_are_told(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "gsm8k_test.jsonl").write_text(content)
    with pytest.raises(AgentRLError, match=f"gsm8k_test.jsonl.*{message}"):
        load_benchmark("gsm8k", tmp_path, "test")


@pytest.mark.parametrize("content", [gzip.compress(b"{}" * 5000, mtime=0)[:-20], b"no gzip", b""])
def test_a_truncated_archive_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gsm8k_test.jsonl.gz").write_bytes(content)
    with pytest.raises(AgentRLError, match=r"gsm8k_test\.jsonl\.gz: (cannot be read|holds no problems)"):
        load_benchmark("gsm8k", tmp_path, "test")


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    (tmp_path / "gsm8k_test.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(AgentRLError, match="cannot be read"):
        load_benchmark("gsm8k", tmp_path, "test")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serves what a test writes to `tmp_path / "served"`."""
    (tmp_path / "served").mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "served"))) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_fetched_files_are_checked_and_open(server: str, tmp_path: Path) -> None:
    content = write(tmp_path / "served", "test.jsonl", QUESTION).read_bytes()
    files = {"gsm8k_test.jsonl": (f"{server}/test.jsonl", hashlib.sha256(content).hexdigest())}
    fetch(tmp_path / "data", files)
    assert len(load_benchmark("gsm8k", tmp_path / "data", "test")) == 1
    with pytest.raises(AgentRLError, match="SHA-256"):
        fetch(tmp_path / "other", {"gsm8k_test.jsonl": (f"{server}/test.jsonl", "0" * 64)})
    assert not (tmp_path / "other" / "gsm8k_test.jsonl").exists()


def test_real_files_have_the_published_checksums(real: Path) -> None:
    for name, (_, sha256) in FILES.items():
        file = real / name
        content = file.read_bytes() if file.exists() else gzip.decompress((real / f"{name}.gz").read_bytes())
        assert hashlib.sha256(content).hexdigest() == sha256, name
