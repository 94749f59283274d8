"""The files of a run folder (docs/formats.md), read without torch and in any state of the run.

Missing or damaged files are read as empty; the content of a file never raises an exception.
"""

import contextlib
import json
import math
import os
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from filelock import lock_descriptor

from anyformer.disk import (
    CALIBRATION,
    CHECKPOINTS,
    ENVIRONMENT,
    EVALUATIONS,
    EVENTS,
    EXTENDED,
    METRICS,
    RECIPE,
    SAMPLES,
    SHRUNK,
    SOURCES,
    by_step,
)

LOCK, STATE = ".lock", "state.json"
State = Literal["running", "complete", "failed", "interrupted", "unreadable"]
TAIL = 1 << 16
"""Bytes that are read from the end of a log to find its newest lines."""
MOST_HEADER = 1 << 24
Facts = Mapping[str, Any]


class Event(NamedTuple):
    """A line of events.log."""

    time: str
    what: str
    facts: Facts


class SampleRound(NamedTuple):
    """Texts that the model generated after a step."""

    step: int
    texts: list[Facts]


@dataclass(frozen=True)
class RunFiles:
    """The files of a run, each read at its first use."""

    folder: Path

    @cached_property
    def recipe(self) -> Facts:
        try:
            return tomllib.loads((self.folder / RECIPE).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}

    @property
    def recipe_text(self) -> str:
        return _text(self.folder / RECIPE)

    @cached_property
    def sources(self) -> Facts:
        """Dotted key of the recipe -> where its value came from."""
        return _object(_text(self.folder / SOURCES))

    @cached_property
    def environment(self) -> Facts:
        return _object(_text(self.folder / ENVIRONMENT))

    @cached_property
    def calibration(self) -> Facts:
        """The temperature that calibrates the probabilities of a classifier."""
        return _object(_text(self.folder / CALIBRATION))

    @cached_property
    def metrics(self) -> list[Facts]:
        """All complete lines of metrics.jsonl."""
        return list(_lines(_text(self.folder / METRICS)))

    @cached_property
    def last_metrics(self) -> list[Facts]:
        """The newest lines of metrics.jsonl, read from the end of the file."""
        return list(_lines(_tail(self.folder / METRICS)))

    @cached_property
    def events(self) -> list[Event]:
        split_lines = (line.split(" ", 2) for line in _tail(self.folder / EVENTS).splitlines())
        return [Event(parts[0], parts[1], _object(parts[2])) for parts in split_lines if len(parts) == 3]

    @property
    def steps(self) -> int | None:
        """The budget in steps; None if the budget is a time limit or unknown."""
        started = next((event for event in reversed(self.events) if "steps" in event.facts), None)
        steps = started.facts["steps"] if started else dig(self.recipe, "train", "steps")
        return steps if isinstance(steps, int) else None

    @cached_property
    def saved(self) -> Facts:
        """state.json of the newest checkpoint."""
        return _object(_text(self._checkpoint / STATE)) if self._checkpoint else {}

    @property
    def progress(self) -> Facts:
        """The training progress in the newest checkpoint."""
        progress = self.saved.get("progress")
        return progress if isinstance(progress, Mapping) else {}

    @cached_property
    def params(self) -> int | None:
        """Number of parameters in the newest model.safetensors; None without a checkpoint."""
        try:
            with ((self._checkpoint or self.folder) / "model.safetensors").open("rb") as file:
                length = int.from_bytes(file.read(8), "little")  # of the header, which is JSON
                header = _object(file.read(length).decode("utf-8", "replace")) if length <= MOST_HEADER else {}
        except OSError:
            return None
        shapes = [tensor["shape"] for name, tensor in header.items() if name != "__metadata__" and "shape" in tensor]
        return sum(map(math.prod, shapes)) if shapes else None

    @cached_property
    def samples(self) -> list[SampleRound]:
        """Generated texts of each sampled step, oldest first."""
        files = by_step(self.folder / SAMPLES, ".jsonl")
        return [SampleRound(step, list(_lines(_text(file)))) for step, file in files.items()]

    @cached_property
    def evaluations(self) -> dict[str, Facts]:
        """Split -> its stored scores."""
        return {file.stem: _object(_text(file)) for file in sorted((self.folder / EVALUATIONS).glob("[!.]*.json"))}

    @cached_property
    def shrunk(self) -> Facts:
        """Where the model came from and its table, of a run made by `shrink`; empty for all others."""
        return _object(_text(self.folder / SHRUNK))

    @cached_property
    def state(self) -> State:
        if not self.recipe:
            return "unreadable"
        if self.locked:
            return "running"
        if self.saved.get("complete") and self._checkpoint and not (self._checkpoint / EXTENDED).exists():
            return "complete"
        last = self.events[-1].what if self.events else ""
        if last == "finished" and not (self.folder / CHECKPOINTS).exists():  # unpacked from a file without weights
            return "complete"
        return "failed" if last == "failed" else "interrupted"

    @property
    def locked(self) -> bool:
        """Whether a process is training in this folder."""
        for pause_s in (0.0, 0.01, 0.05):  # another reader may hold the lock for a moment: try again
            time.sleep(pause_s)
            try:
                with (self.folder / LOCK).open() as file:
                    if lock_descriptor(file.fileno(), blocking=False):
                        return False
            except OSError:
                return False
        return True

    @property
    def changed(self) -> float:
        """Time of the last change in the run, in seconds since the epoch."""
        for name in (METRICS, EVENTS, RECIPE):
            with contextlib.suppress(OSError):
                return (self.folder / name).stat().st_mtime
        return 0.0

    @cached_property
    def _checkpoint(self) -> Path | None:
        root = self.folder / CHECKPOINTS
        named = root / _text(self.folder / "LATEST").strip()
        candidates = [*([named] if named != root else []), *reversed(by_step(root).values())]
        return next((path for path in candidates if (path / STATE).is_file()), None)


def run_folders(root: Path, depth: int = 5) -> Iterator[Path]:
    """Run folders at or below a folder; run folders inside a run folder are skipped."""
    if (root / RECIPE).is_file() and (root / SOURCES).is_file():
        yield root
    elif depth:
        with contextlib.suppress(OSError):
            for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
                if entry.is_dir() and not entry.name.startswith("."):
                    yield from run_folders(root / entry.name, depth - 1)


def dig(data: Any, *keys: str) -> Any:
    """A value in nested tables; None if a key is missing."""
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def finite(value: Any) -> float | None:
    """A finite number as a float; None for any other value."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _tail(path: Path) -> str:
    """The last complete lines of a file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return text if size <= TAIL else text.partition("\n")[2]


def _lines(text: str) -> Iterator[Facts]:
    for line in text.split("\n"):
        if record := _object(line):
            yield record


def _object(text: str) -> Facts:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
