"""What stacks, states and the two halves of a translator must not confuse."""

from typing import Any

import pytest
import torch

from anyformer.core import Frame, Model
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.heads.untied import Untied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.multi_step_attention import MultiStepAttention

LOOK, THINK, CROSS = (Branch(part=part) for part in (Attention(heads=4), MLP(), Cross(part=Attention(heads=4))))
TOKENS = torch.arange(12).expand(2, -1) % 11


def decoder(**blocks: Block) -> Decoder:
    return Decoder(vocab=11, dim=32, stack=Stack(blocks=blocks, depth=len(blocks)))


def translator() -> EncoderDecoder:
    source = Stack(blocks={"layer": Block(branches=(LOOK, THINK))}, depth=1)
    target = Stack(blocks={"layer": Block(branches=(LOOK, CROSS, THINK))}, depth=1)
    return EncoderDecoder(
        encoder=Encoder(vocab=11, dim=32, stack=source), decoder=Decoder(vocab=11, dim=32, stack=target)
    )


def test_a_tag_that_looks_like_a_number_shares_nothing_with_that_layer() -> None:
    model = decoder(a=Block(branches=(LOOK,), share="1"), b=Block(branches=(THINK,))).build()
    assert [name for name, _ in model.stack.layers.named_children()] == ["shared/1", "1"]


def test_blocks_of_one_tag_must_be_equal() -> None:
    with pytest.raises(SpecError, match="must be equal"):
        decoder(a=Block(branches=(LOOK,), share="x"), b=Block(branches=(THINK,), share="x"))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [({"layout": ("a",), "depth": 4}, "layout does not name it"), ({"depth": 1}, "depth=1 does not reach")],
)
def test_a_block_that_is_never_used_is_refused(fields: Any, rule: str) -> None:
    stack = Stack(blocks={"a": Block(branches=(LOOK,)), "b": Block(branches=(THINK,))}, **fields)
    with pytest.raises(SpecError, match=f"stack: blocks.b would never be used: {rule}"):
        Decoder(vocab=11, dim=32, stack=stack).build(device="meta")


def test_a_state_refuses_packed_documents() -> None:
    model = decoder(a=Block(branches=(LOOK,))).build()
    frame = Frame(positions=torch.arange(12).expand(2, -1), segments=torch.arange(12).expand(2, -1) // 6)
    with pytest.raises(SpecError, match="one document a row"):
        model(TOKENS, frame, model.init_state(2, 12))


@pytest.mark.parametrize("gap", [slice(0, 3), slice(4, 6)], ids=["in front", "inside"])
def test_holes_between_tokens_are_not_seen_through_a_state(gap: slice) -> None:
    model = _loud(decoder(a=Block(branches=(LOOK,)), b=Block(branches=(LOOK,))).build())
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[:, gap] = False
    frame = Frame(positions=torch.arange(12).expand(2, -1), valid=valid)
    with torch.no_grad():
        stepped, whole = model(TOKENS, frame, model.init_state(2, 12)).y, model(TOKENS, frame).y
    assert (stepped - whole)[valid].abs().max() < 1e-5


def test_a_packed_target_sees_only_its_own_source() -> None:
    model = _loud(translator().build())
    segments, positions = torch.arange(12).expand(2, -1) // 6, torch.arange(12).expand(2, -1) % 6
    frame = Frame(segments=segments, positions=positions)
    with torch.no_grad():
        memory = model.encode(TOKENS, frame)
        packed = model(TOKENS, Frame(segments=segments, positions=positions, memory=memory)).y
        halves = TOKENS.split(6, dim=1)
        alone = [model(half, Frame(memory=model.encode(half, Frame()))).y for half in halves]
    assert (packed - torch.cat(alone, dim=1)).abs().max() < 1e-5


def test_what_an_encoder_half_would_ignore_is_refused() -> None:
    with pytest.raises(SpecError, match=r"encoder\.head"):
        translator().with_("encoder.head", Untied())


def _loud(model: Model) -> Model:
    """Weights large enough that a leak is no rounding."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return model.eval()


def test_a_model_can_be_called_without_a_frame() -> None:
    model, translate = decoder(a=Block(branches=(LOOK,))).build(), translator().build()
    assert model(TOKENS).y.equal(model(TOKENS, Frame()).y)
    assert translate.encode(TOKENS).x.equal(translate.encode(TOKENS, Frame()).x)


def test_only_a_model_with_a_part_that_needs_them_keeps_its_inputs() -> None:
    again = Branch(part=Cross(part=MultiStepAttention()))
    with_inputs = decoder(a=Block(branches=(LOOK, again))).build()
    assert with_inputs.keeps_inputs and not decoder(a=Block(branches=(LOOK, CROSS))).build().keeps_inputs
