"""What was decided before the first run of a study (registered.json), and how long it took (sessions.jsonl)."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anyformer.core.fields import changed_leaves
from anyformer.disk import write
from anyformer.study.study import StudySpec
from anyformer.training.runs.checkpoint import read_facts

REGISTERED, SESSIONS = "registered.json", "sessions.jsonl"


@dataclass(frozen=True)
class Registration:
    """A study as it was when its folder was made."""

    at: datetime
    study: Mapping[str, Any]
    """The content of study.toml at that time."""
    began_in: str | None = None
    """The folder that relative paths of the study refer to; None if it was not stored."""

    def changed(self, now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Dotted key -> its value before and now, for every setting that was changed later. A setting that is newer
        than one of the two files had its default there."""
        return changed_leaves(_with_defaults(self.study), _with_defaults(now))


def _with_defaults(study: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a study.toml with all settings of the study."""
    return {**study, "study": {**StudySpec().to_dict(), **study.get("study", {})}}


def register(folder: Path, study: Mapping[str, Any]) -> None:
    """Stores a study with the present time, if none is stored yet."""
    if not (folder / REGISTERED).exists():
        write(folder / REGISTERED, json.dumps({"at": now(), "began_in": os.getcwd(), "study": study}, indent=1))


def registration_of(folder: Path) -> Registration | None:
    """What was registered; None for a study without it."""
    if not (folder / REGISTERED).is_file():
        return None
    facts = read_facts(folder / REGISTERED)
    return Registration(datetime.fromisoformat(facts["at"]), facts["study"], facts.get("began_in"))


@contextmanager
def timed_session(folder: Path, jobs: int) -> Iterator[None]:
    """Adds the time that is spent inside the context to the study, even if it is interrupted."""
    at, began = now(), time.monotonic()
    try:
        yield
    finally:
        with (folder / SESSIONS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"at": at, "seconds": round(time.monotonic() - began, 1), "jobs": jobs}) + "\n")


def seconds_spent(folder: Path) -> float:
    """Seconds in which the runs of a study were in progress, with its controls and at all its budgets."""
    files = sorted(folder.rglob(SESSIONS)) if folder.is_dir() else []
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return sum(float(json.loads(line)["seconds"]) for line in lines)


def now() -> str:
    """The present time (UTC), to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
