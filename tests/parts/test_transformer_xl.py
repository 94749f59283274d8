"""Transformer-XL: segments with a memory are the whole, for values but not for gradients."""

import pytest
import torch
from tests.conformance.subjects import all_pairs_count
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import Causal, Frame, Site, Work, cost, decode, initialise
from anyformer.core.part import PositionSpec
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.masks.window import Window
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.transformer_xl import Ring, TransformerXL, TransformerXLPart

DIM, T = 8, 12
pytestmark = pytest.mark.row("XF-11")


def built(memory: int = T) -> TransformerXLPart:
    part = TransformerXL(heads=2, memory=memory).build(Site(dim=DIM))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    return part


def at(start: int, stop: int, batch: int = 2) -> Frame:
    return Frame(positions=torch.arange(start, stop).expand(batch, -1))


def in_segments(part: TransformerXLPart, x: Tensor, size: int) -> list[Tensor]:
    state, pieces = part.init_state(len(x), x.shape[1]), []
    for start in range(0, x.shape[1], size):
        out = part(x[:, start : start + size], at(start, min(start + size, x.shape[1])), state)
        state = out.state
        pieces.append(out.y)
    return pieces


@pytest.mark.row(
    "XF-11",
    clause=(
        "keys and values from [memory; current segment], queries from current",
        "positions are relative",
        "one layer with memory equals full-context attention",
    ),
)
@pytest.mark.row("RNN-21", clause="recurrence as in Transformer-XL carries memory across the cut")
@pytest.mark.parametrize("size", [1, 4, 5])
def test_one_layer_with_memory_is_attention_over_everything(size: int) -> None:
    part, full = built(), Attention(heads=2, position=decode(PositionSpec, {"kind": "xl"})).build(Site(dim=DIM))
    with torch.no_grad():
        full.qkv.weight.copy_(torch.cat((part.q.weight, part.kv.weight)))
        full.out.load_state_dict(part.out.state_dict())
        full.position.load_state_dict(part.position.state_dict())
    x = torch.randn(2, T, DIM)
    expected = full(x, Frame()).y
    torch.testing.assert_close(part(x, Frame()).y, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(torch.cat(in_segments(part, x, size), dim=1), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 4, 7])
def test_a_short_memory_is_a_window_wherever_segments_are_cut(size: int) -> None:
    part, x = built(memory=3), torch.randn(2, T, DIM)
    assert part.rule == Window(size=4) & Causal()
    torch.testing.assert_close(torch.cat(in_segments(part, x, size), dim=1), part(x, Frame()).y, atol=1e-6, rtol=1e-5)


@pytest.mark.row(
    "XF-11",
    clause=(
        "keys and values from [memory; current segment], queries from current",
        "no gradient flows into the memory",
    ),
)
def test_gradients_stop_at_the_memory_but_keys_learn_from_it() -> None:
    part, x = built(), torch.randn(2, T, DIM, requires_grad=True)
    y = in_segments(part, x, 6)[1]
    by_input, by_keys = torch.autograd.grad(y.square().sum(), (x, part.kv.weight))
    assert not by_input[:, :6].any() and by_input[:, 6:].any()
    whole = part(torch.cat((x[:, :6].detach(), x[:, 6:]), dim=1), Frame()).y[:, 6:]
    torch.testing.assert_close(by_keys, torch.autograd.grad(whole.square().sum(), part.kv.weight)[0])
    alone = part(x[:, 6:], Frame()).y
    assert (by_keys - torch.autograd.grad(alone.square().sum(), part.kv.weight)[0]).abs().max() > 1e-3


@pytest.mark.row(
    "XF-11",
    clause=("the effective context grows to L M over L layers", "a token beyond the segment changes the logits"),
)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_reach_grows_by_a_memory_with_every_layer(layers: int) -> None:
    layer, memory = Block(branches=(Branch(part=TransformerXL(heads=2, memory=3)),)), 3
    stack = Stack(blocks={"layer": layer}, depth=layers)
    model = Decoder(vocab=11, dim=DIM, stack=stack, init=NormalInit(deviation=0.4)).build(seed=0).double()
    tokens = torch.randint(0, 11, (1, T))
    other = tokens.clone()
    other[:, 1] = (other[:, 1] + 1) % 11
    logits = []
    for given in (tokens, other):
        state, pieces = model.init_state(1, T), []
        for start in range(0, T, 2):
            out = model(given[:, start : start + 2], at(start, start + 2, 1), state)
            state = out.state
            pieces.append(out.y)
        logits.append(torch.cat(pieces, dim=1))
    moved = (logits[0] - logits[1]).abs().amax(dim=(0, 2))
    assert (moved > 1e-9).nonzero()[:, 0].tolist() == list(range(1, 2 + layers * memory))


def test_a_new_document_does_not_see_the_memory_of_another() -> None:
    part, x = built(), torch.randn(2, T, DIM)
    state: Ring = part(x[:, :6], at(0, 6), part.init_state(2, T)).state
    positions = torch.tensor([[6, 7, 0, 1, 2, 3], [6, 7, 8, 9, 10, 11]])
    out = part(x[:, 6:], Frame(positions=positions), state)
    alone = part(x[:1, 8:], Frame()).y
    torch.testing.assert_close(out.y[:1, 2:], alone, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(out.y[1:], part(x[1:], Frame()).y[:, 6:], atol=1e-6, rtol=1e-5)
    kept = out.state.positions[0, :-1]
    assert sorted(kept[kept >= 0].tolist()) == [0, 1, 2, 3]


def test_a_scheme_for_token_vectors_is_refused() -> None:
    with pytest.raises(SpecError, match="does not act on scores"):
        TransformerXL(position=decode(PositionSpec, {"kind": "sinusoidal"})).build(Site(dim=DIM))


def test_an_encoder_refuses_it() -> None:
    with pytest.raises(SpecError, match="reads left to right"):
        TransformerXL().place(Site(dim=DIM, causal=False))


def test_the_flops_of_a_step_count_all_slots_of_a_memory_that_is_not_full_yet() -> None:
    """Empty slots are masked, not left out: the products are computed."""
    spec = Decoder(
        vocab=9,
        dim=DIM,
        stack=Stack(blocks={"layer": Block(branches=(Branch(part=TransformerXL(heads=2, memory=40)),))}, depth=1),
    )
    model, past = spec.build(), 5
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), all_pairs_count():
        state = model.init_state(2, 20)
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(2, 2, dtype=torch.long), at(past, past + 2), state)
        assert cost(spec, Work(batch=2, length=2, past=past)).total.flops_forward == counter.get_total_flops()
