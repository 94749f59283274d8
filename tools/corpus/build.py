"""The build: packages -> texts, one file per package -> two corpora without duplicates, and CORPUS.md.

FOLDER/packages holds the downloads and FOLDER/texts the extracted texts; both are kept, so that a build which was
interrupted continues. The name of a texts file has a hash of the code that wrote it: changed code extracts again.
"""

import hashlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tools.corpus import documents, extract, markup, roff
from tools.corpus.near_duplicates import DuplicateFilter
from tools.corpus.packages import CorpusError, Package, Table, download, downloaded, licence_of, version_of
from tools.corpus.report import Count, Row, report
from tools.corpus.splits import Splits
from tools.corpus.writing import atomic, compressed, line, records

CORPORA = ("prose", "code")


@dataclass
class Source:
    """A package with its extracted texts."""

    package: Package
    version: str
    licence: str
    texts: Path
    counts: dict[str, Count] = field(default_factory=dict)
    """Documents and characters by split."""


def extraction() -> str:
    """A short hash of the code that turns files into texts."""
    modules = (documents, extract, markup, roff)
    return hashlib.sha256(b"".join(Path(str(module.__file__)).read_bytes() for module in modules)).hexdigest()[:8]


def tree_records(tree: Path, package: Package) -> Iterator[dict[str, str]]:
    """Group and text of every document in an unpacked package."""
    if package.corpus == "code":
        for folder, text in documents.code_documents(extract.sources_of(tree)):
            yield {"group": f"{package.name}/{folder}", "text": text}
    else:
        for text in documents.prose_documents(extract.texts_of(tree)):
            yield {"group": package.name, "text": text}


def prepare(package: Package, folder: Path) -> Source | None:
    """Extracts the texts of a downloaded package, unless an earlier build did; None if it was not downloaded."""
    file = downloaded(folder / "packages", package.name)
    if file is None:
        return None
    texts = folder / "texts" / f"{file.stem}.{extraction()}.jsonl.gz"
    licence = texts.with_suffix("").with_suffix(".licence")
    if not texts.exists():
        print(f"Reading {file.name} ...", flush=True)
        with tempfile.TemporaryDirectory(dir=folder) as name:
            if subprocess.run(["dpkg-deb", "-x", file, name]).returncode:
                raise CorpusError(f"{file} is damaged; delete it and run the command again.")
            with atomic(licence) as licence_file:
                licence_file.write(licence_of(Path(name), package.name).encode())
            with compressed(texts) as out:
                out.writelines(map(line, tree_records(Path(name), package)))
    return Source(package, version_of(file), licence.read_text(encoding="utf-8") or package.licence, texts)


def select(sources: Sequence[Source], table: Table) -> Iterator[tuple[str, dict[str, str]]]:
    """Corpus and record of every document that is kept. Held-out documents come first: of two copies the first is kept.
    Counts are added to the sources."""
    duplicates = DuplicateFilter()
    splits = Splits(table.held_out, table.left_out)
    for held_out in (True, False):
        for source in sources:
            # all documents of a package of prose are in one split: do not read it twice
            if source.package.corpus == "prose" and not splits.wanted(source.package.name, held_out):
                continue
            for record in records(source.texts, partial(splits.wanted, held_out=held_out)):
                split = splits.of(record["group"])
                kept = duplicates.keep(record["text"], split)
                source.counts.setdefault(split, Count()).add(len(record["text"]), kept)
                if kept:
                    yield source.package.corpus, {"split": split, **record}


def write_corpora(sources: Sequence[Source], table: Table, folder: Path) -> None:
    """Writes FOLDER/prose.jsonl.gz and FOLDER/code.jsonl.gz."""
    with ExitStack() as stack:
        files = {name: stack.enter_context(compressed(folder / f"{name}.jsonl.gz")) for name in CORPORA}
        for corpus, record in select(sources, table):
            files[corpus].write(line(record))


def build(table: Table, folder: Path, command: str, skip_missing: bool = False) -> str:
    """Builds both corpora and CORPUS.md in a folder; returns the page."""
    download([package.name for package in table.packages], folder / "packages", skip_missing)
    sources = [source for package in table.packages if (source := prepare(package, folder)) is not None]
    print("Removing duplicates ...", flush=True)
    write_corpora(sources, table, folder)
    rows = [
        Row(source.package.corpus, source.package.name, source.version, source.licence, split, count)
        for source in sources
        for split, count in source.counts.items()
    ]
    missing = [package.name for package in table.packages if downloaded(folder / "packages", package.name) is None]
    page = report(rows, missing, command)
    with atomic(folder / "CORPUS.md") as file:
        file.write(page.encode())
    return page
