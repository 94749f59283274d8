"""A folder that appears whole or not at all: written beside its place under a hidden name, then renamed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anyformer.data.preparation.shards import in_place_of
from anyformer.disk import sync
from anyformer.errors import SpecError

CARD = "README.md"
MARK = "library_name: "
"""Text in the model card of an export, so that `--force` replaces nothing else."""


@contextmanager
def new_folder(path: Path, force: bool) -> Iterator[Path]:
    """An empty folder to write into, which takes the place of `path` at the end; it is removed after any exception.
    With `force` an earlier export is replaced."""
    refuse_occupied(path, force)
    with in_place_of(path) as fresh:
        yield fresh
        for file in sorted(fresh.rglob("*")):
            sync(file)
        refuse_occupied(path, force)  # another process may have been faster


def refuse_occupied(path: Path, force: bool) -> None:
    """Raises SpecError if a path is in use: by anything without `force`, by anything but an export with it."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not force:
        advice = "Replace it with force=True (--force), or name another folder: out=FOLDER (--out FOLDER)"
        raise SpecError(f"{path}: exists already. {advice}.")
    if not _is_export(path):
        advice = "Name another folder: out=FOLDER (--out FOLDER)"
        raise SpecError(f"{path}: is not an export, so it is not replaced. {advice}.")


def _is_export(path: Path) -> bool:
    try:
        return MARK in (path / CARD).read_text(encoding="utf-8", errors="replace")[:1000]
    except OSError:
        return False
