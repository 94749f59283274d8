"""A packing from outside the package, in one file: each text alone in a row of `context` tokens."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.training.small import TINY, text

from anyformer.cli.main import main
from anyformer.core import decode
from anyformer.data.batching.packings.packing import PackingSpec
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.inference.text_generator import GenerationConfig
from anyformer.run import Run, train

CODE = '''
"""One text a row, all rows as long as the context: batches of one shape, without any planning."""

from dataclasses import dataclass

import numpy as np

from anyformer.data.batching.packings.packing import Collator
from anyformer.data.batching.row_plan import LoaderPosition, Order
from anyformer.data.batching.packings.packing import PackingSpec
from anyformer.data.batching.row_plan import RowPlan


@dataclass(frozen=True, kw_only=True)
class OneEach(PackingSpec, kind="one_each"):
    """One text a row, all rows as long as the context."""

    alone = True

    def batches(self, task, start):
        order = Order(len(task.samples), task.seed, len(task.samples), task.shuffle).samples_of(start.epoch, 0)
        for first in range(start.unit, len(order), task.rows):
            end = first + task.rows
            after = LoaderPosition(start.epoch, 0, end) if end < len(order) else LoaderPosition(start.epoch + 1)
            yield RowPlan.one_each(order[first:end]), after

    def collate(self, task, plan):
        arrays = Collator(task.samples, task.words.pad, None, task.word_starts).arrays(plan)
        missing = task.context - arrays["tokens"].shape[1]
        for name, array in arrays.items():
            if array.ndim == 2:
                rest = task.words.pad if name == "tokens" else 0
                arrays[name] = np.pad(array, ((0, 0), (0, missing)), constant_values=rest)
        return arrays
'''


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a text and, imported, a file that defines the packing; the kind is forgotten afterwards."""
    (tmp_path / "outside_packing.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    importlib.import_module("outside_packing")
    yield tmp_path
    PackingSpec.kinds.pop("one_each", None)
    sys.modules.pop("outside_packing", None)


def test_the_command_trains_evaluates_and_generates_with_it(outside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = outside / "run"
    assert main(["train", text(outside), *TINY, "train.steps=2", "data.packing.kind=one_each", "--out", str(out)]) == 0
    run = Run.open(out)
    assert run.complete and run.recipe.data is not None and run.recipe.data.packing.kind == "one_each"
    assert any("valid_loss" in line for line in run.metrics())
    assert run.trained("cpu").alone and run.evaluate(limit=8)["loss"].value > 0
    assert len(run.generate(["the cat"], GenerationConfig(max_new=2))) == 1
    capsys.readouterr()
    assert main(["data", text(outside), "packing=one_each", "tokenizer.kind=byte", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_worker_process_changes_nothing(outside: Path) -> None:
    options = {"cache": outside / "cache"}
    plain, helped = (
        train(text(outside), *TINY, "data.packing=one_each", "train.steps=2", *more, out=outside / name, **options)
        for name, more in (("plain", ()), ("helped", ("train.workers=1",)))
    )
    losses = [[line["loss"] for line in run.metrics() if "loss" in line] for run in (plain, helped)]
    assert losses[0] == losses[1] and len(losses[0]) == 2


def test_python_takes_the_spec_its_kind_and_a_table(outside: Path) -> None:
    plain = {"source": {"kind": "number_words"}, "tokenizer": {"kind": "byte"}}
    spec = decode(PackingSpec, "one_each")
    for packing in (spec, "one_each", {"kind": "one_each"}):
        data = decode(DataSpec, {**plain, "packing": packing})
        assert data.packing == spec and data.to_dict()["packing"] == {"kind": "one_each"}
        assert DataSpec(source=data.source, tokenizer=data.tokenizer, packing=packing) == data  # type: ignore[arg-type]
