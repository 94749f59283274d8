"""The hierarchical Transformer: segments are encoded alone, then the sequence of their summaries."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.core import CostTree, Frame, Model, PartSpec, Site, Work, cost, decode, initialise
from anyformer.errors import SpecError
from anyformer.models import Block, Branch, Encoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.summaries import Summaries
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.joins.replace import Replace
from anyformer.parts.masks.block_local import BlockLocal
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.pools.first import First
from anyformer.parts.pools.mean import Mean

row = pytest.mark.row
DIM, VOCAB, SEGMENT = 12, 11, 4


def hierarchical(segment: int, dim: int = DIM) -> Encoder:
    """One layer over the words of a segment, and one over the summaries of the document."""
    words = Branch(part=Attention(heads=3, mask=BlockLocal(size=segment)))
    blocks = {
        "words": Block(branches=(words, Branch(part=MLP(hidden=16)))),
        "summary": Block(branches=(Branch(part=Summaries(segment=segment), place="none", join=Replace()),)),
        "document": Block(branches=(Branch(part=Attention(heads=3)), Branch(part=MLP(hidden=16)))),
    }
    return Encoder(vocab=VOCAB, dim=dim, stack=Stack(blocks=blocks, depth=3), init=NormalInit(deviation=0.4))


@pytest.fixture(scope="module")
def model() -> Model:
    return hierarchical(SEGMENT).build().double().eval()


def ids(length: int, batch: int = 2) -> Tensor:
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(1))


@row("XF-12", clause="segments are encoded, then the sequence of their summaries")
@pytest.mark.parametrize("length", [3, 4, 16, 18])
def test_segments_that_are_encoded_alone_and_joined_give_what_the_model_gives(model: Any, length: int) -> None:
    tokens = ids(length)
    words, _, document = model.stack.calls()
    rows = []
    for text in tokens:
        summaries = []
        for start in range(0, length, SEGMENT):
            segment = model.embedding(text[None, start : start + SEGMENT])  # no other segment is there to be seen
            summaries.append(words(segment, Frame()).y[0].mean(0))
        rows.append(document(torch.stack(summaries)[None], Frame()).y[0])
    torch.testing.assert_close(model(tokens).y, torch.stack(rows))


@row("XF-12", clause="segments are encoded, then the sequence of their summaries")
def test_a_word_changes_its_summary_alone_and_every_vector_of_the_document(model: Any) -> None:
    tokens, changed = ids(16), ids(16)
    changed[:, 5] = (changed[:, 5] + 1) % VOCAB
    words, summary, document = model.stack.calls()
    before, after = (summary(words(model.embedding(one), Frame()).y, Frame()).y for one in (tokens, changed))
    assert before.shape == (2, 4, DIM)
    assert ((before != after).any(-1) == torch.tensor([False, True, False, False])).all()
    assert (document(before, Frame()).y != document(after, Frame()).y).any(-1).all()


def attention_pairs(tree: CostTree) -> int:
    """Pairs of a query and a key that all attention of a model compares, by its cost card."""
    return sum(node.cost.flops_forward for _, node in tree.walk() if node.kind == "AttentionPart") // (4 * DIM)


@row("XF-12", clause="the cost is T s + (T / s)^2 for segments of length s")
@pytest.mark.parametrize(("length", "segment"), [(64, 4), (64, 8), (256, 4), (256, 8), (256, 16)])
def test_attention_costs_as_much_as_segments_and_a_document_of_summaries(length: int, segment: int) -> None:
    pairs = attention_pairs(cost(hierarchical(segment), Work(length=length)))
    assert pairs == length * segment + (length // segment) ** 2
    assert pairs < length**2 / 4


@pytest.mark.parametrize("pattern", ["1111100", "0011111", "1011010", "0000000"])
@pytest.mark.parametrize("kind", ["first", "mean", "max", "attention"])
def test_padding_is_in_no_summary(kind: str, pattern: str) -> None:
    part = decode(PartSpec, {"kind": "summaries", "segment": 2, "pool": {"kind": kind}}).build(
        Site(dim=DIM, causal=False)
    )
    initialise(part, NormalInit(deviation=0.4), seed=0)
    x, valid = torch.randn(2, 7, DIM), torch.tensor([[character == "1" for character in pattern], [True] * 7])
    out = part(x, Frame(valid=valid))
    assert out.y.shape == (2, 4, DIM) and out.y.isfinite().all()
    for one, kept, summaries, exists in zip(x, valid, out.y, out.frame.valid, strict=True):
        alone = part(one[kept][None], Frame()).y[0] if kept.any() else one[:0]
        torch.testing.assert_close(summaries[exists], alone)
        assert exists.tolist() == [index < len(alone) for index in range(4)]


def test_the_pool_says_what_a_summary_is() -> None:
    x, site = torch.randn(2, 6, DIM), Site(dim=DIM, causal=False)
    first, mean = (Summaries(segment=3, pool=pool).build(site)(x, Frame()).y for pool in (First(), Mean()))
    assert torch.equal(first, x[:, ::3])
    torch.testing.assert_close(mean, torch.stack((x[:, :3].mean(1), x[:, 3:].mean(1)), dim=1))


def test_what_cannot_be_cut_into_segments_is_refused_with_the_reason() -> None:
    with pytest.raises(SpecError, match="summaries reads later tokens"):
        Summaries().build(Site(dim=DIM))
    part = Summaries(segment=2).build(Site(dim=DIM, causal=False))
    with pytest.raises(SpecError, match="cut into segments"):
        part(torch.randn(1, 4, DIM), Frame(segments=torch.tensor([[0, 0, 1, 1]])))
    layer = Block(branches=(Branch(part=Summaries()),))
    with pytest.raises(SpecError, match="changes the length, so add cannot combine"):
        replace(hierarchical(4), stack=Stack(blocks={"layer": layer}, depth=1)).build()
