"""Grading of answers: numbers exactly and at once, mathematical expressions by math-verify in a process of its own.

`number`: the answer is a plain number of the same value. `text`: the same text, white space and case aside.
`countdown`: an expression of exactly the numbers of the known solution and of its value. `math`: the same text, else
plain numbers of the same value, else equal to math-verify (equivalent expressions, sets, intervals, tuples, units).
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock

from agentbench_rl.envs.math.calculator import CalculatorError, MalformedExpressionError, evaluate
from agentbench_rl.envs.math.grammar import MAX_ANSWER_CHARACTERS, parse_number
from agentbench_rl.envs.math.problems import Problem
from agentbench_rl.types import Ending, InfrastructureError

_CACHED_GRADES = 1 << 14
#: Ends of the process that the answer brought about: processor time, a crash of an interpreter that ran too deep.
_BY_THE_ANSWER = {-signal.SIGPROF, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGXFSZ}


@dataclass(frozen=True, slots=True)
class Grade:
    """Whether an answer is right, and whether it could be read as an answer at all."""

    correct: bool
    readable: bool


_UNREADABLE = Grade(correct=False, readable=False)


class Grader:
    """Grades answers; starts its process when it first needs it, and a new one after it was killed.

    deadline: processor seconds of one comparison; an answer that needs more is wrong. patience: seconds to wait for
    the process, which a stopped or overloaded machine alone exceeds. Safe to share between threads.
    """

    def __init__(self, deadline: float = 5.0, patience: float = 120.0) -> None:
        self._deadline, self._patience = deadline, patience
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._lock = Lock()
        self._remembered = lru_cache(_CACHED_GRADES)(self._ask)

    def grade(self, problem: Problem, answer: str) -> Grade:
        """Grade an answer; raises InfrastructureError (GRADER_ERROR) when the known answer cannot be handled."""
        answer = answer.strip()
        if not answer or len(answer) > MAX_ANSWER_CHARACTERS:
            return _UNREADABLE
        if problem.grading == "text":
            return Grade(_folded(answer) == _folded(problem.answer), readable=True)
        if problem.grading == "countdown":
            return _grade_countdown(problem.answer, answer)
        value = parse_number(answer)
        if problem.grading == "number":
            return Grade(value == _known_number(problem), readable=True) if value is not None else _UNREADABLE
        return self._grade_math(problem.answer, answer)

    def compare(self, gold: str, answer: str) -> Grade:
        """Compare by math-verify alone; raises InfrastructureError as `grade` does."""
        with self._lock:
            return self._remembered(gold, answer)

    def close(self) -> None:
        """End the process; the next comparison starts a new one."""
        with self._lock:
            self._stop()

    def _grade_math(self, gold: str, answer: str) -> Grade:
        if _tidy(answer) == _tidy(gold):
            return Grade(correct=True, readable=True)
        value, known = parse_number(answer), parse_number(gold)
        if value is not None and known is not None:
            return Grade(value == known, readable=True)
        return self.compare(gold, answer) if _is_one_answer(answer) else _UNREADABLE

    def _ask(self, gold: str, answer: str) -> Grade:
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"gold": gold, "answer": answer}).encode() + b"\n")
            line = self._line(process)
            if line == "gold":
                line = self._line(process, answer_is_asked=True)
        except (BrokenPipeError, EOFError) as error:
            self._stop()
            raise _fault(f"comparing with {gold!r} failed: {error or 'the process is gone'}") from None
        if line is None:
            return _UNREADABLE
        result = json.loads(line)
        if "error" in result:
            raise _fault(f"the known answer {gold!r} cannot be parsed: {result['error']}")
        return Grade(result["equal"], result["equal"] or result["parsed"])

    def _line(self, process: subprocess.Popen[bytes], *, answer_is_asked: bool = False) -> str | None:
        """The next line of the process; None when it died of the answer. Raises EOFError when it died otherwise."""
        assert process.stdout is not None
        until = time.monotonic() + self._patience
        while b"\n" not in self._received:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
            part = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
            if not part:
                break
            self._received += part
        else:
            line, _, self._received = self._received.partition(b"\n")
            return line.decode()
        code = self._stop()
        if answer_is_asked and code in _BY_THE_ANSWER:
            return None
        raise EOFError(f"the process ended with {code}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            script = Path(__file__).with_name("grader_worker.py")
            # -P: the script's directory holds modules of common names. Hashes are fixed: sympy orders by them.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(script), str(self._deadline)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
                cwd="/",
            )
            try:
                self._line(self._process)
            except EOFError as error:
                raise _fault(f"math-verify cannot be started ({error}); is it installed?") from None
        return self._process

    def _stop(self) -> int | None:
        """End the process and return its exit code."""
        process, self._process, self._received = self._process, None, b""
        if process is None:
            return None
        if process.poll() is None:
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return code


def _known_number(problem: Problem) -> object:
    known = parse_number(problem.answer)
    if known is None:
        raise _fault(f"the known answer {problem.answer!r} of {problem.task_id} is no number")
    return known


def _grade_countdown(solution: str, answer: str) -> Grade:
    try:
        value = evaluate(answer)
    except MalformedExpressionError:
        return _UNREADABLE
    except CalculatorError:
        return Grade(correct=False, readable=True)
    numbers = [sorted(re.findall(r"[0-9]+", text)) for text in (solution, answer)]
    return Grade(value == evaluate(solution) and numbers[0] == numbers[1], readable=True)


def _is_one_answer(latex: str) -> bool:
    """Whether braces are balanced and there is no box: such an answer could show math-verify another one."""
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", latex):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0 and "\\boxed" not in latex


def _folded(text: str) -> str:
    return "".join(text.split()).casefold().rstrip(".")


def _tidy(text: str) -> str:
    """LaTeX without what never changes a value: outer dollars, white space, sizes of brackets and fractions."""
    text = text.strip().strip("$").rstrip(".")
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\left|\\right|\\!|\\,", "", text)
    return re.sub(r"(?<![0-9])\s+|\s+(?![0-9])", "", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")


def _fault(message: str) -> InfrastructureError:
    return InfrastructureError(f"Grader: {message}", ending=Ending.GRADER_ERROR)
