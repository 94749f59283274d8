"""metrics.jsonl: a line for every few steps."""

import importlib
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Protocol

from anyformer.disk import METRICS
from anyformer.training.loop.budget import Budget, Step
from anyformer.training.loop.trainer import Trainer
from anyformer.training.runs.run_folder import RunFolder


@dataclass(frozen=True)
class Moments:
    """True for every n-th step and for the last one."""

    every: int
    budget: Budget

    def __call__(self, step: Step) -> bool:
        return self.is_last(step) or bool(self.every and step.number % self.every == 0)

    def is_last(self, step: Step) -> bool:
        return self.budget.spent(step.number, step.wall_s)


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


HINTS: Mapping[type[Exception], str] = {ModuleNotFoundError: " Install it: pip install 'anyformer[track]'."}
Open = Callable[[Path, int], Sink]


class Sinks:
    """Forwards new metrics to all sinks; must run after the observers that write metrics."""

    def __init__(
        self,
        folder: RunFolder,
        names: Iterable[str],
        when: Moments,
        tell: Callable[[str], None] = lambda text: None,
        start: int = 0,
        known: Mapping[str, Open] = SINKS,
    ):
        self.folder, self.when, self.tell = folder, when, tell
        self.file = folder.path / METRICS
        self.read = self.file.stat().st_size if self.file.exists() else 0
        self.sinks: dict[str, Sink] = {}
        for name in names:
            try:
                self.sinks[name] = known[name](folder.path, start)
            except Exception as error:
                self._remove(name, error)

    def __call__(self, step: Step) -> None:
        if not self.sinks:
            return
        for number, values in self._new_lines():
            for name, sink in list(self.sinks.items()):
                self._guarded(name, sink.log, number, values)
        if self.when.is_last(step):
            for name, sink in list(self.sinks.items()):
                self._guarded(name, sink.close)

    def _guarded(self, name: str, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self._remove(name, error)

    def _remove(self, name: str, error: Exception) -> None:
        self.sinks.pop(name, None)
        why = f"{type(error).__name__}: {error}".split("\n")[0]
        self.folder.event("sink_failed", sink=name, why=why)
        self.tell(
            f"log.sinks: {name} failed ({why}) and is turned off; training continues.{HINTS.get(type(error), '')}"
        )

    def _new_lines(self) -> Iterator[tuple[int, dict[str, float]]]:
        if not self.file.exists() or self.file.stat().st_size == self.read:
            return
        with self.file.open("rb") as file:
            file.seek(self.read)
            new = file.read()
        self.read += len(new)
        for line in new.decode("utf-8").splitlines():
            facts = json.loads(line)
            yield facts["step"], dict(_numbers(facts))


def _numbers(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a line of metrics; those of a nested table are named `table/name`."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and (prefix or name != "step"):
            yield f"{prefix}{name}", float(value)


WINDOW, LEAST = 100, 20
JUMP = 6.0
"""A loss this many standard deviations above the mean of recent steps counts as a spike."""


class Trouble:
    """Logs the loader position of a bad batch, from which the seed reproduces that batch."""

    def __init__(self, trainer: Trainer, folder: RunFolder):
        self.trainer, self.folder = trainer, folder
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.before = trainer.progress.position

    def __call__(self, step: Step) -> None:
        place, self.before = list(self.before), self.trainer.progress.position
        if step.status != "applied":
            self.folder.event(step.status, step=step.number, position=place, loss=finite(step.loss))
            return
        if len(self.recent) >= LEAST and step.loss > fmean(self.recent) + JUMP * max(stdev(self.recent), 1e-3):
            self.folder.event("spike", step=step.number, position=place, loss=step.loss, usual=fmean(self.recent))
        self.recent.append(step.loss)
