"""ALBERT against Hugging Face's with the same weights: layers that share, a narrow embedding."""

from functools import partial
from types import ModuleType

import pytest
import torch
from tests.equality.comparing import check_equal, check_gradients, check_outputs, lengths_mask, randomise
from tests.equality.copying import albert, copy

from anyformer.core import Frame
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.embeddings.factorized import Factorized
from anyformer.parts.heads.masked_words import MaskedWordsHead
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.learned import LearnedPosition

VOCAB, WIDTH, DIM, HEADS, HIDDEN, LAYERS, LENGTH = 97, 16, 32, 4, 48, 4, 12


def spec(groups: tuple[str, ...]) -> Encoder:
    normed = LayerNorm(eps=1e-12)
    parts = Attention(heads=HEADS, bias=True), MLP(hidden=HIDDEN, activation="gelu_tanh", bias=True)
    branches = tuple(Branch(part=part, norm=normed, place="post") for part in parts)
    blocks = {tag: Block(branches=branches, share=tag) for tag in groups}
    layout = tuple(tag for tag in groups for _ in range(LAYERS // len(groups)))
    return Encoder(
        vocab=VOCAB,
        dim=DIM,
        stack=Stack(blocks=blocks, layout=layout, depth=LAYERS),
        embedding=Factorized(width=WIDTH, bias=True),
        types=2,
        position=LearnedPosition(max_len=LENGTH),
        entry_norm=normed,
        head=MaskedWordsHead(activation="gelu_tanh"),
    )


@pytest.mark.row(
    "SST-04", clause=("embedding factorised through E = 128", "one set of block weights shared across all layers")
)
@pytest.mark.row("TRF-04")
@pytest.mark.parametrize("groups", [("all",), ("low", "high")], ids=["one_group", "two_groups"])
def test_albert_equals_hugging_face(transformers: ModuleType, groups: tuple[str, ...]) -> None:
    config = transformers.AlbertConfig(
        vocab_size=VOCAB,
        embedding_size=WIDTH,
        hidden_size=DIM,
        num_hidden_layers=LAYERS,
        num_hidden_groups=len(groups),
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=LENGTH,
        attn_implementation="eager",
    )
    theirs, ours = randomise(transformers.AlbertForMaskedLM(config)), spec(groups).build().eval()
    table = partial(albert, groups=groups)
    copy(theirs, ours, table)
    tokens, types = torch.randint(3, VOCAB, (2, LENGTH)), torch.randint(2, (2, LENGTH))
    valid = lengths_mask([LENGTH, 7])
    frame, given = Frame(types=types, valid=valid), {"token_type_ids": types, "attention_mask": valid.long()}
    hidden = theirs.albert(tokens, **given).last_hidden_state
    check_equal(ours(tokens, frame, logits=False).y[valid], hidden[valid])
    check_outputs(ours(tokens, frame).y[valid], theirs(tokens, **given).logits[valid])
    check_gradients(ours, theirs, table)
