"""The runs of an arm: their losses, times and states, read from their folders, and means over seeds."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyformer.run import Run
from anyformer.statistics.comparison import Difference
from anyformer.statistics.intervals import Interval
from anyformer.statistics.paired import t_interval
from anyformer.study.judging import Judgement, judgement_of
from anyformer.study.planning import EVALUATIONS, Arm
from anyformer.study.running import DownstreamScore
from anyformer.study.study_folder import standing
from anyformer.training.loop.budget import PER_PARAMETER


@dataclass(frozen=True)
class RunResult:
    """The results of one run; missing numbers are NaN."""

    seed: int
    folder: Path
    state: str
    why: str
    valid_loss: float = math.nan
    """The lowest validation loss; that of the last checkpoint on the whole split if the run was judged by it."""
    test_loss: float = math.nan
    """Loss of the best checkpoint on the whole test split."""
    early_loss: float = math.nan
    """Validation loss after an eighth of the budget."""
    steps_per_s: float = math.nan
    wall_s: float = math.nan
    peak_bytes: float = math.nan
    tokens: float = math.nan
    lr: float = math.nan
    """The tuned peak learning rate."""
    judged: Judgement | None = None
    """The judged loss, with the size of the split that it rests on."""

    @property
    def kind_of_failure(self) -> str:
        """The reason of a failure without its numbers, such as the step: equal for runs that failed alike."""
        return re.sub(r"\d+", "0", self.why)

    @classmethod
    def read(cls, folder: Path, seed: int, why: str = "") -> "RunResult":
        state, reason = standing(folder)
        if state != "complete":
            return cls(seed, folder, "failed" if why else state, reason or why)
        run = Run(folder)
        lines = list(run.metrics())
        valid = [line for line in lines if line.get("valid_loss") is not None]
        test, last_valid, judged = judgement_of(run, "test"), judgement_of(run, "valid"), judgement_of(run)
        trained = [line for line in lines if "wall_s" in line]
        last = trained[-1]
        first = trained[0] if len(trained) > 1 else {"wall_s": 0.0, "step": 0}
        spent, steps = last["wall_s"] - first["wall_s"], last["step"] - first["step"]
        early = [line for line in valid if line["step"] * EVALUATIONS >= last["step"]]
        return cls(
            seed, folder, state, "",
            valid_loss=last_valid.value if last_valid else min(map(_valid_loss, valid), default=math.nan),
            test_loss=test.value if test else math.nan,
            early_loss=_valid_loss(early[0]) if early else math.nan,
            steps_per_s=steps / spent if spent > 0 else math.nan,
            wall_s=float(last["wall_s"]),
            peak_bytes=float(last.get("peak_bytes") or math.nan),
            tokens=float(last["tokens"]),
            lr=run.recipe.optimizer.lr,
            judged=judged,
        )  # fmt: skip


@dataclass(frozen=True)
class ArmResult:
    """The results of all runs of an arm."""

    arm: Arm
    runs: tuple[RunResult, ...]
    trials: Mapping[float, float]
    """Learning rate -> validation loss of its trial; infinite if it failed."""
    difference: Difference | None
    """Difference from the baseline; None for the baseline itself."""
    later: Mapping[str, tuple[DownstreamScore, ...]]
    """Downstream task -> the scores of the runs, by seed."""

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def failed(self) -> tuple[RunResult, ...]:
        return tuple(run for run in self.runs if run.state != "complete")

    @property
    def alike(self) -> list[list[RunResult]]:
        """The runs without a result, those of the same state and reason together."""
        groups: dict[tuple[str, str], list[RunResult]] = {}
        for run in self.failed:
            groups.setdefault((run.state, run.kind_of_failure), []).append(run)
        return list(groups.values())

    @property
    def first(self) -> Path | None:
        """The first finished run that has a checkpoint; a run from a pack has none."""
        finished = (run.folder for run in self.runs if run.state == "complete")
        return next((folder for folder in finished if Run(folder).checkpoints), None)

    @property
    def rate(self) -> float:
        """The learning rate of the runs."""
        return next((run.lr for run in self.runs if run.state == "complete"), self.arm.recipe.optimizer.lr)

    @property
    def memory_bytes(self) -> float:
        """Estimated memory of training: weights, gradients, the optimiser's state, and activations of a batch."""
        recipe = self.arm.recipe
        assert recipe.data is not None
        rows = max(1, recipe.train.batch_tokens // recipe.data.context)
        return PER_PARAMETER * self.arm.budgets.params + rows * self.arm.budgets.activation_bytes

    def mean(self, name: str) -> Interval:
        """The mean of a result over the finished runs, with its 95% interval."""
        return t_interval([getattr(run, name) for run in self.runs])

    def score(self, task: str) -> Interval:
        """The mean score of a downstream task, with its 95% interval."""
        return t_interval([one.score for one in self.later[task]])


def _valid_loss(line: Mapping[str, Any]) -> float:
    return float(line["valid_loss"])
