"""Run one verb of anyformer under a profiler and write what was executed as JSON; `tools/measure.py` starts it.

`python tools/traced.py PACKAGE WATCHED OUT VERB ...`: PACKAGE is the folder of the package, WATCHED the file whose
reads are counted, OUT the JSON file. All threads of the process are traced, child processes are not.
"""

import builtins
import io
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import is_dataclass
from inspect import isfunction
from pathlib import Path
from types import FrameType
from typing import Any

Open = Callable[..., Any]
IMPORT = "<frozen importlib._bootstrap>"
VOCABULARY = {"errors", "core", "ops", "parts", "reporting"}
"""Layers whose values are no envelopes: arguments of modules and functions, and the rows of a report."""


class Calls:
    """A profile function: files whose functions are called outside of an import, and envelopes that are created."""

    def __init__(self, package: Path) -> None:
        self.package = f"{package}{os.sep}"
        self.files: set[str] = set()
        self.created: set[type] = set()
        self.first_step = threading.Event()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(self.package):
            if code.co_filename not in self.files and not during_import(frame):
                self.files.add(code.co_filename)
        elif code.co_filename == "<string>":
            cls = constructed(frame)
            if cls is not None and cls not in self.created and not during_import(frame):
                self.created.add(cls)
        elif code.co_name == "backward" and code.co_filename.endswith(os.path.join("torch", "autograd", "__init__.py")):
            self.first_step.set()

    def executed(self) -> list[str]:
        return sorted(name.removeprefix(self.package) for name in self.files)

    def values(self) -> list[str]:
        """Value types that were created."""
        return sorted(map(name_of, filter(is_value, self.created)))

    def envelopes(self) -> list[str]:
        """Value types that only carry fields from one place to the next."""
        return sorted(name_of(cls) for cls in self.created if is_value(cls) and is_envelope(cls))


def constructed(frame: FrameType) -> type | None:
    """The class whose constructor this is, if @dataclass or NamedTuple generated it."""
    code = frame.f_code
    if code.co_name == "__init__":
        return type(frame.f_locals["self"])
    return frame.f_locals["_cls"] if code.co_varnames[:1] == ("_cls",) else None


def during_import(frame: FrameType | None) -> bool:
    """True for class bodies, decorators and whatever else runs because a module is being loaded."""
    while frame is not None:
        if frame.f_code.co_filename == IMPORT:
            return True
        frame = frame.f_back
    return False


def name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("anyformer.")


def is_value(cls: type) -> bool:
    """A dataclass or NamedTuple of anyformer that is neither a Spec nor a module of torch."""
    bases = {base.__name__ for base in cls.__mro__}
    generated = is_dataclass(cls) or issubclass(cls, tuple)
    return generated and cls.__module__.startswith("anyformer.") and not bases & {"Spec", "Module"}


def is_envelope(cls: type) -> bool:
    """Without methods but properties and private ones, and not of the vocabulary that every layer shares."""
    names = [
        name
        for name, member in vars(cls).items()
        if isfunction(member) and member.__qualname__.startswith(cls.__qualname__)
    ]
    behaviour = {name for name in names if not name.startswith("_")} | {"__call__", "__iter__"}.intersection(names)
    return not behaviour and name_of(cls).partition(".")[0] not in VOCABULARY


class Reads:
    """Counts how often one file is opened before the first step, and how far each reader got."""

    def __init__(self, path: Path, first_step: threading.Event) -> None:
        self.path, self.first_step = str(path.resolve()), first_step
        self.opened = 0
        self._duplicates: list[int] = []

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and not self.first_step.is_set() and self._is_watched(arguments[0]):
            self.opened += 1

    def wrap(self, original: Open) -> Open:
        """Duplicate the descriptor: both share one offset, so it tells how far was read after the file is closed."""

        def opened(file: Any, *arguments: Any, **options: Any) -> Any:
            stream = original(file, *arguments, **options)
            if not self.first_step.is_set() and self._is_watched(file):
                self._duplicates.append(os.dup(stream.fileno()))
            return stream

        return opened

    def counts(self) -> dict[str, int]:
        size = os.path.getsize(self.path)
        complete = sum(os.lseek(descriptor, 0, os.SEEK_CUR) >= size for descriptor in self._duplicates)
        return {"opened": self.opened, "complete": complete, "partial": self.opened - complete}

    def _is_watched(self, file: Any) -> bool:
        return isinstance(file, str | os.PathLike) and os.path.abspath(os.fspath(file)) == self.path


def main(package: Path, watched: Path, out: Path, words: list[str]) -> int:
    sys.path.insert(0, str(package.parent))
    import torch  # noqa: F401, loaded before the profiler starts, which makes imports slow

    from anyformer.cli.main import main as run  # of the checkout that is measured

    calls = Calls(package)
    reads = Reads(watched, calls.first_step)
    builtins.open = io.open = reads.wrap(io.open)  # type: ignore[assignment]
    sys.addaudithook(reads.audit)
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        code = run(words)
    finally:
        sys.setprofile(None)
    facts = {
        "files": calls.executed(),
        "values": calls.values(),
        "envelopes": calls.envelopes(),
        "reads": reads.counts(),
    }
    out.write_text(json.dumps(facts), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
