"""`compare`: trains the arms of a study and judges them. An interrupted study is resumed, a finished one only read."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

from anyformer.child_process import refuse_second_run
from anyformer.core import Spec
from anyformer.core.readable_numbers import counted
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.data.sources.named_source import relocated
from anyformer.errors import SpecError, check_strings
from anyformer.study.budget_curves import BudgetCurves, budget_folder, with_curves
from anyformer.study.judging import judged_split
from anyformer.study.planning import plan
from anyformer.study.running import Outcome
from anyformer.study.study import Arms, Match, Study, read_study
from anyformer.study.study_folder import ARMS, LATER, PLAN, STUDY, StudyFolder
from anyformer.study.study_listener import Listener, PrintedStudy
from anyformer.study.study_pack import is_pack, unpack
from anyformer.study.study_record import REGISTERED, timed_session
from anyformer.study.study_results import Results
from anyformer.study.study_schedule import StudySchedule
from anyformer.study.study_yardsticks import measured_lines
from anyformer.study.workers import jobs_of, threads_of, workers_for
from anyformer.training.recipes.python_values import (
    DataTarget,
    Sections,
    Target,
    check_paths,
    check_target,
    layers_of,
    with_preset,
)
from anyformer.training.recipes.resolve import data_of
from anyformer.training.runs.run_folder import LOCK, locked
from anyformer.training.runs.session import RUNS, remarks_on_data, remarks_on_model


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
    check_strings("arms", arms)
    settings = {"arms": list(arms) or None, "match": match, "seeds": seeds}
    options = [f"study.{key}={json.dumps(value)}" for key, value in settings.items() if value is not None]
    overrides, other_sections = with_preset(overrides, sections)
    listener, keys = PrintedStudy() if listener is None else listener, [*overrides, *options]
    models: Arms = target if isinstance(target, Mapping) else {}
    for name, model in models.items():
        check_target(model, f"arm {name}")
    base: Target = next(iter(models.values()), "") if isinstance(target, Mapping) else target
    check_target(base)
    check_paths(out=out, cache=cache)
    if not isinstance(base, Spec) and is_pack(Path(base)):
        base = unpack(Path(base), None if out is None else Path(out), RUNS)
    existing = None if isinstance(base, Spec) or not (Path(base) / STUDY).is_file() else Path(base)
    source, values = existing / STUDY if existing else base, layers_of(data, None, other_sections)
    study = read_study(source, keys, values, models)
    each = [
        read_study(source, [*keys, "study.budgets=[]", f"train.steps={steps}"], values, models)
        for steps in study.spec.budgets
    ]
    path = existing or Path(out or RUNS / study.name)
    cached = None if cache is None else Path(cache)
    session = _Session(cached, listener, None if study.spec.minutes is None else began + 60 * study.spec.minutes)
    with locked(path):
        try:
            return _at_budgets(path, study, each, session) if each else session.results(path, study)
        finally:
            if (path / STUDY).is_file():
                listener.ended(path)


def _at_budgets(path: Path, study: Study, each: Sequence[Study], session: "_Session") -> Results:
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
        _opened(place, one if steps == budgets[-1] else one.without_controls(), session, together)
        for steps, place, one in zip(budgets, places, each, strict=True)
    ]
    outcomes = session.train(path, folders)
    results = [Results(one, [outcome for outcome in outcomes if outcome.task.folder == one.path]) for one in folders]
    for result in results:
        session.measure(result)
    return with_curves(BudgetCurves.of(path, results))


@dataclass(frozen=True)
class _Session:
    """What the runs of one call of `compare` share."""

    cache: Path | None
    listener: Listener
    deadline: float | None
    mentioned: set[str] = field(default_factory=set)

    def mention(self, remarks: Iterable[str]) -> None:
        """Logs remarks on the data, each once: controls and budgets have the same data."""
        for remark in remarks:
            if remark not in self.mentioned:
                self.listener.log(remark)
            self.mentioned.add(remark)

    def results(self, path: Path, study: Study) -> Results:
        """Trains the runs of a study that are not finished, after those of its controls, measures its yardsticks, and
        reads the results."""
        folder = self.controls(path, study)
        results = Results(folder, self.train(path, [folder]))
        self.measure(results)
        return results

    def measure(self, results: Results) -> None:
        """Measures the yardsticks of a study, unless that is done."""
        if results.judged is not None and (run := results.representative) is not None:
            self.listener.log("measuring yardsticks")
            measured_lines(results.folder.path, run, results.judged.split, self.cache)

    def controls(self, path: Path, study: Study) -> StudyFolder:
        """Trains the runs of the controls that are not finished, all together; they need no yardsticks."""
        folder = _opened(path, study, self, len(study.arms))
        if not study.controls:
            return folder
        self.listener.planned([folder])
        together = sum(len(control.arms) for control in study.controls.values())
        folders = []
        for name, control in study.controls.items():
            self.listener.log(f"control {name}: {study.spec.controls[name].expected}")
            folder.control(name).mkdir(parents=True, exist_ok=True)
            folders.append(_opened(folder.control(name), control, self, together))
        self.train(path, folders)
        return folder

    def train(self, path: Path, folders: Sequence[StudyFolder]) -> list[Outcome]:
        """Tries learning rates and trains every arm with every seed, in all of these studies at the same time. `path`:
        the folder of the whole study."""
        self.listener.planned(folders)
        schedule = StudySchedule(folders, self.cache)
        if not schedule.is_open:
            return []
        spec, arms = folders[0].spec, sum(len(folder.arms) for folder in folders)
        workers = workers_for(spec, path, arms, self.listener.moved, self.deadline)
        try:
            with timed_session(path, jobs_of(spec, arms)):
                workers.run(schedule)
        finally:
            workers.close()
        self.listener.trained()
        return schedule.outcomes


def _opened(path: Path, study: Study, session: _Session, together: int) -> StudyFolder:
    """The folder of a study that is resumed, or a new folder with its plan. `together`: arms that share the CPU."""
    listener = session.listener
    listener.log("reading the data")
    data = relocated(data_of(next(iter(study.arms.values()))), StudyFolder(path).began_in)
    prepared = prepared_for(data, session.cache, listener.log)
    judged_split(prepared, study.spec.metric)
    if (path / STUDY).is_file():
        folder = StudyFolder(path)
        folder.refuse_another(study)
        folder.refuse_other_data(prepared.manifest.fingerprint)
        folder.write(study)
        return StudyFolder(path)
    if any(item.name not in (LOCK, ARMS, PLAN, LATER, REGISTERED, f".{STUDY}") for item in path.iterdir()):
        raise SpecError(f"{path}: exists already and is not a study folder. Use another folder: out=NAME (--out NAME).")
    listener.log(f"sizing {counted(len(study.arms), 'arms')}")
    arms = plan(study, prepared)
    for arm in arms:
        session.mention(remarks_on_model(arm.recipe.model))
    session.mention(remarks_on_data(prepared, arms[0].recipe))
    threads = threads_of(study.spec, together)
    return StudyFolder.create(path, study, arms, prepared.manifest.fingerprint, threads)
