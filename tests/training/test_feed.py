"""The pieces that a batch is cut into."""

from itertools import islice
from pathlib import Path

import pytest
from tests.training.test_trainer import trainer_of

from anyformer.data.batching.batch import bounds_of


def test_a_piece_of_packed_rows_knows_its_own_documents(tmp_path: Path) -> None:
    batch = next(iter(trainer_of(tmp_path, "data.packing=pack").feed()))
    frames = [piece.frame for piece, _ in batch.split(96)]
    assert len(frames) > 1
    for frame in frames:
        assert frame.segments is not None and frame.document_bounds is not None
        assert frame.document_bounds.bounds.equal(bounds_of(frame.segments))


@pytest.mark.row(
    "SST-10",
    clause=("dynamic masking: the mask is drawn anew at each visit", "masks of one text differ across epochs"),
)
def test_a_text_has_other_words_hidden_in_the_next_epoch(tmp_path: Path) -> None:
    more = ("model.preset=small-encoder", "data.source.documents=paragraph", "data.packing=bucket", "data.context=48")
    visits: dict[tuple[int, ...], list[list[float]]] = {}
    for prepared in islice(iter(trainer_of(tmp_path, *more, "train.steps=99").feed()), 60):
        batch = prepared.batch
        for text, chosen, valid in zip(batch.targets, batch.weight, batch.frame.valid, strict=True):
            visits.setdefault(tuple(text[valid].tolist()), []).append(chosen[valid].tolist())
    again = [masks for masks in visits.values() if len(masks) > 1]
    assert len(again) > 100 and len(again) > 0.9 * len(visits)
    assert all(masks[0] != masks[1] for masks in again)
