"""Sends every new line of metrics.jsonl to the sinks. A sink that fails is turned off with a message."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from anyformer.training.loop.step import Step
from anyformer.training.observers.moments import Moments
from anyformer.training.observers.tracking import SINKS, Sink
from anyformer.training.runs.file_names import METRICS
from anyformer.training.runs.run_folder import RunFolder

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
