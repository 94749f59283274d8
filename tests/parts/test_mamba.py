"""Mamba and Mamba-2 as parts: their fresh steps and decays, their state, what they select, and what they refuse."""

from functools import cache

import pytest
import torch

from anyformer.core import Frame, PartSpec, Site, Work, capture, cost, initialise
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.gated_linear import GatedLinear
from anyformer.parts.mixers.linear_attention import LinearAttention
from anyformer.parts.mixers.mamba import Mamba, MambaPart
from anyformer.parts.mixers.mamba2 import Mamba2
from anyformer.parts.mixers.s4 import S4
from anyformer.parts.mixers.s4d import S4D

DIM, T = 16, 70
both = pytest.mark.parametrize("spec", [Mamba(states=4), Mamba2(head_dim=8, states=4)], ids=lambda spec: spec.kind)


@pytest.mark.row("SSM-05", clause="step size = softplus(.) > 0; step size, B and C depend on the input")
@both
def test_fresh_steps_are_short_and_differ(spec: PartSpec) -> None:
    part = spec.build(Site(dim=DIM))
    initialise(part, NormalInit(deviation=1e-6), seed=0)
    with capture(part, "steps") as seen:
        part(torch.randn(2, T, DIM), Frame())
    steps = seen["steps"][0]
    assert 0.0009 < steps.min() < steps.max() < 0.11
    assert steps.std() > 0.005


def test_fresh_decays_are_the_whole_numbers() -> None:
    part = Mamba(states=4).build(Site(dim=DIM))
    initialise(part, NormalInit(), seed=0)
    assert isinstance(part, MambaPart)
    torch.testing.assert_close(part.log_a.exp(), torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(2 * DIM, 4))


@both
@pytest.mark.row("SSM-05")
def test_a_token_can_choose_to_be_ignored(spec: PartSpec) -> None:
    """With a step of 0 a token leaves no trace in the state: what a system that does not select cannot do."""
    part, x = spec.build(Site(dim=DIM)), torch.randn(1, 9, DIM)
    initialise(part, NormalInit(deviation=0.3), seed=0)

    def shut(_name: str, steps: torch.Tensor) -> torch.Tensor:
        steps = steps.clone()
        steps[:, 4] = 0.0
        return steps

    states = []
    for change in (0.0, 5.0):
        changed = x.clone()
        changed[:, 4] += change
        with capture(part, "steps", edit=shut):
            frame = Frame(positions=torch.arange(9)[None])
            states.append(part(changed[:, :5], Frame(positions=frame.positions[:, :5]), part.init_state(1, 9)).state[1])
    torch.testing.assert_close(states[0], states[1])


@both
def test_long_rows_with_gaps_and_documents_are_the_documents_alone(spec: PartSpec) -> None:
    part, x, valid = spec.build(Site(dim=DIM)), torch.randn(1, T, DIM), torch.rand(1, T) < 0.8
    initialise(part, NormalInit(deviation=0.3), seed=0)
    segments = (torch.arange(T) >= 33).long()[None]
    y = part(x, Frame(valid=valid, segments=segments)).y
    for number in (0, 1):
        here = valid & (segments == number)
        torch.testing.assert_close(y[here], part(x[here][None], Frame()).y[0], atol=1e-5, rtol=1e-4)


MIXERS = [S4(modes=4), S4D(modes=4), Mamba(), Mamba2(head_dim=8), LinearAttention(), GatedLinear()]


def forward_flops(part: PartSpec, work: Work) -> int:
    block = Block(branches=(Branch(part=part),))
    return cost(Decoder(vocab=8, dim=DIM, stack=Stack(blocks={"layer": block}, depth=1)), work).total.flops_forward


@cache
def growth(part: PartSpec, length: int) -> float:
    """By what factor more FLOPs are added from twice to four times the length than from the length to its double."""
    once, twice, four_times = (forward_flops(part, Work(length=factor * length)) for factor in (1, 2, 4))
    return (four_times - twice) / (twice - once)


@pytest.mark.row("SSM-06", clause="a sequence costs an SSM O(T), attention O(T^2)")
@pytest.mark.row("TSK-17", clause="per-token cost is O(T) with the cache, O(T^2) without")
@pytest.mark.parametrize("spec", MIXERS, ids=lambda spec: spec.kind)
def test_cost_grows_with_the_length_and_attentions_with_its_square(spec: PartSpec) -> None:
    assert growth(spec, 256) == pytest.approx(2.0, rel=0.05)
    assert growth(Attention(heads=2), 2048) == pytest.approx(4.0, rel=0.05)
    steps = {forward_flops(spec, Work(length=1, past=n)) for n in (10, 10_000)}
    assert len(steps) == 1


def test_heads_must_divide_the_channels() -> None:
    with pytest.raises(SpecError, match="multiple of head_dim"):
        Mamba2(head_dim=48).build(Site(dim=DIM))


@pytest.mark.parametrize("spec", [*MIXERS[:4], GatedLinear()], ids=lambda spec: spec.kind)
def test_in_an_encoder_it_names_the_combinator(spec: PartSpec) -> None:
    with pytest.raises(SpecError, match="bidirectional"):
        spec.place(Site(dim=DIM, causal=False))
    with pytest.raises(SpecError, match="attention inside cross"):
        spec.place(Site(dim=DIM, source="memory"))
