"""The pieces that a batch is cut into."""

from pathlib import Path

from tests.training.test_trainer import trainer_of

from anyformer.data.batching.batch import bounds_of


def test_a_piece_of_packed_rows_knows_its_own_documents(tmp_path: Path) -> None:
    batch = next(iter(trainer_of(tmp_path, "data.packing=pack").feed()))
    frames = [piece.frame for piece, _ in batch.split(96)]
    assert len(frames) > 1
    for frame in frames:
        assert frame.segments is not None and frame.document_bounds is not None
        assert frame.document_bounds.bounds.equal(bounds_of(frame.segments))
