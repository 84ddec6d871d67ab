"""One iteration of a run that has rounds below it: where they lie, and what they are a function of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentbench_rl.config import Experiment, Json, iteration_config, stage_config
from agentbench_rl.config.algorithm import AlgorithmConfig
from agentbench_rl.config.schedule import PostStep
from agentbench_rl.config.topology import Expand
from agentbench_rl.stages.files import write_atomic
from agentbench_rl.stages.layout import Layout, RoundLayout
from agentbench_rl.stages.manifest import locked, stage_identity
from agentbench_rl.stages.panel import panel_inputs
from agentbench_rl.stages.score import needs_scores


@dataclass(frozen=True)
class Iteration:
    """Which iteration of which run."""

    experiment: Experiment
    layout: Layout
    algorithm: str
    seed: int
    number: int

    @property
    def method(self) -> AlgorithmConfig:
        """Settings of the method."""
        return self.experiment.algorithms[self.algorithm]

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that an iteration publishes."""
        scored = needs_scores(self.experiment, self.algorithm)
        return ("rollout", *(("score",) if scored else ()), "advantage", "update")

    @property
    def seeds(self) -> dict[str, int]:
        """Seeds of its stages."""
        return {"seed": self.seed, "iteration": self.number}

    @property
    def start(self) -> Path:
        """Directory whose policy it begins with."""
        return self.layout.start(self.algorithm, self.seed, self.number)

    def stage(self, stage: str) -> Path:
        """Directory of a stage of the whole iteration."""
        return self.layout.stage(self.algorithm, self.seed, self.number, stage)

    def round(self, number: int, stage: str) -> Path:
        """Directory of a stage of one round."""
        return self.layout.round(self.algorithm, self.seed, self.number, number) / stage

    def of_round(self, number: int, before: Path, rollouts: Path) -> RoundLayout:
        """The layout that the stages of a round see."""
        return RoundLayout(self.layout.root, self.round(number, "rollout").parent, before, rollouts)

    def config(self, stage: str) -> Json:
        """What a stage reads of the experiment."""
        return stage_config(self.experiment, stage, self.algorithm)

    def inputs(self) -> dict[str, Path]:
        """What the first round begins with, the policy excepted: the tasks."""
        return panel_inputs(self.layout.panels, "train")

    @contextmanager
    def open_rounds(self) -> Iterator[None]:
        """Keep other processes out of the rounds, which are begun anew where they were made of something else.

        Checkpoints of rounds do not outlive the next one: a round cannot be made again without those before it.
        """
        directory = self.round(0, "rollout").parents[1]
        config = iteration_config(self.experiment, self.algorithm)
        inputs = {"policy": self.start / "policy"} | self.inputs()
        identity = stage_identity("iterate", config, inputs, self.seeds, self.method.schedule.kind)
        text = json.dumps(identity, indent=1, sort_keys=True)
        record = directory / "identity.json"
        with locked(directory):
            if not record.exists() or record.read_text(encoding="utf-8") != text:
                record.unlink(missing_ok=True)
                for old in directory.iterdir():
                    if old.is_dir():
                        shutil.rmtree(old)
                write_atomic(record, text)
            yield


class SearchIteration(Iteration):
    """An iteration of `post_step`, whose rounds expand trees."""

    @property
    def schedule(self) -> PostStep:
        """When it updates."""
        assert isinstance(self.method.schedule, PostStep)
        return self.method.schedule

    @property
    def search(self) -> Expand:
        """How it searches."""
        assert isinstance(self.method.topology, Expand)
        return self.method.topology

    def inputs(self) -> dict[str, Path]:
        """Beside the tasks, the states that earlier iterations saw."""
        inputs = super().inputs()
        if self.number > 0:
            before = self.layout.stage(self.algorithm, self.seed, self.number - 1, "rollout")
            inputs["states"] = before / "states.parquet"
        return inputs
