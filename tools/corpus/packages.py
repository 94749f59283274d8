"""The Debian packages of the corpus: their table, their download by apt, and what their files say about them.

apt downloads without root; nothing is installed.
"""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("packages.toml")
BATCH = 40
"""Packages per call of apt, which takes seconds to start; an interrupted build repeats at most one batch."""


class CorpusError(Exception):
    """A mistake or a missing file, in one sentence for the user."""


@dataclass(frozen=True)
class Package:
    """One row of the table."""

    name: str
    corpus: str
    """'prose' or 'code'."""
    about: str
    licence: str
    """Used where the package's copyright file cannot be read by a program."""


@dataclass(frozen=True)
class Table:
    """The packages in their order, and the groups that are held out or left out by name."""

    packages: tuple[Package, ...]
    held_out: dict[str, str]
    """Group -> 'valid' or 'test'."""
    left_out: frozenset[str] = frozenset()
    """Groups that are not used."""


def read_table(path: Path = TABLE) -> Table:
    """Reads packages.toml: a section per corpus, name = [about, licence], and the lists of held-out groups."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    packages = [
        Package(name, corpus, about, licence)
        for corpus in ("prose", "code")
        for name, (about, licence) in content.get(corpus, {}).items()
    ]
    held_out = {group: split for split, groups in content.get("held_out", {}).items() for group in groups}
    return Table(tuple(packages), held_out, frozenset(content.get("left_out", [])))


def downloaded(folder: Path, name: str) -> Path | None:
    """The file of a package in a folder; the last by name if there are several versions."""
    return max(folder.glob(f"{name}_*.deb"), default=None)


def available(names: Iterable[str]) -> set[str]:
    """The packages that apt can download on this system."""
    # `apt-cache show` fails if one name is unknown, and prints the others all the same.
    command = ["apt-cache", "show", "--no-all-versions", *names]
    result = subprocess.run(command, capture_output=True, text=True)
    return set(re.findall(r"^Package: (\S+)", result.stdout, re.MULTILINE))


def download(names: Sequence[str], folder: Path, skip_missing: bool = False) -> None:
    """Downloads the packages that are not in the folder yet."""
    for program in ("apt-cache", "apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise CorpusError(f"{program} is not installed; the corpus is built on Debian or Ubuntu.")
    wanted = [name for name in names if downloaded(folder, name) is None]
    missing = sorted(set(wanted) - available(wanted)) if wanted else []
    if missing and not skip_missing:
        raise CorpusError(
            f"apt does not have {', '.join(missing)}. Run `apt-get update`, or leave them out with --skip-missing."
        )
    wanted = [name for name in wanted if name not in missing]
    for start in range(0, len(wanted), BATCH):
        print(f"Downloading packages {start + 1} to {min(start + BATCH, len(wanted))} of {len(wanted)} ...", flush=True)
        download_batch(wanted[start : start + BATCH], folder)


def download_batch(names: Sequence[str], folder: Path) -> None:
    """Downloads packages into a folder beside the complete files, and moves them when all are there."""
    partial = folder / "partial"
    partial.mkdir(parents=True, exist_ok=True)
    result = subprocess.run(["apt-get", "download", "-q", *names], cwd=partial, capture_output=True, text=True)
    if result.returncode:
        reason = result.stderr.strip().splitlines() or ["no reason given"]
        raise CorpusError(f"apt-get download failed: {reason[-1]}")
    for file in sorted(partial.glob("*.deb")):
        file.rename(folder / file.name)


def version_of(file: Path) -> str:
    """The version in the name of a package's file, in which apt writes a colon as %3a."""
    return file.name.split("_")[1].replace("%3a", ":")


def licence_of(tree: Path, name: str) -> str:
    """The licences in the copyright file of an unpacked package, those of all files first; empty if the file is not
    machine-readable."""
    file = tree / "usr/share/doc" / name / "copyright"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    if not re.match(r"\s*Format(-Specification)?:.*(copyright-format|dep5|DEP-?5)", text, re.IGNORECASE):
        return ""
    # Names stand in paragraphs about files; paragraphs with the text of a licence have no `Files:`.
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if re.search(r"^Files:", part, re.MULTILINE)]
    licences = [match[1].strip() for part in paragraphs if (match := re.search(r"^License:(.*)$", part, re.MULTILINE))]
    names = list(dict.fromkeys(licence for licence in licences if licence))
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
