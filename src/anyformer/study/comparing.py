"""`compare`: trains the arms of a study and judges them. An interrupted study is resumed, a finished one only read.

Arms run in this process, in worker processes of this machine, or on a Ray cluster; results do not depend on where.
"""

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from queue import Empty
from typing import Unpack

import torch

from anyformer.core import Spec
from anyformer.core.discovery import imported_files
from anyformer.errors import Interrupted, SpecError, WorkerError
from anyformer.study.planning import plan
from anyformer.study.running import Notify, Outcome, RunTask, run_arm, scored
from anyformer.study.study import Arms, Match, Study, StudySpec, read_study
from anyformer.study.study_folder import ARMS, LATER, PLAN, STUDY, StudyFolder, standing
from anyformer.study.study_results import Results
from anyformer.training.recipes.resolve import DataTarget, Sections, Target, data_of, layers_of
from anyformer.training.runs.data_cache import prepared_for
from anyformer.training.runs.run_folder import LOCK, alone
from anyformer.training.runs.session import RUNS, Interruption

POLL_S = 0.5


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
    spec, threads, imports = folder.spec, int(folder.plan["threads"]), imported_files()
    seeds = tuple(range(spec.seeds))
    arms = [arm.name for arm in folder.arms if any(_is_open(folder, arm.name, seed) for seed in seeds)]
    tasks = [RunTask(folder.path, arm, seeds, spec.tuning, threads, cache, imports) for arm in arms]
    return Results(folder, launch(tasks, spec, listener.moved) if tasks else [])


def _is_open(folder: StudyFolder, arm: str, seed: int) -> bool:
    """True if a run or one of its downstream runs is not finished."""
    states: list[str] = [standing(folder.run(arm, seed))[0]]
    if states == ["complete"]:
        states = [scored(folder.later(arm, seed, task), metric).state for task, metric in folder.tasks.items()]
    return any(state not in ("complete", "failed") for state in states)


def launch(tasks: Sequence[RunTask], spec: StudySpec, tell: Notify = lambda: None) -> list[Outcome]:
    """Runs all tasks; `tell` is called regularly. Raises `Interrupted` after a signal, when everything is saved."""
    jobs = min(jobs_of(spec), len(tasks))
    if spec.launch == "ray":
        outcomes = _on_ray(tasks, tell)
    elif jobs == 1:
        outcomes = []
        for task in tasks:
            outcomes += run_arm(task, tell)
            if outcomes and outcomes[-1].stopped:
                break
    else:
        outcomes = _in_processes(tasks, jobs, tell)
    # Workers are always stopped with SIGINT; only this process knows the original signal. SIGTERM has the higher code.
    if code := max((outcome.stopped for outcome in outcomes), default=0):
        raise Interrupted(f"interrupted: all is saved. Go on with: anyformer compare {tasks[0].folder}", code)
    return outcomes


def jobs_of(spec: StudySpec) -> int:
    """Number of arms that run at the same time: `study.jobs`, or else one per GPU, or one per core."""
    return spec.jobs or torch.cuda.device_count() or torch.get_num_threads()


def threads_of(spec: StudySpec, arms: int) -> int:
    """CPU threads of every run. Results depend on it, so it is fixed once for the whole study."""
    return max(1, torch.get_num_threads() // min(jobs_of(spec), arms))


def _in_processes(tasks: Sequence[RunTask], jobs: int, tell: Notify) -> list[Outcome]:
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    stop, inbox, outbox = context.Event(), context.Queue(), context.Queue()
    for item in [*tasks, *[None] * jobs]:
        inbox.put(item)
    workers = [context.Process(target=_serve, args=(place, inbox, outbox, stop)) for place in range(jobs)]
    outcomes: list[Outcome] = []
    with Interruption() as interruption:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers) or not outbox.empty():
            with suppress(Empty):
                outcomes += outbox.get(timeout=POLL_S)
            tell()
            if interruption.caught or any(worker.exitcode for worker in workers):
                stop.set()
    if any(worker.exitcode for worker in workers):
        raise WorkerError(
            f"a worker process was killed, perhaps because memory ran out. Checkpoints are saved. "
            f"Go on with: anyformer compare {tasks[0].folder} study.jobs=1"
        )
    return [*outcomes, *([Outcome("", -1, "", 128 + interruption.caught)] if interruption.caught else [])]


def _serve(place: int, inbox: "Queue[RunTask | None]", outbox: "Queue[list[Outcome]]", stop: Event) -> None:
    """A worker process: runs one arm after the other. It is stopped by its parent only, so that a Ctrl-C is not
    received twice."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(stop,), daemon=True, name="watch").start()
    if torch.cuda.is_available():
        torch.cuda.set_device(place % torch.cuda.device_count())
    while (task := inbox.get()) is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if stop.is_set():
            return
        outbox.put(run_arm(task))
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _watch(stop: Event) -> None:
    """Interrupts this process when the parent sets `stop`, and ends it when the parent has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while not stop.wait(POLL_S):
        if not parent.is_alive():
            os._exit(1)
    os.kill(os.getpid(), signal.SIGINT)


def _on_ray(tasks: Sequence[RunTask], tell: Notify) -> list[Outcome]:
    """Runs the tasks on a Ray cluster whose machines share the study folder and the cache."""
    try:
        import ray
    except ImportError:
        raise SpecError("study.launch=ray needs the extra cluster: pip install 'anyformer[cluster]'") from None
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    work = ray.remote(num_cpus=tasks[0].threads, num_gpus=gpus)(run_arm)
    waiting = []
    for task in tasks:
        cache = task.cache and task.cache.expanduser().absolute()
        waiting.append(work.remote(replace(task, folder=task.folder.absolute(), cache=cache)))
    left = list(waiting)
    while left:
        tell()
        _, left = ray.wait(left, timeout=POLL_S)
    return [outcome for outcomes in ray.get(waiting) for outcome in outcomes]
