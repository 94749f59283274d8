"""BERT and RoBERTa against Hugging Face's with the same weights."""

from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.equality.comparing import check_equal, check_gradients, check_outputs, lengths_mask, randomise
from tests.equality.copying import bert, bert_with_pooler, copy, roberta

from anyformer.core import Frame, HeadSpec
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.masked_words import MaskedWordsHead
from anyformer.parts.heads.pooled import Pooled
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.pools.first import First
from anyformer.parts.positions.learned import LearnedPosition

VOCAB, DIM, HEADS, HIDDEN, LAYERS, LENGTH = 97, 32, 4, 48, 2, 12
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "attn_implementation": "eager",
}


def spec(head: HeadSpec, *, eps: float = 1e-12, types: int = 2, places: int = LENGTH) -> Encoder:
    normed = LayerNorm(eps=eps)
    parts = Attention(heads=HEADS, bias=True), MLP(hidden=HIDDEN, bias=True)
    block = Block(branches=tuple(Branch(part=part, norm=normed, place="post") for part in parts))
    return Encoder(
        vocab=VOCAB,
        dim=DIM,
        stack=Stack(blocks={"layer": block}, depth=LAYERS),
        types=types,
        position=LearnedPosition(max_len=places),
        entry_norm=normed,
        head=head,
    )


def read_in_batch() -> tuple[Any, Any, Any]:
    """Tokens, types and which of them exist: three rows of several lengths."""
    return torch.randint(3, VOCAB, (3, LENGTH)), torch.randint(2, (3, LENGTH)), lengths_mask([LENGTH, 5, 9])


@pytest.mark.row("PRE-13", clause="segment embeddings tell A from B")
@pytest.mark.row(
    "TRF-04",
    clause=(
        "an unmasked stack that yields representations",
        "hidden states equal transformers BertModel, weights copied, to 1e-5",
    ),
)
def test_bert_with_types_and_padding_equals_hugging_face(transformers: ModuleType) -> None:
    config = transformers.BertConfig(max_position_embeddings=LENGTH, **SIZES)
    theirs, ours = randomise(transformers.BertForMaskedLM(config)), spec(MaskedWordsHead()).build().eval()
    copy(theirs, ours, partial(bert, layers=LAYERS))
    tokens, types, valid = read_in_batch()
    frame, given = Frame(types=types, valid=valid), {"token_type_ids": types, "attention_mask": valid.long()}
    hidden = theirs.bert(tokens, **given).last_hidden_state
    check_equal(ours(tokens, frame, logits=False).y[valid], hidden[valid])
    check_outputs(ours(tokens, frame).y[valid], theirs(tokens, **given).logits[valid])
    check_gradients(ours, theirs, partial(bert, layers=LAYERS))


@pytest.mark.row("TRF-04")
def test_bert_pools_the_first_token_as_hugging_face_does(transformers: ModuleType) -> None:
    theirs = randomise(transformers.BertModel(transformers.BertConfig(max_position_embeddings=LENGTH, **SIZES)))
    ours = spec(Pooled(pool=First(), layer="tanh")).build().eval()
    copy(theirs, ours, partial(bert_with_pooler, layers=LAYERS))
    tokens, _, valid = read_in_batch()
    pooled = theirs(tokens, attention_mask=valid.long()).pooler_output  # and no types: all are the first
    check_outputs(ours(tokens, Frame(valid=valid)).y, pooled)
    check_gradients(ours, theirs, partial(bert_with_pooler, layers=LAYERS))


@pytest.mark.row("TRF-04")
def test_roberta_equals_hugging_face_when_told_where_its_positions_start(transformers: ModuleType) -> None:
    pad = 1
    config = transformers.RobertaConfig(
        max_position_embeddings=LENGTH + 2, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=pad, **SIZES
    )
    theirs = randomise(transformers.RobertaForMaskedLM(config))
    ours = spec(MaskedWordsHead(eps=1e-5), eps=1e-5, types=1, places=LENGTH + 2).build().eval()
    copy(theirs, ours, partial(roberta, layers=LAYERS))
    tokens, _, valid = read_in_batch()
    tokens = tokens.where(valid, pad)
    frame = Frame(positions=(valid.cumsum(1) + pad).where(valid, pad), valid=valid)
    hidden = theirs.roberta(tokens, attention_mask=valid.long()).last_hidden_state
    check_equal(ours(tokens, frame, logits=False).y[valid], hidden[valid])
    check_outputs(ours(tokens, frame).y[valid], theirs(tokens, attention_mask=valid.long()).logits[valid])
    check_gradients(ours, theirs, partial(roberta, layers=LAYERS))
