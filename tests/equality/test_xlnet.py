"""XLNet's stack against Hugging Face's with the same weights: Transformer-XL's positions, in both directions or one."""

from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.equality.comparing import check_equal, check_gradients, check_outputs, lengths_mask, randomise
from tests.equality.copying import copy, xlnet
from tests.equality.decoding import step_by_step

from anyformer.core import Frame
from anyformer.models import Block, Branch, Decoder, Encoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.xl import XL

VOCAB, DIM, HEADS, HIDDEN, LAYERS, LENGTH = 97, 32, 4, 48, 2, 12
TABLE = partial(xlnet, layers=LAYERS)


def spec(causal: bool) -> Encoder | Decoder:
    parts = Attention(heads=HEADS, position=XL()), MLP(hidden=HIDDEN, bias=True)
    block = Block(branches=tuple(Branch(part=part, norm=LayerNorm(eps=1e-12), place="post") for part in parts))
    kind = Decoder if causal else Encoder
    return kind(vocab=VOCAB, dim=DIM, stack=Stack(blocks={"layer": block}, depth=LAYERS), head=Hidden())


def pair(transformers: ModuleType, causal: bool) -> tuple[Any, Any]:
    config = transformers.XLNetConfig(
        vocab_size=VOCAB,
        d_model=DIM,
        n_layer=LAYERS,
        n_head=HEADS,
        d_inner=HIDDEN,
        dropout=0.0,
        attn_type="uni" if causal else "bi",
        use_mems_eval=False,
    )
    theirs, ours = randomise(transformers.XLNetModel(config)), spec(causal).build().eval()
    copy(theirs, ours, TABLE)
    return ours, theirs


@pytest.mark.row("SCL-04", clause="a relative projection W_r in each layer: about 360M, not 340M")
@pytest.mark.row(
    "POS-09", clause=("u and v are learned per head", "equals transformers XLNetModel with copied weights")
)
@pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "one_way"])
def test_xlnet_equals_hugging_face(transformers: ModuleType, causal: bool) -> None:
    ours, theirs = pair(transformers, causal)
    tokens, valid = torch.randint(VOCAB, (3, LENGTH)), lengths_mask([LENGTH] * 3 if causal else [LENGTH, 5, 9])
    # they cannot add a padding mask to a causal one
    hidden = theirs(tokens, attention_mask=None if causal else valid.float()).last_hidden_state
    check_outputs(ours(tokens, Frame(valid=valid)).y[valid], hidden[valid])
    check_gradients(ours, theirs, TABLE)


@pytest.mark.row("POS-09", "TSK-17")
def test_xlnet_reading_one_way_can_be_decoded_with_a_state(transformers: ModuleType) -> None:
    ours, theirs = pair(transformers, causal=True)
    tokens = torch.randint(VOCAB, (3, LENGTH))
    check_equal(step_by_step(ours, tokens, prompt=4), theirs(tokens).last_hidden_state)
