"""A ladder of sizes: smaller sizes of a recipe are trained, the largest is predicted from them and then trained too.

On the disk it is a study whose arms are sizes (docs/formats.md): first the smaller sizes of all architectures, then,
when `prediction.json` has been written, the largest ones. So it is resumed, packed and run in parallel as every study.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Unpack

from anyformer.child_process import refuse_second_run
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.data.sources.named_source import relocated
from anyformer.disk import store, write
from anyformer.errors import SpecError
from anyformer.study.ladder_results import PREDICTION, RUNGS, LadderPrediction, Scaled
from anyformer.study.ladder_spec import Ladder
from anyformer.study.planning import plan
from anyformer.study.rungs import Rung, rungs_of, too_few
from anyformer.study.study import SUFFIX, Arms, Study
from anyformer.study.study_folder import LARGEST, SMALLER, STUDY, StudyFolder, is_ladder
from anyformer.study.study_listener import Listener, PrintedStudy
from anyformer.study.study_record import REGISTERED, now
from anyformer.study.study_request import StudyRequest
from anyformer.study.study_session import StudySession
from anyformer.training.recipes.python_values import DataTarget, Sections, Target
from anyformer.training.recipes.resolve import data_of
from anyformer.training.recipes.toml_layers import DEFAULT, TomlLayers
from anyformer.training.runs.run_folder import LOCK, locked
from anyformer.training.runs.session import RUNS

DEFAULTS = TomlLayers.of(
    {"study": {"seeds": 1, "tuning": {"trials": 0}, "ladder": Ladder().to_dict()}}, DEFAULT
)  # fmt: skip
"""Settings of a study that a ladder has if its recipe does not say otherwise."""


def scale(
    target: Target | Arms,
    *overrides: str,
    data: DataTarget | None = None,
    arms: Sequence[str] = (),
    rungs: int | None = None,
    seeds: int | None = None,
    out: str | Path | None = None,
    cache: str | Path | None = None,
    listener: Listener | None = None,
    **sections: Unpack[Sections],
) -> Scaled:
    """Trains smaller sizes of each architecture, predicts the loss of the largest one, and trains it.

    `scale("notes.txt", rungs=7)`, `scale({"mine": model, "gru": "gru"}, data="notes.txt", seeds=3)`.

    target: the largest size: a model, a recipe, a preset, a path to data or a source; several by name; the folder of a
        ladder, or its pack. Finished runs are not repeated, so the same call goes on after an interruption.
    overrides, data, sections: as of `train`; the same for all sizes.
    rungs, arms, seeds: short for study.ladder.rungs, study.arms, study.seeds; study.ladder has more settings.
    out: the folder of the ladder. cache: folder of prepared data.
    listener: notified of progress; the default prints it to standard error, Listener() prints nothing.
    """
    began = time.monotonic()
    refuse_second_run("scale")
    names = arms if isinstance(arms, str) else list(arms)
    settings: dict[str, Any] = {"ladder.rungs": rungs, "seeds": seeds, "arms": names}
    request = StudyRequest.of(target, overrides, settings, data, sections, out, cache)
    study, listener = ladder_study(request), PrintedStudy() if listener is None else listener
    path = request.folder or Path(out or RUNS / f"{study.name.removesuffix(SUFFIX)}-scale")
    minutes = study.spec.minutes
    cached = None if cache is None else Path(cache)
    session = StudySession(cached, listener, None if minutes is None else began + 60 * minutes)
    with locked(path):
        try:
            return _climb(path, study, session)
        finally:
            if (path / STUDY).is_file():
                listener.ended(path)


def ladder_study(request: StudyRequest) -> Study:
    """The architectures of a ladder at the largest size, and its settings."""
    study = request.study(below=DEFAULTS)
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
