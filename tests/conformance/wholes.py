"""Whole models that are more than one kind in a plain stack: shared blocks, reversible stacks, translators."""

from collections.abc import Iterator

from tests.conformance.translators import translators

from anyformer.core import ModelSpec
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.models.halting import Halting
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.combine.step_embedding import StepEmbedding
from anyformer.parts.joins.gru_gate import GRUGate
from anyformer.parts.joins.replace import Replace
from anyformer.parts.mixers.attention import Attention

LOOK, THINK = Branch(part=Attention(heads=4)), Branch(part=MLP(hidden=48))


def whole_models(**sizes: int) -> Iterator[tuple[str, ModelSpec]]:
    layer, cross = Block(branches=(LOOK, THINK)), Branch(part=Cross(part=Attention(heads=4)))
    once = Block(branches=(LOOK, THINK), share="once")
    mixed = Stack(blocks={"shared": once, "own": layer}, layout=("shared", "own", "shared"), depth=4)
    yield "shared", Decoder(**sizes, stack=mixed)
    two = Stack(blocks={"layer": Block(branches=(LOOK, THINK, THINK))}, depth=3, residual="reversible")
    yield "reversible", Decoder(**sizes, stack=two)
    encoder = Encoder(**sizes, types=2, stack=Stack(blocks={"layer": layer}, depth=2))
    target = Stack(blocks={"layer": Block(branches=(LOOK, cross, THINK))}, depth=2)
    decoder = Decoder(**sizes, stack=target)
    yield "encoder_decoder", EncoderDecoder(encoder=encoder, decoder=decoder)
    yield "universal", _universal(**sizes)
    yield from translators(**sizes)


def _universal(**sizes: int) -> ModelSpec:
    """One block for each half, whose steps are told apart, and positions that stop after some of them."""
    step = Branch(part=StepEmbedding(steps=3, first=1), place="none", join=Replace())
    look, cross, think = (
        Branch(part=part, join=GRUGate())
        for part in (Attention(heads=4), Cross(part=Attention(heads=4)), MLP(hidden=48))
    )
    encoder, decoder = (
        Stack(blocks={"layer": Block(branches=branches, share="all")}, depth=4, halting=Halting())
        for branches in ((step, look, think), (step, look, cross, think))
    )
    return EncoderDecoder(encoder=Encoder(stack=encoder, **sizes), decoder=Decoder(stack=decoder, **sizes))
