"""Longformer against Hugging Face's with the same weights: a window, and global tokens with their own projections."""

from functools import partial
from types import ModuleType

import pytest
import torch
from tests.equality.comparing import check_equal, check_gradients, check_outputs, lengths_mask, randomise
from tests.equality.copying import Peer, Table, copy, linear, norm, only

from anyformer.core import Frame
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.mixers.longformer import Longformer
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.learned import LearnedPosition

VOCAB, DIM, HEADS, HIDDEN, LAYERS, LENGTH, REACH, GLOBAL = 97, 32, 4, 48, 2, 24, 4, 2


def longformer(read: Peer, layers: int) -> Table:
    """LongformerModel without its pooler."""
    table = only(read, "embedding.weight", "embeddings.word_embeddings.weight")
    table |= only(read, "position.table.weight", "embeddings.position_embeddings.weight")
    table |= only(read, "types.weight", "embeddings.token_type_embeddings.weight")
    table |= norm(read, "entry_norm", "embeddings.LayerNorm")
    for n in range(layers):
        ours, theirs = f"stack.layers.{n}.branches", f"encoder.layer.{n}"
        local, wide = (
            [f"{theirs}.attention.self.{name}{end}" for name in ("query", "key", "value")] for end in ("", "_global")
        )
        table |= linear(read, f"{ours}.0.part.qkv", *local)
        table |= linear(read, f"{ours}.0.part.global_q", wide[0]) | linear(read, f"{ours}.0.part.global_kv", *wide[1:])
        table |= linear(read, f"{ours}.0.part.out", f"{theirs}.attention.output.dense")
        table |= linear(read, f"{ours}.1.part.up", f"{theirs}.intermediate.dense")
        table |= linear(read, f"{ours}.1.part.down", f"{theirs}.output.dense")
        table |= norm(read, f"{ours}.0.after", f"{theirs}.attention.output.LayerNorm")
        table |= norm(read, f"{ours}.1.after", f"{theirs}.output.LayerNorm")
    return table


def spec() -> Encoder:
    look = Longformer(heads=HEADS, window=REACH + 1, tokens=GLOBAL, bias=True)
    parts, normed = (look, MLP(hidden=HIDDEN, bias=True)), LayerNorm(eps=1e-5)
    block = Block(branches=tuple(Branch(part=part, norm=normed, place="post") for part in parts))
    return Encoder(
        vocab=VOCAB,
        dim=DIM,
        stack=Stack(blocks={"layer": block}, depth=LAYERS),
        types=1,
        position=LearnedPosition(max_len=LENGTH),
        entry_norm=normed,
    )


@pytest.mark.row("XF-09", clause="equals transformers.LongformerModel with a global_attention_mask")
@pytest.mark.parametrize("lengths", [[24, 24], [24, 9, 17]], ids=["whole", "padded"])
def test_longformer_equals_hugging_face(transformers: ModuleType, lengths: list[int]) -> None:
    config = transformers.LongformerConfig(
        vocab_size=VOCAB, hidden_size=DIM, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=HIDDEN, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, type_vocab_size=1,
        max_position_embeddings=LENGTH, attention_window=2 * REACH, layer_norm_eps=1e-5,
    )  # fmt: skip
    theirs = randomise(transformers.LongformerModel(config, add_pooling_layer=False))
    theirs.embeddings.position_embeddings.padding_idx = None  # its row 1 would not learn, but is a position here
    ours = spec().build().eval()
    copy(theirs, ours, partial(longformer, layers=LAYERS))
    tokens, valid, places = torch.randint(3, VOCAB, (len(lengths), LENGTH)), lengths_mask(lengths), torch.arange(LENGTH)
    hidden = theirs(
        tokens, attention_mask=valid.long(), global_attention_mask=(places < GLOBAL).long().expand_as(tokens),
        position_ids=places.expand_as(tokens),
    ).last_hidden_state  # fmt: skip
    check_outputs(ours(tokens, Frame(valid=valid)).y[valid], hidden[valid])
    check_gradients(ours, theirs, partial(longformer, layers=LAYERS))
    plain = ours(tokens[:1], Frame()).y  # by whichever kernel a mask without padding takes
    check_equal(plain[:, : lengths[0]], hidden[:1])
