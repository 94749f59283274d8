"""A source from outside the package, in one file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.extension.outside import installed, run

CODE = '''
"""Sums in words: records that need no file."""

from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.core import Count
from anyformer.data.record import Record, SourceSpec


@dataclass(frozen=True, kw_only=True)
class Sums(SourceSpec, kind="sums"):
    """Sums of two numbers."""

    usual_tokenizer = {"kind": "word"}

    largest: Count = 12
    """The largest number that is added."""

    def records(self) -> Iterator[Record]:
        numbers = range(self.largest + 1)
        return (Record(text=f"{a} plus {b} is {a + b}", where=f"{a}+{b}") for a in numbers for b in numbers)

    def fingerprint(self) -> str:
        return self.digest()
'''
PLAIN = ("data.context=32", "data.valid=0.25", "train.batch_tokens=128", "train.steps=3", "sample.tokens=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with installed(tmp_path_factory.mktemp("source"), "outside_source", CODE) as folder:
        sizes = ("model.dim=16", "model.stack.depth=1", "data.source.largest=9", "train.device=cpu")
        run("train", "sums", *PLAIN, *sizes, "--out", "run", "--quiet")
        yield folder


def test_a_source_is_shown(folder: Path) -> None:
    assert "largest" in run("parts", "sums")
    assert "plus" in run("data", "sums")


def test_a_run_of_a_source_evaluates_and_answers(folder: Path) -> None:
    assert "loss" in run("evaluate", "run", "--json")
    assert "loss" in run("evaluate", "run", "sums", "source.largest=3", "--json")
    assert "finish" in run("generate", "run", "1 plus 2", "--max-new", "3", "--json")
