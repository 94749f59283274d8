"""Rows: the text of a split, documents end to end, cut every so many tokens."""

import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.corpus import documents, ready
from tests.objectives.every import CASES, Case
from tests.training.small import LAYER, SENTENCES, TINY, facts, text, tiny
from tests.training.test_resume import Sender

from anyformer.cli.main import main
from anyformer.core import Frame, ModelSpec, decode
from anyformer.data.batching.batch import Batch, framed
from anyformer.data.batching.batch import documents as texts_of
from anyformer.data.batching.packings.rows import cut_rows
from anyformer.data.batching.row_plan import LoaderPosition, mix
from anyformer.data.preparation.shards import Prepared
from anyformer.data.record import Record
from anyformer.errors import DataError, Interrupted, SpecError
from anyformer.objectives.next_token import next_words
from anyformer.objectives.transformations import texts
from anyformer.objectives.words import PARTS
from anyformer.run import train
from anyformer.training.loop.feed import Loader

CONTEXT, BATCH = 16, 70


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    lengths = np.random.default_rng(0).integers(1, 90, 40)
    folder = tmp_path_factory.mktemp("rows")
    return ready(folder, documents(lengths), context=CONTEXT, packing="rows", valid=0.1, test=0.1)


def stream(prepared: Prepared, split: str = "train") -> list[int]:
    return prepared.split(split).sides["tokens"].tokens.array.tolist()


def epoch(prepared: Prepared, number: int = 0, **options: object) -> list[Batch]:
    loader = Loader(prepared=prepared, batch_tokens=BATCH, start=LoaderPosition(number), epochs=number + 1, **options)  # type: ignore[arg-type]
    return [batch for batch, _ in loader]


def rows_of(batches: list[Batch]) -> list[list[int]]:
    return [row[there].tolist() for batch in batches for row, there in zip(batch.tokens, batch.counted, strict=True)]


def pieces(tokens: list[int], size: int = CONTEXT) -> list[list[int]]:
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]


@settings(deadline=None, max_examples=60)
@given(
    tokens=st.integers(1, 300), rows=st.integers(1, 9), width=st.integers(1, 20), seed=st.integers(0, 2**32),
    number=st.integers(0, 3), even=st.booleans(), shuffle=st.booleans(),
)  # fmt: skip
def test_every_place_of_the_text_is_in_one_row_of_an_epoch(
    tokens: int, rows: int, width: int, seed: int, number: int, even: bool, shuffle: bool
) -> None:
    total, key = -(-tokens // width), mix(seed, number) if shuffle else None
    firsts = [(first, first + rows if even else min(first + rows, total)) for first in range(0, total, rows)]
    strips = [cut_rows(np.arange(first, last), tokens, width, key) for first, last in firsts]
    spans = [span for strip in strips for span in zip(strip.starts, strip.lengths, strict=True) if span[1]]
    places = [place % tokens for start, length in spans for place in range(start, start + length)]
    assert sorted(places) == list(range(tokens)) and all(length == width for _, length in spans[:-1])
    assert shuffle or places == list(range(tokens))
    assert not even or {len(strip.starts) for strip in strips} == {rows}


@pytest.mark.row("RNN-21", clause="a long sequence is cut into segments of at most T_max")
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_an_epoch_has_the_text_of_a_split_in_pieces(prepared: Prepared, split: str) -> None:
    text = stream(prepared, split)
    orders = [rows_of(epoch(prepared, number, split=split)) for number in (0, 1)]
    assert all(sorted(token for row in order for token in row) == sorted(text) for order in orders)
    assert split != "train" or sorted(orders[0]) != sorted(orders[1])  # cut at other places
    assert rows_of(epoch(prepared, split=split, shuffle=False)) == pieces(text)


def test_each_token_is_asked_of_the_one_before_it_and_documents_begin_with_their_own_word(prepared: Prepared) -> None:
    text, words = stream(prepared), prepared.words
    asked = [next_words(batch, words) for batch in epoch(prepared, shuffle=False)]
    said = [token for row in rows_of([replace(batch, tokens=batch.targets) for batch in asked]) for token in row]
    inputs = [token for row in rows_of(asked) for token in row]
    assert said == text and sum(batch.weight.sum() for batch in asked) == len(text)
    assert inputs == [words.bos if token == words.eos else token for token in [words.eos, *text[:-1]]]
    assert {batch.targets.shape[1] for batch in asked} == {CONTEXT}


@pytest.mark.parametrize("even", [False, True])
def test_all_batches_have_a_plain_frame_and_what_fills_the_last_up_does_not_count(
    prepared: Prepared, even: bool
) -> None:
    asked = [next_words(batch, prepared.words) for batch in epoch(prepared, even=even, shuffle=False)]
    text = stream(prepared)
    assert len(text) % CONTEXT and all(vars(batch.frame) == vars(Frame()) for batch in asked)
    assert all((batch.weight == 1).all() for batch in asked[:-1])
    there = asked[-1].counted
    assert not there.all() and torch.equal(asked[-1].weight, there.float())
    assert asked[-1].targets[~there].tolist() == (text + text)[len(text) :][: int((~there).sum())]
    assert len({batch.tokens.shape for batch in asked}) == (1 if even else 2)


@pytest.mark.parametrize("packing", ["rows", "pack"])
@pytest.mark.parametrize("part", ["attention", "min_gru"])
def test_documents_of_a_row_see_each_other_and_rows_do_not(tmp_path: Path, packing: str, part: str) -> None:
    layer = {"branches": [{"part": {"kind": part}}, {"part": {"kind": "mlp"}}]}
    records = documents([11] * 12)  # with its end, each is three quarters of a row
    prepared = ready(tmp_path, records, context=CONTEXT * 2, packing=packing, valid=0.0)
    shape = {"kind": "decoder", "vocab": prepared.words.size, "dim": 16, "stack": {"depth": 1, "blocks": {"a": layer}}}
    model = decode(ModelSpec, shape).build(seed=0)
    batch = next_words(next(iter(Loader(prepared=prepared, batch_tokens=200, shuffle=False)))[0], prepared.words)
    changed = batch.tokens.clone()
    changed[0, 3] += 1
    with torch.no_grad():
        apart = (model(batch.tokens, batch.frame).y - model(changed, batch.frame).y).abs().amax(-1) > 1e-7
    assert not apart[0, :3].any() and apart[0, 3] and not apart[1:].any()
    assert apart[0, 12:24].any() == (packing == "rows")


@pytest.mark.parametrize("case", [case for case in CASES if not case.pairs], ids=str)
def test_an_objective_reads_rows_or_says_what_it_needs(prepared: Prepared, case: Case) -> None:
    try:
        asked = case.objective.prepare(epoch(prepared)[0], prepared.words, torch.Generator().manual_seed(0))
    except DataError as refusal:
        assert "needs" in str(refusal), refusal
    else:
        assert all(count > 0 for name, count in case.objective.counts(asked).items() if name != PARTS)


def test_what_is_put_around_documents_finds_room_in_the_row(prepared: Prepared) -> None:
    batch, words = epoch(prepared)[0], prepared.words
    laid = framed(batch, words)
    assert laid.tokens.shape == batch.tokens.shape and (laid.tokens[:, 0] == words.cls).all()
    assert (laid.tokens == words.cls).sum() == batch.document_starts.sum() > len(batch.tokens)


def test_documents_are_found_again(prepared: Prepared) -> None:
    end, found = prepared.words.eos, []
    for row in pieces(stream(prepared)):
        ends = [place for place, token in enumerate(row) if token == end]
        edges = [0, *(place + 1 for place in ends), len(row)]
        found += [[it for it in row[a:b] if it != end] for a, b in pairwise(edges)]
    batches = epoch(prepared, shuffle=False)
    assert [text for batch in batches for text in texts_of(batch, prepared.words)] == [it for it in found if it]


def test_what_needs_a_text_of_its_own_says_so(prepared: Prepared, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'one text in each row.*data\.packing = "bucket"'):
        texts(epoch(prepared)[0], prepared.words, "classify")
    with pytest.raises(DataError, match="packing=rows is for plain documents, but these have pairs"):
        ready(tmp_path, [Record("a", target="b")], packing="rows", valid=0.0)
    with pytest.raises(SpecError, match=r'needs rows that continue in the next batch: data\.packing = "stream"'):
        tiny(tmp_path, "carried", "data.packing=rows", "train.segments=carry")


def test_a_text_shorter_than_a_row_is_one(tmp_path: Path) -> None:
    prepared = ready(tmp_path, [Record("abc")], context=CONTEXT, packing="rows", valid=0.0)
    (batch,) = epoch(prepared, even=True)
    assert batch.tokens.shape == (1, CONTEXT) and rows_of([batch]) == [stream(prepared)]
    assert len(prepared.split("train")) == 1 and prepared.longest == CONTEXT


def test_words_begin_where_documents_do(prepared: Prepared) -> None:
    for batch in epoch(prepared):
        starts, begins = batch.word_starts, batch.starts
        assert starts[begins].all() and not starts.all()
        assert (batch.continuation.before < 0).equal(begins[:, 0])


@pytest.mark.parametrize("part", ["min_gru", pytest.param("attention", marks=pytest.mark.slow)])
def test_the_command_trains_on_rows(tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    told = [it for it in TINY if part == "attention" or "heads" not in it]
    told += [
        "data.packing=rows",
        "train.steps=12",
        "evaluate.every=12",
        *([] if part == "attention" else [f"{LAYER}.0.part.kind={part}"]),
    ]
    assert main(["train", text(tmp_path), *told, "--out", str(tmp_path / "run")]) == 0
    lines = facts(tmp_path / "run")
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0] - 0.5 and any("valid_loss" in line for line in lines)


def test_a_run_on_rows_goes_on_where_it_stopped(tmp_path: Path) -> None:
    told = ("data.packing=rows", "train.steps=16", "evaluate.every=8", "checkpoint.every=8")  # more than an epoch
    (tmp_path / "few.txt").write_text("\n\n".join(SENTENCES[:64]))
    calm = tiny(tmp_path, "calm", *told, target=str(tmp_path / "few.txt"))
    with pytest.raises(Interrupted):
        options = {"out": tmp_path / "stopped", "cache": tmp_path / "cache"}
        train(tmp_path / "few.txt", *TINY, *told, **options, watcher=Sender(signal.SIGTERM, 6))
    assert facts(tiny(tmp_path, "stopped", resume=True)) == facts(calm)
    assert {line["epoch"] for line in facts(calm) if "epoch" in line} > {0}
