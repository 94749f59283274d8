"""The same batches in the same order, whoever builds them and wherever one starts."""

import os
import signal
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.corpus import documents, ready
from tests.data.processes import all_gone, children, forked

from anyformer.core import Frame, ModelSpec, decode
from anyformer.data.batching.batch import Batch
from anyformer.data.batching.packings.bucket import Bucket
from anyformer.data.batching.packings.pack import Pack
from anyformer.data.batching.packings.packing import Arrays, PackingSpec, PackingTask
from anyformer.data.batching.row_plan import LoaderPosition, RowPlan
from anyformer.data.preparation.shards import Prepared
from anyformer.data.record import Record
from anyformer.errors import DataError, SpecError, WorkerError
from anyformer.training.loop.feed import Loader

CONTEXT, BATCH = 24, 160
WHOLE = ["pack", "bucket", "pairs", "packed_pairs"]
"""Samples that a batch has whole."""
FORMS = [*WHOLE, "rows"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prepared]:
    folder = tmp_path_factory.mktemp("prepared")
    rng = np.random.default_rng(0)
    plain = documents(rng.integers(4, 60, 100))
    pairs = [Record(d.text, target=d.text[::-1][: rng.integers(1, 60)], label=str(len(d.text) % 3)) for d in plain]
    return {
        "pack": ready(folder / "pack", plain, context=CONTEXT, packing="pack"),
        "bucket": ready(folder / "bucket", plain, context=CONTEXT, packing="bucket"),
        "pairs": ready(folder / "pairs", pairs, context=CONTEXT),
        "packed_pairs": ready(
            folder / "packed_pairs", [replace(each, label=None) for each in pairs], context=CONTEXT, packing="pack"
        ),
        "rows": ready(folder / "rows", plain, context=CONTEXT, packing="rows"),
    }


@pytest.fixture(params=FORMS)
def prepared(request: pytest.FixtureRequest, data: dict[str, Prepared]) -> Prepared:
    return data[request.param]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer.data.batching.packings.pack.WINDOW", 40)
    monkeypatch.setattr("anyformer.data.batching.packings.bucket.WINDOW", 40)


def rows(batch: Batch) -> list[tuple[list[int], ...]]:
    """All that is known about each row, as plain values."""
    columns = []
    for side in (batch, batch.source):
        if side is not None:
            columns += [side.tokens, side.frame.valid, side.frame.segments, side.frame.positions, side.starts]
            columns += [side.word_starts, side.truncated, side.weight, *vars(side.labels).values()]
            columns += [] if side.continuation is None else vars(side.continuation).values()
    return list(zip(*(column.tolist() for column in columns if column is not None), strict=True))


def seen(loader: Loader, count: int = 40) -> list[tuple[LoaderPosition, list[tuple[list[int], ...]]]]:
    return [(position, rows(batch)) for batch, position in islice(loader, count)]


def texts(prepared: Prepared, batch: Batch) -> list[str]:
    """The samples of a batch, as text."""
    found = []
    segments = torch.where(batch.frame.valid, 0, -1) if batch.frame.segments is None else batch.frame.segments
    for row, marks in zip(batch.tokens, segments, strict=True):
        found += [
            prepared.tokenizer.decode(row[marks == mark].tolist(), "show") for mark in marks.unique() if mark >= 0
        ]
    return found


@pytest.mark.parametrize(
    ("form", "workers"),
    [
        *((form, 3) for form in FORMS),
        ("pack", 1),
        *(pytest.param(form, 1, marks=pytest.mark.slow) for form in FORMS[1:]),
    ],
)
def test_workers_change_nothing(data: dict[str, Prepared], form: str, workers: int) -> None:
    prepared = data[form]
    plain = seen(Loader(prepared=prepared, batch_tokens=BATCH))
    assert len({position.epoch for position, _ in plain}) > 1
    assert seen(Loader(prepared=prepared, batch_tokens=BATCH, workers=workers)) == plain


@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 2**32), skip=st.integers(0, 80), epochs=st.integers(1, 2))
def test_resuming_anywhere_goes_on_as_if_nothing_had_been(
    data: dict[str, Prepared], form: str, seed: int, skip: int, epochs: int
) -> None:
    options = {"prepared": data[form], "batch_tokens": BATCH, "seed": seed, "epochs": epochs}
    whole = seen(Loader(**options), 200)
    stop = min(skip, len(whole) - 1)
    assert seen(Loader(**options, start=whole[stop][0]), 200) == whole[stop + 1 :]


def test_resuming_at_the_border_of_epochs_starts_the_next(prepared: Prepared) -> None:
    last = seen(Loader(prepared=prepared, batch_tokens=BATCH, epochs=1), 1000)[-1]
    assert last[0] == LoaderPosition(1)
    assert seen(Loader(prepared=prepared, batch_tokens=BATCH, epochs=1, start=last[0])) == []


@pytest.mark.row("OPT-18", clause="batches are filled by token count, such as 65,536")
@pytest.mark.parametrize("form", ["pack", "rows", "packed_pairs"])
def test_batches_can_be_of_one_height_and_one_alone_has_no_empty_row(data: dict[str, Prepared], form: str) -> None:
    width = (2 if data[form].contents.pair else 1) * CONTEXT
    options = {"prepared": data[form], "epochs": 2, "batch_tokens": 7 * width}
    even, ragged = ([batch for batch, *_ in Loader(**options, even=even)] for even in (True, False))
    assert len(even) > 4 and {len(batch.tokens) for batch in even} == {7} and len(ragged[-1].tokens) < 7
    assert all(rows(full)[: len(some.tokens)] == rows(some) for full, some in zip(even, ragged, strict=True))
    assert not even[-1].counted[len(ragged[-1].tokens) :].any()
    alone = [batch for batch, *_ in Loader(**{**options, "batch_tokens": 10**6, "epochs": 1}, even=True)]
    assert len(alone) == 1 and alone[0].counted.any(1).all()


@pytest.mark.row("OPT-18", clause="batches are filled by token count, such as 65,536")
@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 2**32), form=st.sampled_from(WHOLE), batch=st.integers(2 * CONTEXT, 500))
def test_an_epoch_has_every_sample_once_within_the_budget(
    data: dict[str, Prepared], seed: int, form: str, batch: int
) -> None:
    prepared, found = data[form], []
    for rows_, _ in Loader(prepared=prepared, batch_tokens=batch, seed=seed, epochs=1):
        source = rows_.source
        assert rows_.tokens.numel() + (0 if source is None else source.tokens.numel()) <= batch
        found += texts(prepared, rows_)
    side = prepared.split("train").sides["tokens"]
    expected = [prepared.tokenizer.decode(side[n].tolist(), "show") for n in range(len(side))]
    if form == "pack":  # long documents are in pieces
        assert len(found) > len(expected) and sorted("".join(found)) == sorted("".join(expected))
    else:
        assert sorted(found) == sorted(expected)


@settings(deadline=None, max_examples=10)
@given(size=st.integers(1, 12), form=st.sampled_from(FORMS))
def test_rows_can_be_taken_a_few_at_a_time(data: dict[str, Prepared], size: int, form: str) -> None:
    for batch, _ in islice(Loader(prepared=data[form], batch_tokens=400), 5):
        some = [batch.take(places) for places in torch.arange(len(batch.tokens)).split(size)]
        assert [row for part in some for row in rows(part)] == rows(batch)


def test_epochs_and_seeds_differ(data: dict[str, Prepared]) -> None:
    batches = seen(Loader(prepared=data["pack"], batch_tokens=10_000), 2) + seen(
        Loader(prepared=data["pack"], batch_tokens=10_000, seed=1), 1
    )
    assert len({str(rows) for _, rows in batches}) == 3


@pytest.mark.row("OPT-18")
def test_packed_documents_start_at_zero_in_a_segment_of_their_own(data: dict[str, Prepared]) -> None:
    frame = next(iter(Loader(prepared=data["pack"], batch_tokens=10_000)))[0].frame
    for segments, positions, valid in zip(frame.segments, frame.positions, frame.valid, strict=True):
        counts = torch.bincount(segments[valid])
        assert positions[valid].tolist() == [place for count in counts for place in range(count)]
        assert segments[valid].diff().min() >= 0 and (segments[~valid] == -1).all()


@pytest.mark.row(
    "OPT-18",
    clause=(
        "several examples share a row; sequence ids mask attention between them",
        "no gradient crosses from one example to another",
    ),
)
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_no_gradient_crosses_from_one_packed_document_to_another(data: dict[str, Prepared], kind: str) -> None:
    layer = {"branches": [{"part": {"kind": "attention", "heads": 2}}, {"part": {"kind": "mlp"}}]}
    shape = {"kind": kind, "vocab": data["pack"].words.size, "dim": 16, "stack": {"depth": 2, "blocks": {"a": layer}}}
    model = decode(ModelSpec, shape).build(seed=0)
    vectors: list[torch.Tensor] = []
    model.get_submodule("embedding").register_forward_hook(lambda _module, _inputs, x: vectors.append(x) or x)
    batch = next(iter(Loader(prepared=data["pack"], batch_tokens=10_000)))[0]
    h = model(batch.tokens, batch.frame, logits=False).y
    second = (batch.frame.segments == 1) & batch.frame.valid
    (gradient,) = torch.autograd.grad(h[second].square().sum(), vectors[0])
    felt = gradient.abs().sum(-1) > 0
    assert second.any() and (felt == second).all()


@pytest.mark.row("OPT-18", clause="several examples share a row; sequence ids mask attention between them")
def test_packed_documents_are_read_as_if_each_stood_alone(data: dict[str, Prepared]) -> None:
    layer = {"branches": [{"part": {"kind": "attention", "heads": 2}}, {"part": {"kind": "mlp"}}]}
    shape = {"kind": "decoder", "vocab": data["pack"].words.size, "dim": 16, "position": {"kind": "learned"}}
    model = decode(ModelSpec, {**shape, "stack": {"depth": 2, "blocks": {"a": layer}}}).build(seed=0)
    batch = next(iter(Loader(prepared=data["pack"], batch_tokens=10_000)))[0]
    packed = model(batch.tokens, batch.frame).y
    for row, segments in list(enumerate(batch.frame.segments))[:5]:
        for segment in segments.unique():
            here = segments == segment
            alone = model(batch.tokens[row, here][None], Frame()).y[0]
            assert segment < 0 or torch.allclose(packed[row, here], alone, atol=1e-5)


def test_labels_stay_with_their_texts(data: dict[str, Prepared]) -> None:
    prepared = data["pairs"]
    classes = prepared.contents.classes
    for batch, _ in Loader(prepared=prepared, batch_tokens=BATCH, epochs=1):
        source, label = batch.source, batch.labels.label
        lengths = source.frame.valid.sum(1)
        short = ~source.truncated  # what was cut has forgotten its length
        assert [int(classes[index]) for index in label[short]] == (lengths[short] % 3).tolist()


def test_no_random_number_of_others_is_used(data: dict[str, Prepared]) -> None:
    state = torch.get_rng_state()
    next(iter(Loader(prepared=data["pack"], batch_tokens=BATCH, workers=1)))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_killed_worker_stops_the_run(data: dict[str, Prepared]) -> None:
    loader = iter(Loader(prepared=data["pack"], batch_tokens=BATCH, workers=2))
    next(loader)
    os.kill(int(children(os.getpid())[-1].name), signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"one of the 2 processes .* was killed"):
        for _ in islice(loader, 10_000):
            pass


def test_workers_do_not_outlive_a_killed_run(data: dict[str, Prepared]) -> None:
    heard, told = os.pipe()

    def read() -> None:
        for _ in Loader(prepared=data["pack"], batch_tokens=BATCH, workers=2):
            os.write(told, b"!")

    run = forked(read)
    os.close(told)  # or its end would go unnoticed here
    assert os.read(heard, 1) == b"!"
    os.close(heard)
    workers = children(run)
    os.kill(run, signal.SIGKILL)
    os.waitpid(run, 0)
    assert len(workers) == 2 and all_gone(workers)


def test_what_cannot_be_is_said_at_once(data: dict[str, Prepared]) -> None:
    with pytest.raises(SpecError, match=r"train\.batch_tokens=10 has no room"):
        Loader(prepared=data["pack"], batch_tokens=10)
    with pytest.raises(DataError, match="no split 'exam'"):
        Loader(prepared=data["pack"], batch_tokens=BATCH, split="exam")


def returning(monkeypatch: pytest.MonkeyPatch, packing: type[PackingSpec], **changes: np.ndarray | None) -> None:
    """Lets `collate` of a packing return other arrays; None: none of this name."""
    collate = packing.collate

    def changed(self: PackingSpec, task: PackingTask, plan: RowPlan) -> Arrays:
        return {name: array for name, array in {**collate(self, task, plan), **changes}.items() if array is not None}

    monkeypatch.setattr(packing, "collate", changed)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_array_that_is_no_field_of_a_batch_is_refused(
    data: dict[str, Prepared], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    returning(monkeypatch, Bucket, weights=np.ones(3))
    with pytest.raises(SpecError, match=r"data.packing=bucket: collate returned 'weights'.*Fields: tokens, .*weight, "):
        next(iter(Loader(prepared=data["bucket"], batch_tokens=BATCH, workers=workers)))


def test_texts_alone_in_their_rows_must_be_marked_where_they_are_truncated(
    data: dict[str, Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    returning(monkeypatch, Bucket, truncated=None)
    with pytest.raises(SpecError, match=r"no 'truncated'.*objective adds <eos>"):
        next(iter(Loader(prepared=data["bucket"], batch_tokens=BATCH)))


def test_rows_of_several_texts_must_show_where_these_begin(
    data: dict[str, Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    returning(monkeypatch, Pack, segments=None)
    with pytest.raises(SpecError, match="neither 'segments' nor 'starts'"):
        next(iter(Loader(prepared=data["pack"], batch_tokens=BATCH)))
