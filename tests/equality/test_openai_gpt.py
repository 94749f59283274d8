"""The first GPT against Hugging Face's with the same weights: the norms stand behind the branches."""

from functools import partial
from types import ModuleType

import pytest
import torch
from tests.equality.comparing import check_equal, check_gradients, check_outputs, randomise
from tests.equality.copying import copy, openai_gpt
from tests.equality.decoding import step_by_step

from anyformer.core import Frame
from anyformer.models import Block, Branch, Decoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.learned import LearnedPosition

VOCAB, DIM, HEADS, LAYERS, LENGTH = 97, 32, 4, 2, 16
TABLE = partial(openai_gpt, layers=LAYERS)


def spec() -> Decoder:
    parts = Attention(heads=HEADS, bias=True), MLP(activation="gelu_tanh", bias=True)
    block = Block(branches=tuple(Branch(part=part, norm=LayerNorm(), place="post") for part in parts))
    stack = Stack(blocks={"layer": block}, depth=LAYERS)
    return Decoder(vocab=VOCAB, dim=DIM, stack=stack, max_len=LENGTH, position=LearnedPosition())


@pytest.mark.row(
    "PRE-06",
    clause=(
        "h_0 = U W_e + W_p",
        "h_l = block(h_(l-1)) for l = 1..n, n being the number of layers",
        "output P(u) = softmax(h_n W_e^T)",
        "equals OpenAIGPTLMHeadModel of transformers with copied weights",
        "tied W_e: one table for input and output",
    ),
)
def test_openai_gpt_equals_hugging_face(transformers: ModuleType) -> None:
    config = transformers.OpenAIGPTConfig(
        vocab_size=VOCAB,
        n_positions=LENGTH,
        n_embd=DIM,
        n_layer=LAYERS,
        n_head=HEADS,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
    )
    theirs, ours = randomise(transformers.OpenAIGPTLMHeadModel(config)), spec().build().eval()
    copy(theirs, ours, TABLE)
    tokens = torch.randint(VOCAB, (3, LENGTH))
    logits = theirs(tokens).logits
    check_outputs(ours(tokens, Frame()).y, logits)
    check_gradients(ours, theirs, TABLE)
    check_equal(step_by_step(ours, tokens, prompt=4), logits)
