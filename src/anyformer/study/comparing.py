"""`compare`: trains the arms of a study and judges them. An interrupted study is resumed, a finished one only read."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from anyformer.child_process import refuse_second_run
from anyformer.errors import SpecError
from anyformer.study.budget_curves import BudgetCurves, budget_folder, with_curves
from anyformer.study.study import Arms, Match, Study
from anyformer.study.study_folder import PLAN, STUDY, StudyFolder
from anyformer.study.study_listener import Listener, PrintedStudy
from anyformer.study.study_request import StudyRequest
from anyformer.study.study_results import Results
from anyformer.study.study_session import StudySession
from anyformer.training.recipes.python_values import (
    DataTarget,
    Sections,
    Target,
)
from anyformer.training.runs.run_folder import locked
from anyformer.training.runs.session import RUNS


def compare(
    target: Target | Arms,
    *overrides: str,
    data: DataTarget | None = None,
    arms: Sequence[str] = (),
    match: Match | None = None,
    seeds: int | None = None,
    out: str | Path | None = None,
    cache: str | Path | None = None,
    listener: Listener | None = None,
    **sections: Unpack[Sections],
) -> Results:
    """Trains every arm with every seed at a matched budget, and judges the differences.

    `compare("notes.txt", arms=["lstm", "cnn"])`, `compare({"mine": model, "base": "small"}, data="notes.txt")`.

    target: arms as values (the baseline first), a recipe, a preset, a path to data, a source, a study file, a study's
        folder, or the file that `write_pack` wrote.
    overrides, data, sections: as of `train`; the same for all arms. After "study.minutes=9" everything is saved and
        `Interrupted` is raised; the same call goes on.
    arms, match, seeds: short for study.arms, study.match, study.seeds.
    out: the study's folder. cache: folder of prepared data.
    listener: notified of progress; the default prints it to standard error, Listener() prints nothing.
    """
    began = time.monotonic()
    refuse_second_run("compare")
    settings = {"arms": arms if isinstance(arms, str) else list(arms), "match": match, "seeds": seeds}
    request = StudyRequest.of(target, overrides, settings, data, sections, out, cache)
    study, listener = request.study(), PrintedStudy() if listener is None else listener
    each = [request.study("study.budgets=[]", f"train.steps={steps}") for steps in study.spec.budgets]
    path = request.folder or Path(out or RUNS / study.name)
    cached = None if cache is None else Path(cache)
    session = StudySession(cached, listener, None if study.spec.minutes is None else began + 60 * study.spec.minutes)
    with locked(path):
        try:
            return _at_budgets(path, study, each, session) if each else session.results(path, study)
        finally:
            if (path / STUDY).is_file():
                listener.ended(path)


def _at_budgets(path: Path, study: Study, each: Sequence[Study], session: StudySession) -> Results:
    """The study at all budgets, from the smallest to the largest, after its controls, which belong to the largest."""
    folder = StudyFolder(path)
    if (path / PLAN).is_file():
        raise SpecError(f"{path}: is a study at a single budget. Use another folder: out=NAME (--out NAME).")
    if (path / STUDY).is_file():
        folder.refuse_another(study)
    folder.write(study)
    budgets = study.spec.budgets
    session.listener.log(f"{path}: {len(budgets)} budgets, {', '.join(f'{steps:,}' for steps in budgets)} steps")
    places = [budget_folder(path, steps) for steps in budgets]
    for place in places:
        place.mkdir(exist_ok=True)
    if study.controls:
        session.controls(places[-1], each[-1])
    together = sum(len(one.arms) for one in each)
    folders = [
        session.opened(place, one if steps == budgets[-1] else one.without_controls(), together)
        for steps, place, one in zip(budgets, places, each, strict=True)
    ]
    outcomes = session.train(path, folders)
    results = [Results(one, [outcome for outcome in outcomes if outcome.task.folder == one.path]) for one in folders]
    for result in results:
        session.measure(result)
    return with_curves(BudgetCurves.of(path, results))
