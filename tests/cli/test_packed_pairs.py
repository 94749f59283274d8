"""A run on packed pairs, as a user meets it: trained, asked and measured as one whose pairs had a row each."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.evaluation.runs import SENTENCES, TWO, file, rows

from anyformer.cli.main import main
from anyformer.data.batching.packings.bucket import Bucket
from anyformer.data.batching.packings.pack import Pack
from anyformer.data.record import Record
from anyformer.evaluation.evaluating import evaluate
from anyformer.evaluation.metrics.metric import Job
from anyformer.inference.embedding import embed
from anyformer.inference.record_batches import record_batches
from anyformer.run import Run

PACKED = (*TWO, "data.packing=pack", "data.context=12")


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with a cache of its own."""
    folder = tmp_path_factory.mktemp("packed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def run(home: Path) -> Run:
    settings = ("train.steps=6", "train.batch_tokens=240", "evaluate.every=3", "evaluate.batches=2")
    assert main(["train", file("pairs"), *PACKED, *settings, "--out", str(home / "run"), "-q"]) == 0
    return Run.open(home / "run")


def records(longer: int = 1) -> list[Record]:
    """Some of them longer than the context."""
    made = [Record(str(row["text"]), target=str(row["target"])) for row in rows("pairs")[:12]]
    return [replace(each, text=" ".join([each.text] * longer)) for each in made] + made


def test_it_learns_and_validates(run: Run) -> None:
    metrics = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert run.complete and any("valid" in str(line) for line in metrics)
    assert run.trained().packing == Pack()
    said = [file.read_text() for file in run.folder.glob("samples/*.jsonl")]
    samples = [json.loads(line) for text in said for line in text.splitlines()]
    assert samples and {sample["prompt"] for sample in samples} <= set(SENTENCES)


def test_a_pair_is_read_as_by_a_run_with_a_row_for_each(run: Run) -> None:
    packed = run.trained("cpu")
    alone = replace(packed, packing=Bucket())
    for ours, theirs in zip(record_batches(packed, records(3)), record_batches(alone, records(3)), strict=True):
        assert ours.rows == theirs.rows
        for mine, other in ((ours.batch, theirs.batch), (ours.batch.source, theirs.batch.source)):
            assert torch.equal(mine.tokens, other.tokens) and mine.frame.segments is None
            assert torch.equal(mine.truncated, other.truncated)
    ours, theirs = (evaluate(Job(predictor=each, records=records()), ["loss"]).scores for each in (packed, alone))
    assert ours == theirs
    assert (embed(packed, SENTENCES[:3])[0] == embed(alone, SENTENCES[:3])[0]).all()


def test_it_is_evaluated_and_writes(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(run.folder)
    capsys.readouterr()
    assert main(["evaluate", folder, "--json", "--limit", "5"]) == 0
    assert "loss" in json.loads(capsys.readouterr().out)
    assert main(["generate", folder, SENTENCES[0], "--max-new", "4"]) == 0


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("model.preset=small",), "a decoder reads a pair in one row"),
        (("model.preset=rnn-seq2seq",), "init_from_encoder: a row has one source"),
        (("model.preset=bytenet",), "unfold: only a row that is one document"),
        (("model.preset=gnmt",), "attention_fed: it attends to one source per row"),
        (("data.packing=rows",), "rows is for plain documents, but these have pairs. Use bucket, pack or auto"),
    ],
)
def test_what_cannot_read_them_is_refused_with_a_way_out(
    overrides: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("data.packing=pack", "data.context=12", "data.tokenizer.kind=word", "train.steps=1")
    assert main(["train", file("pairs"), *small, *overrides, "--out", str(tmp_path / "run")]) > 0
    said = capsys.readouterr().err
    assert words in " ".join(said.split()) and "bucket" in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()
