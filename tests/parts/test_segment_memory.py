"""Attention with the memory of the segment before: who is seen, what is stored, and what is refused."""

import pytest
import torch
from tests.conformance.subjects import all_pairs_count
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import Call, Frame, ReadingMarks, Site, capture, initialise
from anyformer.errors import SpecError
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.masks.permutation import PermutationMask
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.segment_memory import SegmentMemory, SegmentMemoryPart
from anyformer.parts.positions.relative_segments import RelativeSegments
from anyformer.parts.positions.shaw import Shaw
from anyformer.parts.positions.sinusoidal import Sinusoidal
from anyformer.parts.positions.xl import XL

DIM, T = 8, 6
row = pytest.mark.row


def built(memory: int = T, **options: object) -> SegmentMemoryPart:
    part = SegmentMemory(heads=2, memory=memory, **options).build(Site(dim=DIM, causal=False))  # type: ignore[arg-type]
    initialise(part, NormalInit(deviation=0.4), seed=0)
    return part


def tokens(length: int = T, seed: int = 0) -> Tensor:
    return torch.randn(2, length, DIM, generator=torch.Generator().manual_seed(seed))


def at(start: int, length: int = T, **more: object) -> Frame:
    return Frame(positions=torch.arange(start, start + length).expand(2, -1), **more)  # type: ignore[arg-type]


@row("SST-07", clause="carries memory of the segment before (Transformer-XL)")
def test_one_layer_with_memory_is_attention_over_both_segments_without_gradients_to_the_first() -> None:
    part, full = built(), Attention(heads=2, position=XL()).build(Site(dim=DIM, causal=False))
    with torch.no_grad():
        full.qkv.weight.copy_(torch.cat((part.q.weight, part.kv.weight)))
        full.out.load_state_dict(part.out.state_dict())
        full.position.load_state_dict(part.position.state_dict())
    first, second = tokens(seed=1).requires_grad_(), tokens(seed=2).requires_grad_()
    state = part(first, at(0), part.init_state(2, 12)).state
    y = part(second, at(T), state).y
    torch.testing.assert_close(y, full(torch.cat((first, second), dim=1), Frame()).y[:, T:], atol=1e-6, rtol=1e-5)
    y.sum().backward()
    assert first.grad is None and second.grad is not None


def test_padding_and_queries_are_never_stored_and_a_new_document_forgets() -> None:
    part = built(memory=4, mask=PermutationMask())
    valid = torch.tensor([[1, 1, 1, 0, 1, 1], [1] * 6]).bool()
    order, stream = torch.arange(T).expand(2, -1), torch.tensor([[0, 0, 0, 0, 0, 1]] * 2)
    x, marks = tokens(), ReadingMarks(order=order, stream=stream)
    state = part(x, at(0, valid=valid, marks=marks), part.init_state(2, 24)).state
    assert state.positions.tolist() == [[0, 1, 2, 4], [1, 2, 3, 4]]
    torch.testing.assert_close(state.x[0], x[0, [0, 1, 2, 4]])
    afresh = part(tokens(seed=3), at(0), state)
    torch.testing.assert_close(afresh.y, part(tokens(seed=3), Frame()).y, atol=1e-6, rtol=1e-5)
    assert afresh.state.positions.tolist() == [[2, 3, 4, 5]] * 2


def test_all_tokens_see_the_memory_whatever_their_place_in_the_order() -> None:
    part = built(memory=3, mask=PermutationMask())
    state = part(tokens(), at(0), part.init_state(2, 24)).state
    order = torch.tensor([[2, 0, 1, 5, 4, 3]] * 2)
    with capture(part) as taps:
        part(tokens(seed=1), at(T, marks=ReadingMarks(order=order)), state)
    seen = taps["pattern"][0][0, 0] > 0
    assert seen[:, :3].all() and torch.equal(seen[:, 3:], order[0] <= order[0][:, None])


@pytest.mark.parametrize("position", [XL(), RelativeSegments(position=XL()), RelativeSegments()], ids=str)
def test_the_card_counts_the_memory(position: XL | RelativeSegments) -> None:
    part = built(memory=4, position=position)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        part(tokens(), at(T), part.init_state(2, 24))
    linear = 2 * 2 * DIM * DIM * (2 * T + 2 * (T + 4))
    distances = 2 * DIM * DIM * (2 * (T + 4) - 1) if position != RelativeSegments() else 0
    with all_pairs_count():
        counted = part.core_flops(Call(batch=2, length=T, past=T))[0]
    assert counted + linear + distances == counter.get_total_flops()


def test_what_does_not_fit_is_refused() -> None:
    for position in (Shaw(), Sinusoidal(), RelativeSegments(position=Sinusoidal())):
        with pytest.raises(SpecError, match="does not act on scores"):
            built(position=position)
    with pytest.raises(SpecError, match="transformer_xl"):
        SegmentMemory(heads=2).build(Site(dim=DIM))
    with pytest.raises(SpecError, match="heads=3 must divide dim=8"):
        SegmentMemory(heads=3).build(Site(dim=DIM, causal=False))
    part = built()
    with pytest.raises(SpecError, match="one document a row"):
        part(tokens(), Frame(), part.init_state(2, 12))


def test_a_decoding_state_keeps_no_types() -> None:
    part = Attention(heads=2, position=RelativeSegments(position=XL())).build(Site(dim=DIM))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    with pytest.raises(SpecError, match=r"does not keep frame\.types"):
        part(tokens(), at(0, types=torch.zeros(2, T, dtype=torch.long)), part.init_state(2, 12))
