"""Texts to measure with: the files of a folder where one is given, else what comes with Python."""

import json
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

from benchmarks.harness import Bench

STAND_IN_MEGABYTES = {"gpu": 8.0, "cpu": 2.0, "tiny": 0.05}


def texts_of_this_machine(megabytes: float) -> list[str]:
    """Python's documentation topics first, then the sources of its standard library by name, until it is enough."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts, left = [], megabytes * 1e6
    for text in (*topics.values(), *(file.read_text(encoding="utf-8", errors="ignore") for file in sources)):
        left -= len(text.encode())
        if left < 0:
            break
        texts.append(text)
    return texts


def long_texts(bench: Bench, folder: Path) -> tuple[str, list[str]]:
    """A file of documents that fill their rows, and the overrides that say how to read it."""
    return _file(bench, folder, "speeches.jsonl.gz", "text")


def real_texts(bench: Bench, folder: Path) -> tuple[str, list[str]]:
    """Documents of all lengths, as people write them."""
    return _file(bench, folder, "descriptions.jsonl.gz", "description")


def pairs(bench: Bench) -> tuple[str, list[str]]:
    """Sentences and their translations; numbers in digits and words where there are none."""
    if bench.data is None:
        return "transformer-base", ["data.source.kind=number_words"]
    return str(bench.data / "en-de.tsv.gz"), ["model.preset=transformer-base"]


def prepared_in(bench: Bench, folder: Path) -> Path:
    """Where texts lie as tokens: what is kept, or a part of a folder that is not."""
    return bench.cache or folder / "cache"


def _file(bench: Bench, folder: Path, name: str, field: str) -> tuple[str, list[str]]:
    if bench.data is not None:
        return str(bench.data / name), ["data.source.kind=jsonl", f"data.source.text={field}"]
    file = folder / "texts.jsonl"
    texts = texts_of_this_machine(STAND_IN_MEGABYTES[bench.size])
    file.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    return str(file), ["data.source.kind=jsonl"]
