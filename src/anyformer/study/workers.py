"""Runs the tasks of a study: in this process, in worker processes of this machine, or on a Ray cluster.

The results do not depend on where a task runs. A signal, or the end of the time, stops all tasks after they are saved.
"""

import multiprocessing
import os
import signal
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from queue import Empty
from typing import Any, Protocol

import torch

from anyformer.child_process import without_script
from anyformer.core import Spec
from anyformer.core.discovery import built_in_class, imported_files
from anyformer.errors import OUT_OF_TIME, Interrupted, SpecError, WorkerError
from anyformer.study.running import Notify, Outcome, RunTask, run_task
from anyformer.study.study import StudySpec
from anyformer.study.study_folder import resuming_command
from anyformer.study.study_schedule import StudySchedule
from anyformer.training.runs.session import Interruption

POLL_S = 0.5


class Workers(Protocol):
    """Where tasks run."""

    def run(self, schedule: StudySchedule) -> None:
        """Runs all tasks; raises `Interrupted` after a signal or at the end of the time, when everything is saved."""

    def close(self) -> None:
        """Ends all processes."""


def workers_for(spec: StudySpec, folder: Path, arms: int, notify: Notify, deadline: float | None) -> Workers:
    """The workers of a study. `deadline`: when to stop, by `time.monotonic`; `notify` is called regularly."""
    jobs = jobs_of(spec, arms)
    if spec.launch == "ray":
        return RayCluster(folder, notify, deadline)
    # Only a process can be stopped from outside at any moment.
    return ThisProcess(folder, notify) if jobs == 1 and deadline is None else Processes(jobs, folder, notify, deadline)


def jobs_of(spec: StudySpec, arms: int) -> int:
    """Number of runs at the same time: `study.jobs`, or else one per GPU, or one per core but at most one per arm."""
    return spec.jobs or torch.cuda.device_count() or min(torch.get_num_threads(), arms)


def threads_of(spec: StudySpec, arms: int) -> int:
    """CPU threads of every run. Results depend on it, so it is fixed once for the whole study."""
    return max(1, torch.get_num_threads() // jobs_of(spec, arms))


def go_on(folder: Path) -> str:
    """How to continue a study that was stopped; also if it was stopped in a control or in one of several budgets."""
    return f"all is saved. Go on with: {resuming_command(folder)}"


def script_defines_kinds() -> bool:
    """True if this process has kinds that a new process would not find without importing the user's script."""
    files = {Path(file).stem for file in imported_files()}
    classes = [(family, kind, cls) for family in Spec.__subclasses__() for kind, cls in family.kinds.items()]
    return any(
        built_in_class(family.__name__, kind) is None and cls.__module__ not in files for family, kind, cls in classes
    )


class ThisProcess:
    """Runs tasks one after the other in this process."""

    def __init__(self, folder: Path, notify: Notify):
        self.folder, self.notify = folder, notify

    def run(self, schedule: StudySchedule) -> None:
        while task := schedule.take():
            self.notify()
            schedule.finish(outcome := run_task(task, self.notify))
            if outcome.stopped:
                raise Interrupted(f"interrupted: {go_on(self.folder)}", outcome.stopped)
        self.notify()

    def close(self) -> None:
        pass


class Processes:
    """Worker processes of this machine, started with the first task and used until they are closed."""

    def __init__(self, jobs: int, folder: Path, notify: Notify, deadline: float | None):
        self.folder, self.notify, self.deadline = folder, notify, deadline
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self.stop, self.inbox, self.outbox = context.Event(), context.Queue(), context.Queue()
        self.workers = [
            context.Process(target=_serve, args=(place, self.inbox, self.outbox, self.stop)) for place in range(jobs)
        ]

    def run(self, schedule: StudySchedule) -> None:
        in_progress = 0
        if self._late():  # a process takes seconds to start
            raise out_of_time(self.folder)
        with Interruption() as interruption:
            with nullcontext() if script_defines_kinds() else without_script():
                for worker in self.workers:
                    if worker.pid is None:
                        worker.start()
            while not self.stop.is_set():
                while in_progress < len(self.workers) and (task := schedule.take()):
                    self.inbox.put(task)
                    in_progress += 1
                if not in_progress:
                    break
                with suppress(Empty):
                    schedule.finish(self.outbox.get(timeout=POLL_S))
                    in_progress -= 1
                self.notify()
                if self._late() or interruption.caught or any(worker.exitcode for worker in self.workers):
                    self.stop.set()
            if self.stop.is_set():
                self.close()
        if any((worker.exitcode or 0) > 0 for worker in self.workers):
            raise WorkerError(
                f"a worker process failed; its error is printed above. Checkpoints are saved. "
                f"Go on with: {resuming_command(self.folder)}"
            )
        if any(worker.exitcode for worker in self.workers):
            raise WorkerError(
                f"a worker process was killed, perhaps because memory ran out. Checkpoints are saved. "
                f"Go on with: {resuming_command(self.folder)} study.jobs=1"
            )
        if interruption.caught:
            raise Interrupted(f"interrupted: {go_on(self.folder)}", 128 + interruption.caught)
        if self.stop.is_set() and (in_progress or schedule.take()):
            raise out_of_time(self.folder)
        self.notify()

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def close(self) -> None:
        for _ in self.workers:
            self.inbox.put(None)
        while any(worker.is_alive() for worker in self.workers):
            with suppress(Empty):  # a process cannot end while its queue is full
                self.outbox.get(timeout=POLL_S)
        self.inbox.cancel_join_thread()


def out_of_time(folder: Path) -> Interrupted:
    """The error at the end of the time of `--minutes`."""
    return Interrupted(f"the time is up: {go_on(folder)}", OUT_OF_TIME)


def _serve(place: int, inbox: "Queue[RunTask | None]", outbox: "Queue[Outcome]", stop: Event) -> None:
    """A worker process: runs one task after the other. It is stopped by its parent only, so that a Ctrl-C is not
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
        outbox.put(run_task(task))
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _watch(stop: Event) -> None:
    """Interrupts this process when the parent sets `stop`, and ends it when the parent has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while not stop.wait(POLL_S):
        if not parent.is_alive():
            os._exit(1)
    os.kill(os.getpid(), signal.SIGINT)


class RayCluster:
    """A Ray cluster whose machines share the study folder and the cache."""

    def __init__(self, folder: Path, notify: Notify, deadline: float | None):
        self.folder, self.notify, self.deadline = folder, notify, deadline

    def run(self, schedule: StudySchedule) -> None:
        try:
            import ray
        except ImportError:
            raise SpecError("study.launch=ray needs the extra cluster: pip install 'anyformer[cluster]'") from None
        ray.init(ignore_reinit_error=True, log_to_driver=False)
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        work, in_progress = ray.remote(num_gpus=gpus)(run_task), dict[Any, RunTask]()
        while True:
            while task := schedule.take():
                cache = task.cache and task.cache.expanduser().absolute()
                there = replace(task, folder=task.folder.absolute(), cache=cache)
                in_progress[work.options(num_cpus=task.threads).remote(there)] = task
            if not in_progress:
                return
            self.notify()
            for reference in ray.wait(list(in_progress), timeout=POLL_S)[0]:
                schedule.finish(ray.get(reference)._replace(task=in_progress.pop(reference)))
            if in_progress and self.deadline is not None and time.monotonic() >= self.deadline:
                for reference in in_progress:
                    ray.cancel(reference)  # KeyboardInterrupt in the task, which is resumed from its last checkpoint
                raise out_of_time(self.folder)

    def close(self) -> None:
        pass
