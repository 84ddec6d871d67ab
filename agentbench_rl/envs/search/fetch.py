"""Download of published question sets, and their conversion to `passages.jsonl.gz` and questions by split.

HotpotQA: Yang et al. 2018, CC BY-SA 4.0. MuSiQue: Trivedi et al. 2022, CC BY 4.0. Natural Questions: Kwiatkowski et al.
2019, CC BY-SA 3.0, with the passages of DPR (Karpukhin et al. 2020).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentbench_rl.envs.download import download
from agentbench_rl.envs.search.corpus import Question, write_questions
from agentbench_rl.envs.search.formats import Pool, read_records
from agentbench_rl.envs.search.index import Library
from agentbench_rl.types import AgentRLError

_HOTPOT = "http://curtis.ml.cmu.edu/datasets/hotpot"
_MUSIQUE = "https://huggingface.co/datasets/dgslibisey/MuSiQue/resolve/c8f4f8c9465fb69d31a8eae894c3fd509c4ca321"
_DPR = "https://dl.fbaipublicfiles.com/dpr/data/retriever"


@dataclass(frozen=True, slots=True)
class Source:
    """A file of a data set; `part`: `train`, `dev`, or `all` where one file is everything."""

    part: str
    url: str
    sha256: str | None


SOURCES: Mapping[str, tuple[Source, ...]] = {
    "hotpotqa": (
        Source(
            "train",
            f"{_HOTPOT}/hotpot_train_v1.1.json",
            "26650cf50234ef5fb2e664ed70bbecdfd87815e6bffc257e068efea5cf7cd316",
        ),
        Source(
            "dev",
            f"{_HOTPOT}/hotpot_dev_distractor_v1.json",
            "4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea",
        ),
    ),
    "musique": (
        Source(
            "train",
            f"{_MUSIQUE}/musique_ans_v1.0_train.jsonl",
            "83a75b1e11e4e9bb8f8308e72ac40ca617ae4431b3a0d955b61cab259248490a",
        ),
        Source(
            "dev",
            f"{_MUSIQUE}/musique_ans_v1.0_dev.jsonl",
            "15fa63794d18a94ce12411aca6e2327e65b6e83b0b1490efab3f1962e48abf3b",
        ),
    ),
    # Nobody publishes its checksum; gzip's own one is checked when it is read.
    "nq": (Source("all", f"{_DPR}/biencoder-nq-dev.json.gz", None),),
}
#: One in so many training questions is for validation.
_HELD_OUT = 20


def fetch(
    destination: Path, dataset: str = "hotpotqa", sources: Mapping[str, tuple[Source, ...]] = SOURCES
) -> dict[str, int]:
    """Place a question set at `destination` and return the numbers of questions by file, and of passages.

    A training file becomes `questions_train.jsonl` and `questions_validation.jsonl`, a development file
    `questions_test.jsonl`, a single file `questions.jsonl`. What was downloaded stays in `destination/raw`.
    Raises AgentRLError for an unknown data set, when the network fails or a file is not what it should be.
    """
    if dataset not in sources:
        raise AgentRLError(f"search has no data set {dataset!r}; there are: {', '.join(sources)}.")
    files = [(source, destination / "raw" / source.url.rsplit("/", 1)[-1]) for source in sources[dataset]]
    for source, file in files:
        download(source.url, file, source.sha256)
    pool = Pool()
    questions: dict[str, list[Question]] = {}
    for source, file in reversed(files):
        # The development questions come first: what they hold is never asked in training.
        questions |= _by_file(source.part, pool.add(read_records(dataset, file)))
    library = Library(list(pool.passages.values()))
    library.save(destination)
    for name, members in questions.items():
        write_questions(destination / name, members)
    return {name: len(members) for name, members in questions.items()} | {"passages": len(library.passages)}


def _by_file(part: str, questions: list[Question]) -> dict[str, list[Question]]:
    if part == "all":
        return {"questions.jsonl": questions}
    if part == "dev":
        return {"questions_test.jsonl": questions}
    held_out = [q for q in questions if _number(q.qid) % _HELD_OUT == 0]
    kept = [q for q in questions if _number(q.qid) % _HELD_OUT]
    return {"questions_train.jsonl": kept, "questions_validation.jsonl": held_out}


def _number(qid: str) -> int:
    return int.from_bytes(hashlib.sha256(qid.encode()).digest()[:4], "big")
