"""A study in one file, without weights: another machine adds the runs that are missing, and judges all of them.

The file is a .tar.gz of the study folder. It holds recipes, metrics, events and samples of all runs that have ended; a
run that is not finished needs its checkpoint, so it is left out and trained anew. What all runs share, like the
tokenizer, is stored once: its copies are hard links.
"""

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from anyformer.disk import CHECKPOINTS, RECIPE, is_run_of_study
from anyformer.errors import DataError, SpecError
from anyformer.study.study_folder import STUDY, standing
from anyformer.training.runs.run_folder import LOCK

SUFFIXES = (".tar.gz", ".tgz")
LEFT_OUT = (CHECKPOINTS, LOCK, "tensorboard", "LATEST")


def write_pack(folder: Path, file: Path) -> None:
    """Writes the study folder to a .tar.gz file, atomically."""
    refuse_other_place(file)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with tarfile.open(fresh, "w:gz") as archive:
            names: dict[bytes, str] = {}  # hash of the content -> the first file with it, in the archive
            for path in _files(folder):
                member = archive.gettarinfo(path, str(Path(folder.resolve().name) / path.relative_to(folder)))
                with path.open("rb") as content:
                    first = names.setdefault(hashlib.file_digest(content, "sha256").digest(), member.name)
                    content.seek(0)
                    if first != member.name:
                        member.type, member.linkname, member.size = tarfile.LNKTYPE, first, 0
                    archive.addfile(member, content)
        os.replace(fresh, file)
    finally:
        fresh.unlink(missing_ok=True)


def refuse_other_place(file: Path) -> None:
    """Raises SpecError unless a pack may have this name, and its folder exists."""
    if not file.name.endswith(SUFFIXES):
        raise SpecError(f"--pack {file}: the name of the file must end in {' or '.join(SUFFIXES)}.")
    if not file.parent.is_dir():
        advice = f"Make it first: mkdir -p {quote(str(file.parent))}"
        raise SpecError(f"--pack {file}: there is no folder {str(file.parent)!r}. {advice}")


def _files(folder: Path) -> Iterator[Path]:
    """All files of a folder but weights, unfinished runs and runs that the study has not trained."""
    if (folder / RECIPE).is_file() and (
        not is_run_of_study(folder) or standing(folder)[0] not in ("complete", "failed")
    ):
        return
    for path in sorted(folder.iterdir()):
        if path.name in LEFT_OUT or path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _files(path)
        else:
            yield path


def is_pack(path: Path) -> bool:
    """True if a file is a packed study."""
    if not path.is_file() or not path.name.endswith(SUFFIXES) or not tarfile.is_tarfile(path):
        return False
    with tarfile.open(path) as archive:
        return any(Path(name).name == STUDY and len(Path(name).parts) == 2 for name in archive.getnames())


def unpack(file: Path, out: Path | None, runs: Path) -> Path:
    """Unpacks a study into a folder (default: under `runs`, by its own name), and returns the folder. Runs and trials
    that are there already stay as they are."""
    try:
        content = gzip.decompress(file.read_bytes())  # hard links read back and forth, which is slow in compressed data
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            members = [member for member in archive.getmembers() if member.isfile() or member.islnk()]
            studies = [Path(member.name).parent for member in members if Path(member.name).name == STUDY]
            name = str(min(studies, key=lambda path: len(path.parts)))  # a study at several budgets has others inside
            if name in ("..", "/"):
                raise DataError(f"{file}: its paths lead outside of the folder. Pack it again: --pack FILE.")
            folder = out or runs / name
            if folder.exists() and any(folder.iterdir()) and not (folder / STUDY).is_file():
                raise SpecError(
                    f"{folder}: exists already and is not a study folder. Use another folder: out=NAME (--out NAME)."
                )
            present = {path.parent for path in folder.rglob(RECIPE)}
            for member in members:
                place = folder / Path(member.name).relative_to(name)
                if place.exists() or any(parent in present for parent in place.parents):
                    continue
                stored = archive.getmember(member.linkname) if member.islnk() else member
                file_of_study = stored.replace(name=str(Path(member.name).relative_to(name)))
                archive.extract(file_of_study, folder, filter="data")  # refuses paths that lead outside
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"{file}: cannot be read as a packed study ({error}). Pack it again: --pack FILE.") from None
    return folder
