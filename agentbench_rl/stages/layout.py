"""Where the files of an experiment lie; every directory holds the outputs and the manifest of one stage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below `results/<experiment>`."""

    root: Path

    @property
    def panels(self) -> Path:
        return self.root / "panels"

    @property
    def demos(self) -> Path:
        return self.root / "demos"

    @property
    def sft(self) -> Path:
        return self.root / "sft"

    @property
    def dense_model(self) -> Path:
        return self.root / "dense_model"

    @property
    def tables(self) -> Path:
        return self.root / "tables"

    @property
    def report(self) -> Path:
        return self.root / "report"

    def iteration(self, algorithm: str, seed: int, iteration: int) -> Path:
        """Directory of one iteration of a run; its stages are subdirectories."""
        return self.root / "runs" / algorithm / f"seed{seed}" / f"iteration{iteration:03d}"

    def stage(self, algorithm: str, seed: int, iteration: int, stage: str) -> Path:
        """Directory of one stage (`rollout`, `score`, `advantage`, `update`, `validation`) of an iteration."""
        return self.iteration(algorithm, seed, iteration) / stage

    def round(self, algorithm: str, seed: int, iteration: int, number: int) -> Path:
        """Directory of a round of an iteration; its stages are subdirectories."""
        return self.iteration(algorithm, seed, iteration) / "rounds" / f"{number:03d}"

    def segment(self, algorithm: str, seed: int, last: int) -> Path:
        """Record of a finished segment of an online run, named by its last iteration."""
        return self.root / "runs" / algorithm / f"seed{seed}" / "segments" / f"{last:03d}.json"

    def start(self, algorithm: str, seed: int, iteration: int) -> Path:
        """Directory whose `policy/` an iteration goes on from: the SFT stage's, then the previous update's."""
        return self.sft if iteration == 0 else self.stage(algorithm, seed, iteration - 1, "update")

    def test(self, algorithm: str, seed: int) -> Path:
        """Final evaluation of a run's last policy on the test panel."""
        return self.root / "evaluation" / algorithm / f"seed{seed}"

    def start_evaluation(self, panel: str) -> Path:
        """Evaluation of the start policy on a panel (`validation` or `test`)."""
        return self.root / "evaluation" / "sft" / panel


@dataclass(frozen=True, slots=True)
class RoundLayout(Layout):
    """An iteration's directories as one of its rounds sees them: the stages are those of the round.

    directory: where its stages are. before: the directory whose `policy/` the round samples with. rollouts: those that
    are scored and trained on.
    """

    directory: Path
    before: Path
    rollouts: Path

    def stage(self, algorithm: str, seed: int, iteration: int, stage: str) -> Path:
        """Directory of one stage of the round."""
        return self.rollouts if stage == "rollout" else self.directory / stage

    def start(self, algorithm: str, seed: int, iteration: int) -> Path:
        """Directory of the last update before the round."""
        return self.before
