"""XLNet over several segments against Hugging Face's with the same weights: its memory and its token types."""

from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.equality.comparing import check_equal, check_gradients, check_outputs, lengths_mask, randomise
from tests.equality.copying import Peer, Table, copy, xlnet_for_words, xlnet_with_segments
from tests.equality.test_losses import LAYERS, VOCAB, WORDS

from anyformer.core import Frame, PartSpec
from anyformer.data.batching.batch import Batch
from anyformer.models import Block, Branch, Decoder, Encoder, Stack
from anyformer.objectives.permutation import PermutationLM, guessed, random_order, two_streams
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.untied import Untied
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.segment_memory import SegmentMemory
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.relative_segments import RelativeSegments
from anyformer.parts.positions.xl import XL

row = pytest.mark.row
ROWS, LENGTH = 3, 13
SEGMENTS = RelativeSegments(position=XL())


def stack(mixer: PartSpec) -> Stack:
    parts = mixer, MLP(hidden=48, bias=True)
    block = Block(branches=tuple(Branch(part=part, norm=LayerNorm(eps=1e-12), place="post") for part in parts))
    return Stack(blocks={"layer": block}, depth=LAYERS)


def config(transformers: ModuleType, **options: Any) -> Any:
    return transformers.XLNetConfig(
        vocab_size=VOCAB, d_model=32, n_layer=LAYERS, n_head=4, d_inner=48, dropout=0.0, **options
    )


@row("SST-07", clause="relative positions and relative segment encodings")
@pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "one_way"])
@pytest.mark.parametrize("types", [2, 4])
def test_token_types_are_xlnets_segments(transformers: ModuleType, causal: bool, types: int) -> None:
    kind = Decoder if causal else Encoder
    spec = kind(vocab=VOCAB, dim=32, stack=stack(Attention(heads=4, position=SEGMENTS)), head=Hidden())
    options = config(transformers, attn_type="uni" if causal else "bi", use_mems_eval=False)
    theirs, ours = randomise(transformers.XLNetModel(options)), spec.build().eval()
    table = partial(xlnet_with_segments, layers=LAYERS)
    copy(theirs, ours, table)
    tokens, kinds = torch.randint(VOCAB, (ROWS, LENGTH)), torch.randint(types, (ROWS, LENGTH))
    valid = lengths_mask([LENGTH] * ROWS if causal else [LENGTH, 5, 9])
    out = theirs(tokens, attention_mask=None if causal else valid.float(), token_type_ids=kinds).last_hidden_state
    mine = ours(tokens, Frame(valid=valid, types=kinds)).y
    check_outputs(mine[valid], out[valid])
    check_gradients(ours, theirs, table)
    assert (ours(tokens, Frame(valid=valid)).y - mine)[valid].abs().max() > 0.01


def with_memory(read: Peer, layers: int) -> Table:
    """Queries come from a segment alone, keys and values from the memory too: two matrices, not one."""
    table = xlnet_with_segments(read, layers)
    for name in [name for name in table if name.endswith(".qkv.weight")]:
        q, k, v = table.pop(name)
        table |= {name.replace("qkv", "q"): (q,), name.replace("qkv", "kv"): (k, v)}
    return table


def all_but_the_words(read: Peer) -> Table:
    """Theirs are tied, so that one gradient holds what two of ours do."""
    table = xlnet_for_words(read, LAYERS, WORDS.mask, with_memory)
    return {name: pieces for name, pieces in table.items() if name not in ("embedding.weight", "head.words.weight")}


def pair(transformers: ModuleType, memory: int) -> tuple[Any, Any]:
    part = SegmentMemory(heads=4, memory=memory, position=SEGMENTS)
    spec = PermutationLM().adapt(Encoder(vocab=VOCAB, dim=32, stack=stack(part), head=Untied(bias=True)))
    options = config(transformers, attn_type="bi", mem_len=memory)
    theirs, ours = randomise(transformers.XLNetLMHeadModel(options)), spec.build().eval()
    copy(theirs, ours, partial(xlnet_for_words, layers=LAYERS, mask=WORDS.mask, stack=with_memory))
    return ours, theirs


def segment(number: int) -> Batch:
    """Words of two types and their queries, at the positions of this segment of a text."""
    rng = torch.Generator().manual_seed(number)
    tokens = torch.randint(17, VOCAB, (ROWS, LENGTH), generator=rng)
    types = torch.randint(2, (ROWS, LENGTH), generator=rng)
    able = torch.ones_like(tokens, dtype=torch.bool)
    order = random_order(able, rng)
    batch = two_streams(Batch(tokens=tokens, frame=Frame(types=types)), order, guessed(order, able, share=0.4), WORDS)
    assert batch.frame.positions is not None
    return replace(batch, frame=replace(batch.frame, positions=batch.frame.positions + number * LENGTH))


@row(
    "SST-07",
    clause=(
        "carries memory of the segment before (Transformer-XL)",
        "relative positions and relative segment encodings",
        "equals XLNetLMHeadModel with perm_mask and target_mapping",
    ),
)
@pytest.mark.parametrize("memory", [5, LENGTH, 2 * LENGTH - 4], ids=["shorter", "one_segment", "longer"])
def test_two_streams_with_a_memory_of_the_segments_before_are_xlnets(transformers: ModuleType, memory: int) -> None:
    ours, theirs = pair(transformers, memory)
    state, mems = ours.init_state(ROWS, 64), None
    for number in range(3):
        batch = segment(number)
        order, at = batch.frame.marks.order[:, :LENGTH], batch.frame.positions[:, LENGTH:] - number * LENGTH
        out = theirs(
            batch.tokens[:, :LENGTH],
            mems=mems,
            use_mems=True,
            perm_mask=(order[:, None, :] >= order[:, :, None]).float(),  # 1: may not be seen
            target_mapping=F.one_hot(at, LENGTH).float(),
            token_type_ids=batch.frame.types[:, :LENGTH],
        )
        mine, forgetful = ours(batch.tokens, batch.frame, state), ours(batch.tokens, batch.frame).y[:, LENGTH:]
        check_equal(mine.y[:, LENGTH:], out.logits)
        assert ((forgetful - out.logits).abs().max() > 0.01) == (number > 0)
        state, mems = mine.state, out.mems
        for (past, *_), memories in zip(state, mems, strict=True):
            check_equal(past.x[:, -len(memories) :], memories.transpose(0, 1))
    slope = torch.randn(out.logits.shape)
    (mine.y[:, LENGTH:] * slope).sum().backward()
    (out.logits * slope).sum().backward()
    check_gradients(ours, theirs, all_but_the_words)
