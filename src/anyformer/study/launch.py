"""Launches the runs of a study: in this process, in worker processes of this machine, or on a Ray cluster.

A task is an arm with all its seeds. Its results do not depend on where it runs.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from queue import Empty

import torch

from anyformer.errors import Interrupted, SpecError, WorkerError
from anyformer.study.running import Notify, Outcome, RunTask, run_arm
from anyformer.study.study import StudySpec
from anyformer.training.runs.session import Interruption

POLL_S = 0.5


def launch(tasks: Sequence[RunTask], spec: StudySpec, tell: Notify = lambda: None) -> list[Outcome]:
    """Runs all tasks; `tell` is called regularly. Raises `Interrupted` after a signal, when everything is saved."""
    jobs = min(jobs_of(spec), len(tasks))
    if spec.launch == "ray":
        outcomes = _on_ray(tasks, tell)
    elif jobs == 1:
        outcomes = _here(tasks, tell)
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


def _here(tasks: Sequence[RunTask], tell: Notify) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for task in tasks:
        outcomes += run_arm(task, tell)
        if outcomes and outcomes[-1].stopped:
            break
    return outcomes


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
            outcomes += _received(outbox)
            tell()
            if interruption.caught or any(worker.exitcode for worker in workers):
                stop.set()
    if any(worker.exitcode for worker in workers):
        raise WorkerError(
            f"a worker process was killed, perhaps because memory ran out. Checkpoints are saved. "
            f"Go on with: anyformer compare {tasks[0].folder} study.jobs=1"
        )
    return [*outcomes, *([Outcome("", -1, "", 128 + interruption.caught)] if interruption.caught else [])]


def _received(outbox: "Queue[list[Outcome]]") -> list[Outcome]:
    try:
        return outbox.get(timeout=POLL_S)
    except Empty:
        return []


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
    waiting = [work.remote(_absolute(task)) for task in tasks]
    left = list(waiting)
    while left:
        tell()
        _, left = ray.wait(left, timeout=POLL_S)
    return [outcome for outcomes in ray.get(waiting) for outcome in outcomes]


def _absolute(task: RunTask) -> RunTask:
    cache = task.cache and task.cache.expanduser().absolute()
    return replace(task, folder=task.folder.absolute(), cache=cache)
