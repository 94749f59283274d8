"""Two directions: what each of them reads, with padding and packed documents turned round."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from anyformer.core import Frame, PartSpec, Site, decode, initialise
from anyformer.errors import SpecError
from anyformer.parts.combine.bidirectional import Bidirectional, BidirectionalPart
from anyformer.parts.inits.normal import NormalInit

DIM, T = 8, 8
MERGES: list[Literal["concatenate", "sum", "project"]] = ["concatenate", "sum", "project"]


def built(kind: str = "lstm", merge: Literal["concatenate", "sum", "project"] = "concatenate") -> BidirectionalPart:
    spec = Bidirectional(part=decode(PartSpec, {"kind": kind}), merge=merge)
    part = spec.build(Site(dim=DIM, causal=False))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    return part


@pytest.mark.row("RNN-07", clause="h_t is the forward state and the backward state, concatenated")
@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru", "min_gru"])
@pytest.mark.parametrize("merge", MERGES)
def test_each_half_reads_in_its_direction(kind: str, merge: Literal["concatenate", "sum", "project"]) -> None:
    part, x = built(kind, merge), torch.randn(2, T, DIM)
    ahead, back = part.ahead(x, Frame()).y, part.back(x.flip(1), Frame()).y.flip(1)
    y = part(x, Frame()).y
    if merge == "sum":
        expected = ahead + back
    else:
        expected = torch.cat((ahead, back), dim=-1)
        expected = expected if part.project is None else part.project(expected)
    assert y.shape == x.shape
    torch.testing.assert_close(y, expected)


@pytest.mark.row("RNN-07", clause="h_1 depends on x_T: the gradient is non-zero")
def test_the_first_state_depends_on_the_last_token() -> None:
    part, x = built(), torch.randn(2, T, DIM, requires_grad=True)
    ahead, back = part(x, Frame()).y[:, 0].chunk(2, dim=-1)
    (by_ahead,), (by_back,) = (torch.autograd.grad(half.sum(), x, retain_graph=True) for half in (ahead, back))
    assert not by_ahead[:, 1:].any() and by_ahead[:, 0].any()
    assert by_back[:, -1].abs().min() > 0


def turned_positions(positions: list[int] | None = None, **marks: list[int]) -> list[int]:
    tensors: dict[str, Tensor] = {name: torch.tensor([row]) for name, row in marks.items()}
    if "valid" in tensors:
        tensors["valid"] = tensors["valid"].bool()
    frame = Frame(positions=None if positions is None else torch.tensor([positions]), **tensors)
    found = frame.reversed(torch.zeros(1, 6, 2)).positions
    assert found is not None
    return found[0].tolist()


def test_positions_are_counted_from_the_end_of_every_document() -> None:
    assert turned_positions([0, 1, 2, 0, 1, 2], segments=[0, 0, 0, 1, 1, 1]) == [0, 1, 2, 0, 1, 2]
    assert turned_positions(segments=[4, 5, 5, 5, 5, 6]) == [0, 0, 1, 2, 3, 0]
    assert turned_positions(valid=[1, 1, 1, 1, 0, 0])[2:] == [0, 1, 2, 3]
    assert turned_positions([0, 0, 0, 1, 2, 3], valid=[0, 0, 1, 1, 1, 1])[:4] == [0, 1, 2, 3]


def test_a_plain_frame_stays_plain() -> None:
    assert Frame().reversed(torch.zeros(1, 6, 2)).plain


@pytest.mark.parametrize("kind", ["lstm", "attention"])
def test_packed_and_padded_documents_are_read_alone(kind: str) -> None:
    part, x = built(kind, "project"), torch.randn(1, 9, DIM)
    segments = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 1]])
    positions = torch.tensor([[0, 1, 2, 0, 0, 0, 1, 2, 3]])
    valid = torch.tensor([[1, 1, 1, 0, 0, 1, 1, 1, 1]]).bool()
    y = part(x, Frame(segments=segments, positions=positions, valid=valid)).y
    torch.testing.assert_close(y[:, :3], part(x[:, :3], Frame()).y, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(y[:, 5:], part(x[:, 5:], Frame()).y, atol=1e-6, rtol=1e-5)


def test_what_cannot_be_half_as_wide_is_refused() -> None:
    with pytest.raises(SpecError, match=r"attention cannot give half of dim=8"):
        built("attention", "concatenate")
    with pytest.raises(SpecError, match=r"dim=5 has no halves"):
        Bidirectional(part=decode(PartSpec, {"kind": "gru"})).build(Site(dim=5, causal=False))


def test_a_decoder_refuses_it() -> None:
    with pytest.raises(SpecError, match="reads later tokens"):
        Bidirectional(part=decode(PartSpec, {"kind": "gru"})).build(Site(dim=DIM))


def test_token_types_do_not_force_positions_and_are_turned_round() -> None:
    frame = Frame(types=torch.tensor([[0, 0, 1]]))
    back = frame.reversed(torch.zeros(1, 3, 2))
    assert back.plain and back.types is not None and back.types.tolist() == [[1, 0, 0]]
