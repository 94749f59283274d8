"""Reading in one direction: from the end, where every document's last valid token is at position 0; to the end, with
the state that is left there; and token by token."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from anyformer.core.frame import Frame
from anyformer.core.part import Out, Part
from anyformer.core.site import Widths
from anyformer.ops.recurrence.linear_scan import beginnings


def turned(frame: Frame, x: Float[Tensor, "b t d"]) -> Frame:
    """The frame of the same tokens read from the end, where every document's last valid token is at position 0."""
    if frame.valid is None and frame.plain:
        return replace(frame, types=_flipped(frame.types), entry=_flipped(frame.entry))
    valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if frame.valid is None else frame.valid
    begins, rank = beginnings(frame, x), valid.cumsum(1)
    after = rank[:, -1:] + 1  # the rank of the token that begins the next document, or of one behind the last
    if begins is not None:
        ranks = rank.where(begins, after).flip(1).cummin(1).values.flip(1)
        after = torch.cat((ranks[:, 1:], after), dim=1)
    positions = (after - 1 - rank).clamp(min=0)
    return replace(
        frame,
        positions=positions.flip(1),
        valid=_flipped(frame.valid),
        segments=_flipped(frame.segments),
        types=_flipped(frame.types),
        order=_flipped(frame.order),
        stream=_flipped(frame.stream),
        entry=_flipped(frame.entry),
        documents=None,
    )


def read_to_end(part: Part, x: Float[Tensor, "b t d"], frame: Frame) -> Out:
    """One direction of an encoder, with the final state of a part that has a `summary`."""
    if not part.summary:
        return part(x, frame)
    out = part(x, with_positions(frame, x), part.init_state(x.shape[0], x.shape[1], frame.memory))
    return out._replace(state=None, final=(out.state,))


def final_widths(part: Part) -> tuple[Widths, ...]:
    """Widths of the states that `read_to_end` gives."""
    return (part.summary,) if part.summary else part.final_widths


def with_positions(frame: Frame, x: Float[Tensor, "b t d"]) -> Frame:
    """The same frame with its positions written out, as a state needs them."""
    return frame if frame.positions is not None else replace(frame, positions=frame.where(x).expand(x.shape[:2]))


def at_step(frame: Frame, t: int) -> Frame:
    """The frame of one token of each row, for a part that is called token by token. Positions must be there."""
    marks = (frame.positions, frame.valid, frame.segments, frame.types, frame.entry)
    positions, valid, segments, types, entry = (_column(mark, t) for mark in marks)
    return Frame(positions=positions, valid=valid, segments=segments, types=types, entry=entry, memory=frame.memory)


def _column(mark: Tensor | None, t: int) -> Tensor | None:
    return None if mark is None else mark[:, t : t + 1]


def _flipped(mark: Tensor | None) -> Tensor | None:
    return None if mark is None else mark.flip(1)
