"""A frame keeps what it knows about its tokens, however the tokens are cut, reversed or copied."""

import torch

from anyformer.core import AlignedCursor, ContiguousCursor, DocumentBounds, Frame, Memory, ReadingMarks, StackPlace

TOKENS = torch.arange(8).view(2, 4)
FULL = Frame(
    positions=TOKENS,
    valid=TOKENS > 0,
    segments=TOKENS // 2,
    types=TOKENS % 2,
    marks=ReadingMarks(prefix=torch.tensor([2, 3]), order=TOKENS + 1, stream=TOKENS + 2),
    memory=Memory(x=torch.zeros(2, 3, 1)),
    place=StackPlace(inputs=TOKENS[..., None].float(), layer=3),
    layout=AlignedCursor(5),
)


def test_one_token_of_a_frame_keeps_every_field() -> None:
    step = FULL.at_step(2)
    assert all(value is not None for value in vars(step).values())
    assert step.marks is not None and step.marks.prefix is FULL.marks.prefix
    assert step.marks.order.tolist() == [[3], [7]] and step.marks.stream.tolist() == [[4], [8]]
    assert step.layout == AlignedCursor(7) and step.memory is FULL.memory


def test_a_reversed_frame_reverses_every_field_that_has_a_value_a_token() -> None:
    back = FULL.reversed(FULL.place.inputs)
    assert back.marks.order.equal(FULL.marks.order.flip(1)) and back.marks.prefix is FULL.marks.prefix
    assert back.segments.equal(FULL.segments.flip(1)) and back.place.layer == 3
    assert back.place.inputs.equal(FULL.place.inputs.flip(1))
    assert back.layout is None


def test_rows_of_a_frame_keep_their_marks_and_lose_bounds_of_all_rows() -> None:
    packed = Frame(segments=TOKENS, marks=FULL.marks, layout=DocumentBounds(torch.tensor([0, 8]), 4))
    rows = packed.take(torch.tensor([1]))
    assert rows.segments.tolist() == [[4, 5, 6, 7]] and rows.marks.prefix.tolist() == [3] and rows.layout is None


def test_copies_of_a_row_share_its_marks_and_the_source() -> None:
    row = Frame(
        positions=TOKENS[:1], marks=ReadingMarks(prefix=torch.tensor([2])), memory=Memory(x=torch.zeros(1, 3, 1))
    )
    copies = row.expand(5)
    assert copies.positions.shape == (5, 4) and copies.marks.prefix.shape == (5,) and copies.memory.x.shape == (5, 3, 1)


def test_a_layout_is_either_a_cursor_or_bounds_of_documents() -> None:
    bounds = DocumentBounds(torch.tensor([0, 8]), 4)
    assert Frame(layout=bounds).cursor is None and Frame(layout=bounds).document_bounds is bounds
    assert (
        Frame(layout=ContiguousCursor(3)).cursor == ContiguousCursor(3)
        and Frame(layout=ContiguousCursor(3)).document_bounds is None
    )
