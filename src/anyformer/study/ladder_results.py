"""The results of a ladder of sizes, read from its folder: the points, the laws through them, and the predictions."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from anyformer.core.readable_numbers import counted
from anyformer.errors import CheckpointError
from anyformer.run import Run
from anyformer.statistics.paired import t_interval
from anyformer.statistics.scaling import NotEnough
from anyformer.study.arm_results import RunResult
from anyformer.study.scaling_laws import ExponentDifference, LadderPoint, Laws, exponent_differences, laws
from anyformer.study.study import SUFFIX
from anyformer.study.study_folder import LARGEST, SMALLER, StudyFolder, resuming_command
from anyformer.study.study_record import seconds_spent
from anyformer.training.runs.checkpoint import read_facts

PREDICTION, RUNGS = "prediction.json", "ladder.json"


@dataclass(frozen=True)
class LadderPrediction:
    """The loss of the largest size of an architecture as predicted from its smaller sizes, with its interval."""

    arm: str
    rung: str
    law: str
    loss: float
    low: float
    high: float
    at: str = ""
    """When it was made (UTC); empty for predictions that were stored without it."""


@dataclass(frozen=True)
class Scaled:
    """The results of a ladder, finished or not."""

    name: str
    folder: Path
    points: tuple[LadderPoint, ...]
    """A point for each finished run, smallest size first."""
    predictions: tuple[LadderPrediction, ...]
    """Predictions made before the largest sizes were trained; none where there was not enough evidence."""

    @classmethod
    def open(cls, folder: Path) -> "Scaled":
        """The results that are in a folder so far."""
        study = StudyFolder.open(folder)
        facts = read_facts(folder / RUNGS)
        points = [point for rung in facts["rungs"] for point in _points(folder, rung, study.spec.every_seed)]
        if not points:
            raise CheckpointError(f"{folder}: no run has finished yet. Go on with: {resuming_command(folder)}")
        file = folder / PREDICTION
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        predictions = tuple(LadderPrediction(**prediction) for prediction in known)
        return cls(study.name.removesuffix(SUFFIX), folder, tuple(points), predictions)

    @property
    def arms(self) -> list[str]:
        """The architectures, the baseline first."""
        return list(dict.fromkeys(point.arm for point in self.points))

    @cached_property
    def laws(self) -> dict[str, Laws]:
        """Architecture -> the laws fitted to all of its points, the largest size included."""
        return {arm: laws([point for point in self.points if point.arm == arm]) for arm in self.arms}

    @cached_property
    def differences(self) -> list[ExponentDifference]:
        """How the exponents of each architecture differ from those of the first one."""
        first, *others = self.arms
        return [one for arm in others for one in exponent_differences(arm, self.laws[arm], self.laws[first])]

    @property
    def seconds(self) -> float:
        """Seconds in which runs were in progress."""
        return seconds_spent(self.folder)

    def losses(self, rung: str) -> list[float]:
        """The losses of a rung, one for each seed that has ended."""
        return [point.loss for point in self.points if point.name == rung]

    def off(self, prediction: LadderPrediction) -> float | None:
        """Relative error of a prediction, mean measured loss / predicted loss - 1; None before there is a loss."""
        losses = self.losses(prediction.rung)
        return t_interval(losses).value / prediction.loss - 1 if losses else None

    def lacking(self, arm: str) -> str:
        """Why there is no prediction for an architecture; empty if there is one."""
        if any(prediction.arm == arm for prediction in self.predictions):
            return ""
        law = self.laws[arm].best(self.laws[arm].longest)
        return str(law) if isinstance(law, NotEnough) else "the largest size was trained before it could be predicted"

    def of(self, arm: str) -> str:
        """The words " for ARM" if there are several architectures."""
        return f" for {arm}" if len(self.arms) > 1 else ""

    @property
    def sentences(self) -> list[str]:
        """The predicted and the measured loss of the largest sizes, and which exponents differ."""
        texts = [self._predicted(prediction) for prediction in self.predictions]
        texts += [f"No prediction{self.of(arm)}: {why}." for arm in self.arms if (why := self.lacking(arm))]
        return texts + [self._differences(arm) for arm in self.arms[1:]]

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def _predicted(self, prediction: LadderPrediction) -> str:
        when = f"{prediction.at}, before it was trained, " if prediction.at else ""
        text = (
            f"{when}{prediction.rung} was predicted to end at {prediction.loss:.4f} ({prediction.low:.4f} to "
            f"{prediction.high:.4f}) by {prediction.law}; it "
        )
        off = self.off(prediction)
        if off is None:
            return f"{text}has no loss yet."
        loss, runs = prediction.loss * (1 + off), len(self.losses(prediction.rung))
        inside = "inside" if prediction.low <= loss <= prediction.high else "outside"
        mean = "" if runs == 1 else f", the mean of {counted(runs, 'runs')}"
        return f"{text}ended at {loss:.4f}{mean}, {off:+.2%}, {inside} the band."

    def _differences(self, arm: str) -> str:
        differences = [one for one in self.differences if one.arm == arm]
        settled = [one.text for one in differences if one.settled]
        others = f"{len(differences) - len(settled)} of {counted(len(differences), 'exponents')} not settled"
        texts = "; ".join([*settled, others])
        return f"Exponents of {arm} less those of {self.arms[0]}: {texts} (each interval alone)."

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "rungs": [point.to_dict() for point in self.points],
            "laws": {arm: known.to_dict() for arm, known in self.laws.items()},
            "differences": [one.to_dict() for one in self.differences],
            "predictions": [{**asdict(one), "off": self.off(one)} for one in self.predictions],
            "lacking": {arm: self.lacking(arm) for arm in self.arms},
            "seconds": self.seconds,
        }


def _points(folder: Path, rung: dict[str, Any], seeds: Sequence[int]) -> list[LadderPoint]:
    """The finished runs of a rung."""
    study, points = StudyFolder(folder / (LARGEST if rung["top"] else SMALLER)), []
    for seed in seeds:
        result = RunResult.read(study.run(rung["name"], seed), seed)
        if result.judged is not None and math.isfinite(result.judged.value):
            devices = int(Run(result.folder).environment.get("processes", 1))
            facts = {key: rung[key] for key in ("name", "weights", "tokens", "flops", "arm")}
            points.append(
                LadderPoint(**facts, seed=seed, loss=result.judged.value, seconds=result.wall_s, devices=devices)
            )
    return points
