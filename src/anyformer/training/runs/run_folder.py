"""Writes a run folder: created once, locked while a process trains in it, and continued after an interruption; and the
metrics of every step, to the folder and to other destinations."""

import importlib
import json
import math
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

import numpy as np
import safetensors
import tokenizers
import tomli_w
import torch
from filelock import FileLock, Timeout

import anyformer
from anyformer.data.preparation.shards import TOKENIZER as PREPARED_TOKENIZER
from anyformer.data.preparation.shards import Prepared
from anyformer.disk import (
    CHAT_TEMPLATE,
    CHECKPOINTS,
    ENVIRONMENT,
    EVENTS,
    EXTENDED,
    METRICS,
    RECIPE,
    SOURCES,
    TOKENIZER,
    named_errors,
    step_name,
    sync,
    write,
    write_atomically,
)
from anyformer.errors import SpecError
from anyformer.ops.devices import device_name
from anyformer.training.distributed import World
from anyformer.training.loop.budget import Moments, Step
from anyformer.training.recipes.recipe import Loaded

LOCK = ".lock"
PATIENCE_S = 5.0
"""Seconds to wait for the lock: the workers of a killed run share it until they notice and end."""


class RunFolder:
    """A run folder, opened for writing, which only the process that `leads` does."""

    def __init__(self, path: Path, leads: bool = True):
        self.path, self.leads = path, leads
        self.checkpoints = path / CHECKPOINTS

    @classmethod
    def create(cls, path: Path, loaded: Loaded, prepared: Prepared, facts: Mapping[str, Any]) -> "RunFolder":
        """Creates a run folder; `facts` are the contents of environment.json. The recipe is written last, so a folder
        that has one is a complete run folder."""
        refuse_occupied(path)
        path.mkdir(parents=True, exist_ok=True)
        folder, data = cls(path), loaded.recipe.data
        try:
            write(path / ENVIRONMENT, json.dumps(facts, indent=1))
            write(path / TOKENIZER, (prepared.folder / PREPARED_TOKENIZER).read_text(encoding="utf-8"))
            if data is not None and (template := data.source.chat_template) is not None:
                write(path / CHAT_TEMPLATE, template)
            folder.write_recipe(loaded)
        except BaseException:
            folder.clear()
            raise
        return folder

    def write_recipe(self, loaded: Loaded) -> None:
        """Writes the recipe atomically, after the origins of its values."""
        write(self.path / SOURCES, json.dumps(dict(loaded.origins), indent=1))
        write_atomically(self.path / RECIPE, tomli_w.dumps({**loaded.recipe.to_dict(), "name": loaded.name}))

    def extend(self, loaded: Loaded, step: int) -> None:
        """Replaces the recipe of a run that is trained on from a step with another budget."""
        if self.leads:
            if (last := self.checkpoints / step_name(step)).is_dir():
                write(last / EXTENDED, "")  # before the recipe: a finished run with the new recipe is never left behind
            self.write_recipe(loaded)

    def metric(self, facts: Mapping[str, Any]) -> None:
        """Appends a line to metrics.jsonl."""
        self._append(METRICS, json.dumps(facts, allow_nan=False))

    def event(self, what: str, **facts: Any) -> None:
        """Appends a line to events.log: the time, the event and its values."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self._append(EVENTS, f"{now} {what} {json.dumps(facts)}")

    def _append(self, name: str, line: str) -> None:
        if self.leads:
            with named_errors(self.path / name), (self.path / name).open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def forget_after(self, step: int) -> None:
        """Removes the metrics of steps after `step`, which will be repeated, and an incomplete last line."""
        if not self.leads:
            return
        file = self.path / METRICS
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        lines = [line for line in text.split("\n") if line and _step_of(line) <= step]
        write_atomically(file, "".join(f"{line}\n" for line in lines))

    def flush(self) -> None:
        """Flushes metrics.jsonl to disk."""
        if self.leads and (self.path / METRICS).exists():
            sync(self.path / METRICS)

    def remove_unless_saved(self) -> None:
        """Removes the files of a run that failed before its first checkpoint."""
        if self.leads and not any(self.checkpoints.glob("step-*")):
            self.clear()

    def clear(self) -> None:
        """Removes all files except the lock, which is still held."""
        for item in self.path.iterdir():
            if item.is_dir():
                shutil.rmtree(item, ignore_errors=True)
            elif item.name != LOCK:
                item.unlink(missing_ok=True)


def refuse_occupied(path: Path, *, resumes: bool = False) -> None:
    """Raises SpecError if the folder holds anything but the leftovers of a failed start: runs are never overwritten.
    `resumes`: the verb can resume a run."""
    leftovers = {LOCK, SOURCES, ENVIRONMENT, TOKENIZER, CHAT_TEMPLATE, f".{RECIPE}"}
    if path.exists() and (not path.is_dir() or any(item.name not in leftovers for item in path.iterdir())):
        other = f"Use another folder: out={f'{path}-2'!r} (--out {quote(f'{path}-2')})"
        same = ", or go on training it: resume=True (--resume)" if resumes else ""
        raise SpecError(f"{path}: exists already. {other}{same}.")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the exclusive lock of a run folder. The system releases it when the process ends, however it ends."""
    path.mkdir(parents=True, exist_ok=True)
    fresh = not any(path.iterdir())
    lock = FileLock(path / LOCK, timeout=PATIENCE_S, poll_interval=0.1)
    try:
        lock.acquire()
    except Timeout:
        advice = "Wait for it, or use another folder: out=NAME (--out NAME)"
        raise SpecError(f"{path}: another process is training there. {advice}.") from None
    try:
        yield
    finally:
        if fresh and [item.name for item in path.iterdir()] == [LOCK]:  # the start failed: leave no folder behind
            with suppress(PermissionError):  # Windows cannot delete an open file
                (path / LOCK).unlink()
                path.rmdir()
        lock.release()


def environment(prepared: Prepared, world: World) -> dict[str, Any]:
    """The contents of environment.json: what the results of a run may depend on besides its recipe."""
    return {
        "anyformer": anyformer.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
        "tokenizers": tokenizers.__version__,
        "platform": platform.platform(),
        "device": world.device.type,
        "device_name": device_name(world.device),
        "threads": torch.get_num_threads(),
        "processes": world.size,
        "began_in": os.getcwd(),
        "data_fingerprint": prepared.manifest.fingerprint,
        "data": {
            **{key: value for key, value in prepared.manifest.facts.items() if key != "spec"},
            "longest_target": prepared.longest_target,
        },
    }


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


class Sink(Protocol):
    """A destination of metrics."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Records the metrics of a step: loss, lr, valid_loss, ..."""

    def close(self) -> None:
        """Called once after the last step."""


class TensorBoard:
    """Event files for TensorBoard, in a folder of the run. Needs the extra `track`."""

    def __init__(self, run: Path, start: int):
        module = importlib.import_module("torch.utils.tensorboard")
        # After a resume, events of later steps that the interrupted run wrote are purged.
        self._writer: Any = module.SummaryWriter(str(run / "tensorboard"), purge_step=start + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


SINKS: Mapping[str, Callable[[Path, int], Sink]] = {"tensorboard": TensorBoard}
"""Name in `log.sinks` -> constructor of the sink from (run folder, number of steps done)."""
TIMES = ("wall_s", "tokens_per_s", "peak_bytes")
"""Keys whose values differ between two otherwise identical runs."""


class Metrics:
    """Writes steps to metrics.jsonl."""

    def __init__(self, folder: RunFolder, when: Moments):
        self.folder, self.when = folder, when

    def __call__(self, step: Step) -> None:
        if self.when(step) or step.status != "applied":
            self.folder.metric(line(step))


def finite(value: float) -> float | None:
    """The value, or None if it is infinite or not a number, which JSON cannot write."""
    return value if math.isfinite(value) else None


def line(step: Step) -> dict[str, object]:
    """A step as a line of metrics.jsonl."""
    return {
        "step": step.number,
        "epoch": step.epoch,
        "tokens": step.tokens,
        "loss": finite(step.loss),
        "terms": {name: finite(value) for name, value in step.terms.items()},
        "lr": step.lr,
        "gradient_norm": finite(step.gradient_norm),
        "status": step.status,
        "wall_s": round(step.wall_s, 3),
        "tokens_per_s": round(step.tokens_per_s, 1),
        "peak_bytes": step.peak_bytes,
    }


class Sinks:
    """Forwards new metrics to all sinks; must run after the observers that write metrics."""

    def __init__(
        self,
        folder: RunFolder,
        names: Iterable[str],
        when: Moments,
        log: Callable[[str], None],
        start: int = 0,
        known: Mapping[str, Callable[[Path, int], Sink]] = SINKS,
    ):
        self.folder, self.when, self.log = folder, when, log
        self.file = folder.path / METRICS
        self.read = self.file.stat().st_size if self.file.exists() else 0
        self.sinks: dict[str, Sink] = {}
        for name in names:
            try:
                self.sinks[name] = known[name](folder.path, start)
            except Exception as error:
                self._remove(name, error)

    def __call__(self, step: Step) -> None:
        lines = list(self._new_lines()) if self.sinks else []
        for name, sink in list(self.sinks.items()):
            try:
                for number, values in lines:
                    sink.log(number, values)
                if self.when.finished():
                    sink.close()
            except Exception as error:
                self._remove(name, error)

    def _remove(self, name: str, error: Exception) -> None:
        self.sinks.pop(name, None)
        why = f"{type(error).__name__}: {error}".split("\n")[0]
        self.folder.event("sink_failed", sink=name, why=why)
        hint = " Install it: pip install 'anyformer[track]'." if isinstance(error, ModuleNotFoundError) else ""
        self.log(f"log.sinks: {name} failed ({why}) and is turned off; training continues.{hint}")

    def _new_lines(self) -> Iterator[tuple[int, dict[str, float]]]:
        if self.file.exists():
            with self.file.open("rb") as file:
                file.seek(self.read)
                new = file.read()
            self.read += len(new)
            for facts in map(json.loads, new.decode("utf-8").splitlines()):
                yield facts["step"], dict(_numbers(facts))


def _numbers(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a line of metrics; those of a nested table are named `table/name`."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and (prefix or name != "step"):
            yield f"{prefix}{name}", float(value)
