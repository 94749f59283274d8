"""A ladder of sizes: smaller sizes of a recipe are trained, the largest is predicted from them and then trained too.

On the disk it is a study whose arms are sizes (docs/formats.md): first the smaller sizes of all architectures, then,
when `prediction.json` has been written, the largest ones. So it is resumed, packed and run in parallel as every study.
"""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from anyformer.child_process import refuse_second_run
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.data.sources.named_source import relocated
from anyformer.disk import store, write
from anyformer.errors import CheckpointError, SpecError
from anyformer.run import Run
from anyformer.statistics.paired import t_interval
from anyformer.statistics.scaling import NotEnough
from anyformer.study.arm_results import RunResult
from anyformer.study.ladder_spec import Ladder
from anyformer.study.planning import plan
from anyformer.study.rungs import Rung, rungs_of, too_few
from anyformer.study.scaling_laws import ExponentDifference, LadderPoint, Laws, exponent_differences, laws
from anyformer.study.study import SUFFIX, Study, read_study
from anyformer.study.study_folder import LARGEST, SMALLER, STUDY, StudyFolder, is_ladder, resuming_command
from anyformer.study.study_listener import Listener, PrintedStudy
from anyformer.study.study_record import REGISTERED, now, seconds_spent
from anyformer.study.study_session import StudySession, located
from anyformer.training.recipes.resolve import data_of
from anyformer.training.recipes.toml_layers import DEFAULT, TomlLayers
from anyformer.training.runs.checkpoint import read_facts
from anyformer.training.runs.run_folder import LOCK, locked
from anyformer.training.runs.session import RUNS

PREDICTION, RUNGS = "prediction.json", "ladder.json"
DEFAULTS = TomlLayers.of(
    {"study": {"seeds": 1, "tuning": {"trials": 0}, "ladder": Ladder().to_dict()}}, DEFAULT
)  # fmt: skip
"""Settings of a study that a ladder has if its recipe does not say otherwise."""


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


def scale(
    target: str | Path,
    *overrides: str,
    out: Path | None = None,
    cache: Path | None = None,
    listener: Listener | None = None,
) -> Scaled:
    """Trains the smaller sizes of each architecture, predicts the largest one, and trains it.

    `scale("notes.txt", "study.ladder.rungs=7", "study.seeds=3")`; the settings are those of `Ladder` and `StudySpec`.
    Finished runs are not repeated, so the same call goes on after an interruption.

    target: a recipe, a preset, a path to data, the folder of a ladder, or its pack. It describes the largest size.
    """
    began = time.monotonic()
    refuse_second_run("scale")
    source, existing = located(str(target), out)
    study = ladder_study(source, overrides)
    path = existing or out or RUNS / f"{study.name.removesuffix(SUFFIX)}-scale"
    minutes, listener = study.spec.minutes, PrintedStudy() if listener is None else listener
    session = StudySession(cache, listener, None if minutes is None else began + 60 * minutes)
    with locked(path):
        try:
            return _climb(path, study, session)
        finally:
            if (path / STUDY).is_file():
                listener.ended(path)


def ladder_study(source: Any, overrides: Sequence[str]) -> Study:
    """The architectures of a ladder at the largest size, and its settings."""
    study = read_study(source, overrides, below=DEFAULTS)
    if study.controls or study.spec.budgets or study.downstream:
        raise SpecError(
            "a ladder has no controls, study.budgets or downstream tasks. Use study.ladder.budgets, or a study without "
            "[study.ladder]."
        )
    return study


def planned(study: Study, cache: Path | None, began_in: str | None = None) -> list[Rung]:
    """The rungs of all architectures, without training them."""
    prepared = prepared_for(relocated(data_of(next(iter(study.arms.values()))), began_in), cache)
    ladder, several = study.spec.ladder, len(study.arms) > 1
    assert ladder is not None
    return [
        rung
        for arm in plan(study, prepared)
        for rung in rungs_of(arm.recipe, prepared.context, ladder, arm.name, f"{arm.name}-" if several else "")
    ]


def _climb(path: Path, study: Study, session: StudySession) -> Scaled:
    """Trains the smaller sizes, writes the predictions, and trains the largest sizes."""
    folder = StudyFolder(path)
    if is_ladder(path):
        folder.refuse_another(study)
    elif any(item.name not in (LOCK, STUDY, REGISTERED, RUNGS, SMALLER) for item in path.iterdir()):
        raise SpecError(f"{path}: exists already and is not a ladder. Use another folder: out=NAME (--out NAME).")
    session.listener.log("sizing the models")
    rungs = planned(study, session.cache, folder.began_in)
    assert study.spec.ladder is not None
    for line in (*map(str, rungs), too_few(study.spec.ladder)):
        if line:
            session.listener.log(line)
    folder.write(study)
    keys = ("name", "arm", "weights", "tokens", "flops", "top")
    write(path / RUNGS, json.dumps({"rungs": [{key: getattr(rung, key) for key in keys} for rung in rungs]}, indent=1))
    _train(path, SMALLER, study, [rung for rung in rungs if not rung.top], session)
    if not (path / PREDICTION).exists():
        predictions = _predicted(Scaled.open(path), [rung for rung in rungs if rung.top])
        store(path / PREDICTION, json.dumps([asdict(prediction) for prediction in predictions], indent=1))
    for prediction in Scaled.open(path).predictions:
        interval = f"{prediction.low:.4f} to {prediction.high:.4f}"
        session.listener.log(f"{prediction.rung}: predicted {prediction.loss:.4f} ({interval}) by {prediction.law}")
    _train(path, LARGEST, study, [rung for rung in rungs if rung.top], session)
    return Scaled.open(path)


def _train(path: Path, name: str, study: Study, rungs: Sequence[Rung], session: StudySession) -> None:
    """Trains rungs with all seeds, as the arms of a study inside the folder of the ladder."""
    longest_first = sorted(rungs, key=attrgetter("flops"), reverse=True)  # then workers end at about the same time
    documents = {rung.name: TomlLayers.of(rung.recipe.to_dict(), f"rung {rung.name}") for rung in longest_first}
    spec = replace(study.spec, arms=tuple(documents), match="none", ladder=None)
    (path / name).mkdir(exist_ok=True)
    folder = session.opened(path / name, replace(study, spec=spec, arms=documents), len(rungs))
    session.train(path / name, [folder])


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


def _predicted(scaled: Scaled, tops: Sequence[Rung]) -> list[LadderPrediction]:
    """The predictions of the largest size of each architecture; none for those that have been trained, or where no law
    was found."""
    predictions = []
    for rung in tops:
        known = None if scaled.losses(rung.name) else scaled.laws.get(rung.arm)
        if known is not None and (prediction := known.predict(rung.weights, rung.tokens)):
            law, loss = prediction
            assert loss.low is not None and loss.high is not None
            predictions.append(LadderPrediction(rung.arm, rung.name, law, loss.value, loss.low, loss.high, now()))
    return predictions
