"""The pieces that a batch is cut into."""

from pathlib import Path

from tests.training.test_trainer import trainer_of

from anyformer.data.batching.batch import bounds_of
from anyformer.training.loop.feed import micro_batches


def test_a_piece_of_packed_rows_knows_its_own_documents(tmp_path: Path) -> None:
    batch = next(iter(trainer_of(tmp_path, "data.packing=pack").feed())).batch
    found = [piece.batch.frame for piece in micro_batches(batch, 96)]
    assert len(found) > 1
    for frame in found:
        assert frame.segments is not None and frame.document_bounds is not None
        assert frame.document_bounds.bounds.equal(bounds_of(frame.segments))
