"""Long documents are cut at other places in every epoch, as a function of the seed and the epoch alone."""

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.corpus import documents, ready

from anyformer.data.batching.packings.pack import Pieces
from anyformer.data.batching.row_plan import LoaderPosition
from anyformer.data.preparation.shards import Prepared
from anyformer.training.loop.feed import Loader

CONTEXT = 16


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    lengths = np.random.default_rng(0).integers(1, 90, 40)
    return ready(tmp_path_factory.mktemp("windows"), documents(lengths), context=CONTEXT, packing="pack", valid=0.2)


def segments(
    prepared: Prepared, epoch: int, split: str = "train", shuffle: bool = True, **options: int
) -> list[tuple[int, ...]]:
    """The pieces of an epoch as tokens, sorted."""
    loader = Loader(
        prepared=prepared, split=split, batch_tokens=4 * CONTEXT, start=LoaderPosition(epoch), epochs=epoch + 1,
        shuffle=shuffle, **options,
    )  # fmt: skip
    found = []
    for batch, _ in loader:
        for tokens, numbers in zip(batch.tokens, batch.frame.segments, strict=True):
            found += [tuple(tokens[numbers == number].tolist()) for number in range(int(numbers.max()) + 1)]
    return sorted(found)


@pytest.mark.row("RNN-21", clause="a long sequence is cut into segments of at most T_max")
@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**63), width=st.integers(1, 40), cut=st.booleans())
def test_every_token_is_in_one_piece_and_a_document_that_fits_is_whole(
    seed: int, width: int, cut: bool, prepared: Prepared
) -> None:
    side = prepared.split("train").sides["tokens"]
    pieces = Pieces.of(side, width, seed if cut else None)
    spans = [range(start, start + size) for start, size in zip(pieces.begins, pieces.sizes, strict=True)]
    assert sorted(place for span in spans for place in span) == list(range(len(side.tokens.array)))
    assert all(0 < len(span) <= width for span in spans)
    index = side.index.array
    ends = set(index.tolist())
    assert all(not ends & set(range(span.start + 1, span.stop)) for span in spans)  # no piece crosses a document's end
    whole = {(start, stop) for start, stop in pairwise(index) if stop - start <= width}
    assert whole <= {(span.start, span.stop) for span in spans}


def test_epochs_are_cut_at_different_places_and_repeat_exactly(prepared: Prepared) -> None:
    first, second = segments(prepared, 0), segments(prepared, 1)
    assert first != second and segments(prepared, 0) == first and segments(prepared, 1) == second
    assert sorted(sum(first, ())) == sorted(sum(second, ()))


def test_workers_and_a_resumed_epoch_see_the_same_windows(prepared: Prepared) -> None:
    assert segments(prepared, 1, workers=2) == segments(prepared, 1)
    batches = list(Loader(prepared=prepared, batch_tokens=64, start=LoaderPosition(1), epochs=2))
    _, position = batches[1]
    again = Loader(prepared=prepared, batch_tokens=64, start=position, epochs=2)
    for (batch, _), (expected, _) in zip(islice(again, 3), batches[2:5], strict=True):
        assert batch.tokens.equal(expected.tokens)


def test_windows_of_validation_never_move(prepared: Prepared) -> None:
    assert segments(prepared, 0, "valid", shuffle=False) == segments(prepared, 3, "valid", shuffle=False)
