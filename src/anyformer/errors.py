"""Errors with exit codes. Imports nothing heavy, so that a usage error is shown at once."""

import errno
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class AnyformerError(Exception):
    """An error that a user can fix; shown without a traceback."""

    exit_code = 1


@dataclass(frozen=True)
class Problem:
    """One mistake and its dotted key."""

    path: str
    text: str

    def under(self, prefix: str) -> "Problem":
        return Problem(join_path(prefix, self.path), self.text)

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


class SpecError(AnyformerError):
    """An invalid choice, with every problem, not only the first."""

    exit_code = 2

    def __init__(self, text: str = "", problems: Iterable[Problem] = ()):
        self.problems = tuple(problems) or (Problem("", text),)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def under(self, prefix: str) -> "SpecError":
        return SpecError(problems=[problem.under(prefix) for problem in self.problems])


class DataError(AnyformerError):
    """Input data that cannot be used."""

    exit_code = 3


class WorkerError(AnyformerError):
    """A worker process died; the data are not the cause."""


class CheckpointError(AnyformerError):
    """A stored model or run that cannot be loaded."""

    exit_code = 2


class ResourceError(AnyformerError):
    """Not enough memory or disk."""

    exit_code = 4


class TrainingError(AnyformerError):
    """A run that cannot continue."""


INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT."""
OUT_OF_TIME = 75
"""Exit code if the time of `--minutes` is up: EX_TEMPFAIL, "try again later"."""


class Interrupted(AnyformerError):
    """A run was stopped by a signal or at the end of its time, after it was saved."""

    def __init__(self, text: str, exit_code: int):
        super().__init__(text)
        self.exit_code = exit_code


_OUT_OF_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MACHINE = (*_OUT_OF_ROOM, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_PATH = (
    errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG,
    errno.ELOOP, errno.EINVAL, errno.ENODEV, errno.ENXIO, errno.ENOTEMPTY, errno.EXDEV,
)  # fmt: skip


def of_os_error(error: OSError) -> AnyformerError | None:
    """A file system error as one that names the path and has an exit code; None for an unknown kind."""
    place = error.filename or error.filename2 or "a file or the standard output"
    if error.errno in _OUT_OF_ROOM:
        return ResourceError(f"{place}: the disk is full ({error.strerror}). Free some space and try again.")
    if error.errno in _MACHINE:
        return ResourceError(f"{place}: {error.strerror}. Use another place, or repair this one.")
    if error.errno in _PATH:
        return SpecError(f"{place}: {error.strerror}. Name another path.")
    return None


_MEMORY_WORDS = ("out of memory", "not enough memory", "can't allocate memory", "can't start new thread")


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turns failed allocations of Python or torch into a ResourceError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(word in str(error).lower() for word in _MEMORY_WORDS):
            raise
        raise ResourceError(
            "out of memory. Close other programs, or make less at once: a smaller model, batch or file."
        ) from None


def join_path(prefix: str, path: str) -> str:
    """`a` + `b` -> `a.b`; `a` + `[0].b` -> `a[0].b`."""
    if not prefix or not path or path.startswith("["):
        return prefix + path
    return f"{prefix}.{path}"


@contextmanager
def at(path: str) -> Iterator[None]:
    """Prefixes the path of errors raised inside."""
    try:
        yield
    except SpecError as error:
        raise error.under(path) from None


def check_strings(name: str, values: object) -> None:
    """Raises SpecError unless the values are several strings; Python would read one string as its characters."""
    if isinstance(values, str):
        text = values if len(values) <= 40 else f"{values[:40]}..."
        raise SpecError(problems=[Problem(name, f"expected several, got one string. Write [{text!r}].")])
    if not isinstance(values, Collection):
        raise SpecError(problems=[Problem(name, f"expected a list of strings, got {values!r}.")])
    for place, value in enumerate(values):
        if not isinstance(value, str):
            raise SpecError(problems=[Problem(f"{name}[{place}]", f"expected a string, got {value!r}.")])
