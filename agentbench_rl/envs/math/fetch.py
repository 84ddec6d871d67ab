"""Download of GSM8K and MATH-500, as published and checked by SHA-256.

GSM8K: Cobbe et al. 2021, MIT licence. MATH-500: the 500 test problems of Lightman et al. 2023 from MATH (Hendrycks et
al. 2021, MIT licence), one JSON object per line with problem, solution, answer, subject and level.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentbench_rl.envs.download import download

_GSM8K = (
    "https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/"
    "grade_school_math/data"
)
_MATH500 = "https://raw.githubusercontent.com/jincan333/MAS-TTS/ae8f961818d47860cfbde256b72cbb5c326e6b85/data/math500"
#: Address and SHA-256 of each file by the name it gets.
FILES: Mapping[str, tuple[str, str]] = {
    "gsm8k_train.jsonl": (
        f"{_GSM8K}/train.jsonl",
        "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    ),
    "gsm8k_test.jsonl": (
        f"{_GSM8K}/test.jsonl",
        "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
    ),
    "math500.jsonl": (
        f"{_MATH500}/test.jsonl",
        "34943b1a3660c7dc63c7bc89b5ecefc0ffdeeee32501c2ad161cdec34d7a4b4c",
    ),
}


def fetch(destination: Path, files: Mapping[str, tuple[str, str]] = FILES) -> None:
    """Place the files in `destination`; what is there is checked, and an interrupted download is resumed.

    Raises AgentRLError when the network fails or a file is not the published one.
    """
    for name, (url, sha256) in files.items():
        download(url, destination / name, sha256)
