"""`compare`: trains the arms of a study and judges them. An interrupted study is resumed, a finished one only read."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from anyformer.core import Spec
from anyformer.core.discovery import imported_files
from anyformer.errors import SpecError
from anyformer.study.downstream import scored
from anyformer.study.launch import launch, threads_of
from anyformer.study.planning import plan
from anyformer.study.running import RunTask
from anyformer.study.study import Arms, Match, Study, read_study
from anyformer.study.study_folder import ARMS, LATER, PLAN, STUDY, StudyFolder, standing
from anyformer.study.study_results import Results
from anyformer.training.recipes.resolve import DataTarget, Sections, Target, data_of, layers_of
from anyformer.training.runs.data_cache import prepared_for
from anyformer.training.runs.run_folder import LOCK, alone
from anyformer.training.runs.session import RUNS


class Listener:
    """Callbacks of a study; the base class does nothing."""

    def log(self, text: str) -> None:
        """Called with a message for the user."""

    def planned(self, folder: StudyFolder) -> None:
        """Called before the first run."""

    def moved(self) -> None:
        """Called regularly while runs are in progress, to read the folder again."""


def compare(
    target: Target | Arms,
    *overrides: str,
    data: DataTarget | None = None,
    arms: Sequence[str] = (),
    match: Match | None = None,
    seeds: int | None = None,
    out: str | Path | None = None,
    cache: Path | None = None,
    listener: Listener | None = None,
    **sections: Unpack[Sections],
) -> Results:
    """Trains every arm with every seed at a matched budget, and judges the differences.

    `compare("notes.txt", arms=["lstm", "cnn"])`, `compare({"mine": model, "base": "small"}, data="notes.txt")`.

    target: arms as values (the baseline first), a recipe, a preset, a path to data, a study file, or a study's folder.
    overrides, data, sections: as of `train`; the same for all arms.
    arms, match, seeds: short for study.arms, study.match, study.seeds.
    out: the study's folder. cache: folder of prepared data. listener: notified of progress.
    """
    settings = {"arms": list(arms) or None, "match": match, "seeds": seeds}
    options = [f"study.{key}={json.dumps(value)}" for key, value in settings.items() if value is not None]
    listener, keys = listener or Listener(), [*overrides, *options]
    models: Arms = target if isinstance(target, Mapping) else {}
    base: Target = next(iter(models.values()), "") if isinstance(target, Mapping) else target
    existing = None if isinstance(base, Spec) or not (Path(base) / STUDY).is_file() else Path(base)
    study = read_study(existing / STUDY if existing else base, keys, layers_of(data, None, sections), models)
    path = existing or Path(out or RUNS / study.name)
    with alone(path):
        return _run(_opened(path, study, cache, listener), cache, listener)


def _opened(path: Path, study: Study, cache: Path | None, listener: Listener) -> StudyFolder:
    """The folder of a study that is resumed, or a new folder with its plan."""
    listener.log("reading the data")
    prepared = prepared_for(data_of(next(iter(study.arms.values()))), cache, listener.log)
    if (path / STUDY).is_file():
        folder = StudyFolder(path)
        folder.refuse_another(study)
        folder.refuse_other_data(prepared.manifest.fingerprint)
        folder.write(study)
        return StudyFolder(path)
    if any(item.name not in (LOCK, ARMS, PLAN, LATER, f".{STUDY}") for item in path.iterdir()):
        raise SpecError(f"{path}: exists already and is not a study folder. Use another folder: --out {path}-2.")
    listener.log(f"sizing {len(study.arms)} arms")
    threads = threads_of(study.spec, len(study.arms))
    return StudyFolder.create(path, study, plan(study, prepared), prepared.manifest.fingerprint, threads)


def _run(folder: StudyFolder, cache: Path | None, listener: Listener) -> Results:
    """Trains the runs that are not finished, and reads the results."""
    listener.planned(folder)
    spec, threads = folder.spec, int(folder.plan["threads"])
    seeds = tuple(range(spec.seeds))
    imports = imported_files()
    tasks = [RunTask(folder.path, arm.name, seeds, spec.tuning, threads, cache, imports) for arm in folder.arms]
    left = [task for task in tasks if any(_is_open(folder, task, seed) for seed in task.seeds)]
    outcomes = launch(left, spec, listener.moved) if left else []
    return Results(folder, outcomes)


def _is_open(folder: StudyFolder, task: RunTask, seed: int) -> bool:
    """True if a run or one of its downstream runs is not finished."""
    now, later = standing(folder.run(task.arm, seed)).state, folder.tasks.items()
    if now != "complete":
        return now != "failed"
    states = [scored(folder.later(task.arm, seed, name), metric).state for name, metric in later]
    return any(state not in ("complete", "failed") for state in states)
