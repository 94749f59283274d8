"""Files on disk: written so that a power cut cannot lose them, known by hash, size and time, numbered by step.

Only the standard library is imported: `runs` and `report` list checkpoints without loading torch.
"""

import difflib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RECIPE, SOURCES, ENVIRONMENT = "recipe.toml", "sources.json", "environment.json"
METRICS, EVENTS, TOKENIZER = "metrics.jsonl", "events.log", "tokenizer.json"
CHECKPOINTS, SAMPLES, EVALUATIONS = "checkpoints", "samples", "evaluations"
CALIBRATION, CHAT_TEMPLATE, SHRUNK = "calibration.json", "chat_template.jinja", "shrunk.json"
STUDY = "study.toml"
EXTENDED = "EXTENDED"
"""Empty file in the last checkpoint of a finished run that is trained on: this checkpoint no longer ends the run."""
STEP = "step-"
SETTLED_NS = 2_000_000_000
"""A file that was modified less than this long ago may be modified again without a new time stamp."""


class OpenedFolder:
    """Base of what is read from a folder: its path stays valid when the process changes its working directory."""

    def __init__(self, folder: str | Path):
        self._path = Path(folder)
        self._opened_in = "" if self._path.is_absolute() else os.getcwd()

    @property
    def folder(self) -> Path:
        """The path as it was written; absolute if the working directory is not the one it was opened in."""
        return self._path if self._opened_in in ("", os.getcwd()) else Path(self._opened_in, self._path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.folder.absolute() == other.folder.absolute()

    def __hash__(self) -> int:
        return hash(self.folder.absolute())

    def __reduce__(self) -> tuple[type, tuple[Path]]:  # what was read stays behind: a copy reads its own
        return type(self), (self.folder.absolute(),)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Adds the path to file system errors of calls that know only a handle."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write(path: Path, text: str) -> None:
    """Writes a small text file and flushes it to the disk."""
    with named_errors(path), path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, text: str) -> None:
    """Writes a small text file of which the old or the new text is left after a power cut, never a part."""
    fresh = path.with_name(f".{path.name}")
    write(fresh, text)
    os.replace(fresh, path)
    sync(path.parent)


def read_object(path: Path, parse: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    """The table in a JSON file, or in a file of another format. ValueError for anything else, also for a text that is
    nested too deeply for its parser."""
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("holds no table")
    return value


def missing(path: Path) -> str:
    """The message about a path that does not exist, with the names in its folder that are similar to it."""
    if path.is_symlink():
        return f"{path}: is a link to {os.readlink(path)}, where there is nothing."
    if not path.parent.is_dir():
        return f"{path}: no such file or folder; there is no folder {str(path.parent)!r} either."
    return f"{path}: no such file or folder.{similar_names(path)}"


def similar_names(path: Path) -> str:
    """' Did you mean ...?' with the names beside a missing path that are similar to its own; empty without any."""
    try:
        names = sorted(file.name for file in path.parent.iterdir() if file.name != path.name)
    except OSError:
        return ""
    similar = [name for name in names if difflib.get_close_matches(path.stem, [Path(name).stem])]
    nearest = difflib.get_close_matches(path.name, similar, 3, cutoff=0)
    guess = " or ".join(repr(str(path.parent / name)) for name in nearest)
    return f" Did you mean {guess}?" if guess else ""


def last_event(folder: Path) -> tuple[str, Any]:
    """The newest line of a run's events.log: the event and its values; an empty name and no values without events."""
    try:
        line = (folder / EVENTS).read_text(encoding="utf-8").splitlines()[-1]
        _, event, facts = line.split(" ", 2)
        return event, json.loads(facts)
    except (OSError, ValueError, IndexError):
        return "", {}


def is_run(folder: Path) -> bool:
    """True for a run folder, which has more than a recipe: `anyformer new` creates a folder with a recipe alone."""
    return (folder / RECIPE).is_file() and any((folder / name).exists() for name in (SOURCES, ENVIRONMENT, CHECKPOINTS))


def is_run_of_study(folder: Path) -> bool:
    """True for the name of a run or a trial that a study trains, such as seed-0 or lr-0.001; other runs in its folder,
    such as seed-0-small of `shrink`, are none of its runs."""
    return re.fullmatch(r"seed-\d+|lr-[\d.]+(e[-+]?\d+)?", folder.name) is not None


def store(path: Path, content: str | bytes) -> Path:
    """Writes a file that can be made again, such as a page, atomically: a concurrent reader sees the old file or the
    new file."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
        os.replace(fresh, path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # the file that the user named
        raise
    finally:
        fresh.unlink(missing_ok=True)
    return path


def sync(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open a folder, and writes its entries by itself
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() or os.name != "nt" else os.O_RDWR)
    try:
        with named_errors(path):
            os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def identity(file: Path) -> list[int]:
    """Size, time of modification and inode of a file."""
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def settled(identities: Iterable[list[int]]) -> bool:
    """Whether no file was modified so recently that its identity could stay the same in another modification."""
    return max((modified for _, modified, _ in identities), default=0) < time.time_ns() - SETTLED_NS


def step_name(step: int) -> str:
    """Name of the checkpoint of a step: six digits or more."""
    return f"{STEP}{step:06d}"


def step_of(name: str) -> int | None:
    """Step in the name of a checkpoint; None for any other name."""
    number = name.removeprefix(STEP)
    return int(number) if name.startswith(STEP) and number.isdecimal() else None


def by_step(folder: Path, suffix: str = "") -> dict[int, Path]:
    """Paths named step-<number><suffix> in a folder, by step, in increasing order. Text order fails at a million."""
    if not folder.is_dir():
        return {}
    steps = {path: step_of(path.name.removesuffix(suffix)) for path in folder.glob(f"{STEP}*{suffix}")}
    return {step: path for step, path in sorted((step, path) for path, step in steps.items() if step is not None)}
