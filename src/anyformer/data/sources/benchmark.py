"""A downstream suite as text to text: SuperGLUE, XSum, WebQuestions and WMT En-De, from local files or generated.

data.source = { kind = "benchmark", task = "rte", path = "RTE/" }      train.jsonl and val.jsonl as published
data.source = { kind = "benchmark", task = "rte" }                     no file: a small world with the same questions
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Literal

from anyformer.core import Count
from anyformer.data.record import Record
from anyformer.data.sources.benchmark_formats import FORMATS
from anyformer.data.sources.benchmark_stand_ins import STAND_INS
from anyformer.data.sources.columns import splits_by_name
from anyformer.data.sources.files import FileSource, existing, files_in, kept, lines
from anyformer.data.sources.jsonl import objects
from anyformer.errors import DataError

Item = tuple[str, str | None, Any]
"""Place, split and row."""


@dataclass(frozen=True, kw_only=True)
class Benchmark(FileSource, kind="benchmark"):
    """A task of a downstream suite as text to text: from its published files, or generated in the same form."""

    task: Literal[
        "boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc", "xsum", "webquestions", "wmt_en_de"
    ] = "rte"
    """The first eight are SuperGLUE. The text begins with the name of the task or with what is to be done."""
    path: str | None = None
    """The file, or the folder of train, val and test files: JSON lines, or a JSON list; of wmt_en_de the English file,
    whose other half ends in .de, or JSON lines. Rows without an answer are left out. Default: generated rows."""
    count: Count = 1_000
    """Number of generated rows at most, if there is no file; a small world may have fewer."""
    seed: int = 0
    """Seed of generated rows."""

    @classmethod
    def examples(cls) -> "tuple[Benchmark, ...]":
        return (cls(count=20), cls(task="xsum", path="xsum.jsonl"))

    def records(self) -> Iterator[Record]:
        return kept(self._pairs(), lambda record: record, self, self.on_error)

    def _pairs(self) -> Iterator[Record | DataError]:
        for where, split, row in self._generated() if self.path is None else self._rows():
            try:
                for text, target in FORMATS[self.task](row):
                    yield Record(text, target=target, split=split, where=where)
            except (KeyError, IndexError, TypeError, AttributeError) as error:
                answer = _ANSWERS.get(self.task)
                if answer is None or answer in row:  # otherwise a row of a test set
                    yield DataError(f"{where}: is not a row of {self.task}: {type(error).__name__} {error}.")

    def _rows(self) -> Iterator[Item]:
        files = self.files()
        if self.task == "wmt_en_de" and any(name.endswith((".en", ".de")) for name in files):
            yield from self._halves(files)
            return
        splits = splits_by_name(files)
        for name, file in files.items():
            for where, parse in objects(file, "utf-8", self.on_error):
                yield where, splits.get(name), _row(parse())

    def _halves(self, files: dict[str, Path]) -> Iterator[Item]:
        splits = splits_by_name(files)
        for name, file in files.items():
            if name.endswith(".en"):
                pairs = zip(lines(file, "utf-8", "stop"), lines(file.with_suffix(".de"), "utf-8", "stop"), strict=True)
                for (number, english), (_, german) in pairs:
                    yield f"{file}:{number}", splits.get(name), {"en": english, "de": german}

    def _generated(self) -> Iterator[Item]:
        seen = dict[str, Any]()
        for index in range(20 * self.count):
            row = STAND_INS[self.task](Random(f"{self.task} {self.seed} {index}"))
            seen.setdefault(json.dumps(row), row)
            if len(seen) == self.count:
                break
        for number, row in enumerate(seen.values(), 1):
            yield f"generated row {number} of {self.task}", None, row

    def files(self) -> dict[str, Path]:
        if self.path is None:
            return {}
        path = existing(self.path)
        files = files_in(path, "*.jsonl", "*.json", "*.en", "*.de")
        if self.task == "wmt_en_de" and path.suffix == ".en":
            files[path.with_suffix(".de").name] = existing(str(path.with_suffix(".de")))
        return files

    def fingerprint(self) -> str:
        if self.path is not None:
            return super().fingerprint()
        return self.hash_with([row for _, _, row in islice(self._generated(), 8)])

    def warnings(self) -> list[str]:
        if self.path is not None:
            return []
        return [
            f"data.source.path is not set: these are generated rows in the form of {self.task}, not the task itself."
        ]


_ANSWERS = {
    **dict.fromkeys(("boolq", "cb", "copa", "rte", "wic", "wsc"), "label"),
    "xsum": "summary",
}
"""Task -> the field that rows of a test set may lack."""


def _row(row: Any) -> Any:
    nested = row.get("translation") if isinstance(row, dict) else None
    return nested if isinstance(nested, dict) else row
