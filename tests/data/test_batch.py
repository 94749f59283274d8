"""A batch moves, and loses rows, with everything that it holds."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from anyformer.core import Frame
from anyformer.data.batching.batch import Batch, Continuation, RowLabels, RowTensors, closed, continued


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn(RowTensors):
    """What an objective of a test prepares."""

    noise: Float[Tensor, "b t"]
    missing: Float[Tensor, "b t"] | None = None


TOKENS = torch.arange(12).view(3, 4)
FULL = Batch(
    tokens=TOKENS,
    frame=Frame(valid=TOKENS < 11),
    features=torch.rand(3, 4, 5),
    weight=torch.ones(3, 4),
    truncated=torch.tensor([False, True, False]),
    continuation=Continuation(before=torch.tensor([-1, 3, 7])),
    labels=RowLabels(label=torch.tensor([2, 0, 1])),
    inputs=Drawn(noise=torch.rand(3, 4)),
    source=Batch(tokens=TOKENS + 20, frame=Frame()),
)


def test_rows_are_taken_from_every_field() -> None:
    rows = torch.tensor([2, 0])
    some = FULL.take(rows)
    assert some.tokens.equal(TOKENS[rows]) and some.frame.valid.equal(FULL.frame.valid[rows])
    assert some.features.equal(FULL.features[rows]) and some.truncated.tolist() == [False, False]
    assert some.continuation.before.tolist() == [7, -1] and some.continuation.row is None
    assert some.labels.label.tolist() == [1, 2] and some.labels.tags is None
    assert isinstance(some.inputs, Drawn) and some.inputs.noise.equal(FULL.inputs.noise[rows])
    assert some.source.tokens.equal(FULL.source.tokens[rows])


def test_every_field_goes_to_a_device() -> None:
    moved = FULL.to("meta")
    tensors = (moved.features, moved.labels.label, moved.inputs.noise, moved.continuation.before, moved.source.tokens)
    assert all(tensor.is_meta for tensor in (moved.tokens, moved.frame.valid, *tensors))


def test_valid_is_what_exists_and_counted_what_has_a_weight_besides() -> None:
    weight = torch.ones(3, 4)
    weight[0, 0] = 0
    batch = replace(FULL, weight=weight)
    assert batch.valid.equal(TOKENS < 11) and batch.counted.equal((TOKENS < 11) & (TOKENS > 0))


def test_documents_start_where_segments_change_or_where_the_data_say_so() -> None:
    starts = torch.tensor([[True, False, True, False]])
    packed = Batch(tokens=TOKENS[:1], frame=Frame(segments=torch.tensor([[0, 0, 1, 1]])))
    seeing = Batch(tokens=TOKENS[:1], frame=Frame(), starts=starts)
    alone = Batch(tokens=TOKENS[:1], frame=Frame())
    assert packed.document_starts.equal(starts) and seeing.document_starts.equal(starts)
    assert alone.document_starts.tolist() == [[True, False, False, False]]
    assert packed.shared and seeing.shared and not alone.shared


def test_an_end_is_put_behind_every_text_that_has_none_and_does_not_go_on() -> None:
    tokens = torch.tensor([[5, 6, 0], [5, 6, 7], [5, 9, 0], [0, 0, 0]])
    batch = Batch(tokens=tokens, frame=Frame(valid=tokens > 0))
    assert closed(batch, 9).tokens.tolist() == [[5, 6, 9, 0], [5, 6, 7, 9], [5, 9, 0, 0], [0, 0, 0, 0]]
    goes_on = torch.tensor([False, True, False, False])
    ended = closed(batch, 9, goes_on)
    assert ended.tokens[:, :3].tolist() == [[5, 6, 9], [5, 6, 7], [5, 9, 0], [0, 0, 0]]
    assert ended.valid.sum(1).tolist() == [3, 3, 2, 0]


def test_a_row_that_begins_inside_a_text_begins_with_the_token_before_it_whatever_its_id() -> None:
    batch = replace(FULL, frame=Frame(), continuation=Continuation(before=torch.tensor([-1, 0, 7])))
    assert continued(batch, 99)[:, 0].tolist() == [99, 0, 7]
