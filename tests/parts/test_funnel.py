"""The funnel: an encoder that halves its sequence on the way, by pooled queries or by pooled outputs."""

from typing import Any

import pytest
import torch
from tests.conformance.translators import branch, translator
from tests.parts.funnels import DIM, HEADS, VOCAB, lengths_of, small
from torch import Tensor

from anyformer.core import Frame, PartSpec, Site, Work, capture, cost, decode, initialise
from anyformer.errors import SpecError
from anyformer.models import EncoderDecoder
from anyformer.ops.mean_pooling import mean_pool
from anyformer.parts.combine.shorten import Shorten
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.joins.replace import Replace
from anyformer.parts.mixers.attention import Attention
from anyformer.training import load

row = pytest.mark.row
SIZES = {"vocab": VOCAB, "dim": DIM, "max_len": 32}


def built(**tree: Any) -> Any:
    part = decode(PartSpec, tree).build(Site(dim=DIM, causal=False))
    initialise(part, NormalInit(deviation=0.4), seed=0)
    return part.double()


def tokens(length: int = 7) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(2, length, DIM, generator=rng, dtype=torch.float64)


def halves(x: Tensor) -> Tensor:
    """The means of every two vectors of one row, the last one alone if their number is odd."""
    return torch.stack([sum(x[i : i + 2]) / len(x[i : i + 2]) for i in range(0, len(x), 2)])


@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_means_of_two_equal_a_loop(length: int) -> None:
    x = tokens(length).requires_grad_()
    expected = torch.stack([halves(one) for one in x])
    computed, valid = mean_pool(x, None, 2)
    torch.testing.assert_close(computed, expected)
    assert valid is None
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (computed, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("pattern", ["1111100", "0011111", "1011010", "0000000"])
def test_padding_is_in_no_mean(pattern: str) -> None:
    x, valid = tokens(), torch.tensor([[character == "1" for character in pattern], [True] * 7])
    computed, left = mean_pool(x, valid, 2)
    assert left is not None and computed.shape == (2, 4, DIM)
    for one, kept, means, exists in zip(x, valid, computed, left, strict=True):
        alone = halves(one[kept]) if kept.any() else one[:0]
        torch.testing.assert_close(means[exists], alone)
        assert exists.tolist() == [index < len(alone) for index in range(4)]


@row("NAR-50", clause="variants: only the queries pooled, or the attention output pooled")
def test_pooled_queries_equal_a_loop_over_means_and_heads() -> None:
    part, x = built(kind="pooled_queries", part={"kind": "attention", "heads": HEADS}), tokens(5).requires_grad_()
    attention, channels = part.part, DIM // HEADS
    w_k, w_v = attention.kv.weight.chunk(2)

    def normal(vector: Tensor) -> Tensor:
        scale = (vector.square().mean() + part.norm.eps).rsqrt()
        return part.norm.gain * vector * scale

    rows = []
    for one in x:
        means = []
        for mean in halves(one):
            heads = []
            for h in range(HEADS):
                head = slice(h * channels, (h + 1) * channels)
                q = attention.q.weight[head] @ normal(mean)
                scores = torch.stack([q @ (w_k[head] @ normal(token)) for token in one]) / channels**0.5
                heads.append(
                    sum(a * (w_v[head] @ normal(token)) for a, token in zip(scores.softmax(0), one, strict=True))
                )
            means.append(mean + attention.out.weight @ torch.cat(heads))
        rows.append(torch.stack(means))
    slow, fast, leaves = torch.stack(rows), part(x, Frame()).y, (x, *part.parameters())
    torch.testing.assert_close(fast, slow)
    expected = torch.autograd.grad(slow.square().sum(), leaves)
    torch.testing.assert_close(torch.autograd.grad(fast.square().sum(), leaves), expected)


@row("NAR-50", clause="variants: only the queries pooled, or the attention output pooled")
def test_a_shortened_attention_pools_its_output_and_the_stream() -> None:
    look: dict[str, Any] = {"part": {"kind": "attention", "heads": HEADS}}
    model: Any = translator([look, branch({"kind": "shorten"})], [look], depth=1, **SIZES).build()
    attention, shorten = model.encoder.stack.layers["0"].branches
    x = torch.randn(2, 6, DIM)
    y = x + attention.part(attention.before(x, Frame()), Frame()).y
    expected = torch.stack([halves(one) for one in y])
    torch.testing.assert_close(shorten(attention(x, Frame()).y, Frame()).y, expected)
    torch.testing.assert_close(model.encoder.stack(x, Frame()).y, expected)


@row("NAR-50", clause="attention with pooled queries has the shape T/2 by T")
def test_pooled_queries_attend_to_all_tokens() -> None:
    part = built(kind="pooled_queries", part={"kind": "attention", "heads": HEADS})
    with capture(part, "*.pattern") as seen:
        y = part(tokens(8), Frame()).y
    assert seen["part.pattern"][0].shape == (2, HEADS, 4, 8) and y.shape == (2, 4, DIM)


# The preset


@row("NAR-50", clause=("encoder of 3 blocks of 4 layers", "mean-pooled by 2 at the start of blocks 2 and 3"))
def test_the_encoder_is_vanillas_with_a_pool_in_the_first_layers_of_two_blocks() -> None:
    mine, vanilla = (load(name) for name in ("vanilla-funnel", "vanilla"))
    assert isinstance(mine, EncoderDecoder) and isinstance(vanilla, EncoderDecoder)
    assert mine.decoder == vanilla.decoder
    four = ("layer",) * 3
    assert mine.encoder.stack.order == ("layer", *four, "shorter", *four, "shorter", *four)
    (plain,) = vanilla.encoder.stack.blocks.values()
    assert mine.encoder.stack.blocks["layer"] == plain
    look, pool, think = mine.encoder.stack.blocks["shorter"].branches
    assert (look, think) == plain.branches
    assert pool.part == Shorten(by=2) and pool.join == Replace() and pool.place == "none"


@row("NAR-50", clause=("length goes T, T/2, T/4", "mean-pooled by 2 at the start of blocks 2 and 3"))
@pytest.mark.parametrize(("length", "lengths"), [(16, (16, 8, 4)), (13, (13, 7, 4)), (1, (1, 1, 1))])
def test_the_length_is_halved_twice(length: int, lengths: tuple[int, ...]) -> None:
    assert lengths_of(small().build(), length) == [each for each in lengths for _ in range(4)]


@row("NAR-50", clause="decoder attends to T/4 states")
def test_the_decoder_attends_to_a_quarter_of_the_source() -> None:
    model = small().build()
    memory = model.encode(torch.arange(16)[None] % VOCAB, Frame())
    with capture(model, "decoder.*.1.part.pattern") as seen:
        model(torch.arange(5)[None], Frame(memory=memory))
    assert memory.x.shape == (1, 4, DIM) and len(seen) == 12
    assert all(calls[0].shape == (1, 12, 5, 4) for calls in seen.values())


@row("NAR-50", clause="operations are below vanilla's (published 1.9T against 11.1T)")
def test_a_funnel_has_fewer_operations_than_vanilla() -> None:
    """Of the encoder: four layers of full, half and a quarter of the length each. The decoder attends to less, too."""
    mine, vanilla = (cost(small(name).encoder, Work(length=64)).total for name in ("vanilla-funnel", "vanilla"))
    assert mine.params == vanilla.params
    assert mine.flops_forward < 0.65 * vanilla.flops_forward and mine.flops_backward < 0.65 * vanilla.flops_backward


# Refusals


@pytest.mark.parametrize("tree", [{"kind": "shorten"}, {"kind": "pooled_queries", "part": {"kind": "attention"}}])
def test_only_an_encoder_with_one_document_a_row_is_shortened(tree: Any) -> None:
    with pytest.raises(SpecError, match="reads later tokens"):
        decode(PartSpec, tree).build(Site(dim=DIM))
    with pytest.raises(SpecError, match="one document"):
        built(**tree)(tokens(), Frame(segments=torch.zeros(2, 7, dtype=torch.long)))
    with pytest.raises(SpecError, match="changes the length, so add cannot"):
        translator([{"part": tree}], [{"part": {"kind": "mlp"}}], **SIZES).build(device="meta")


def test_queries_that_are_pooled_take_no_position_scheme() -> None:
    attention = Attention(heads=HEADS).to_dict() | {"position": {"kind": "rope"}}
    with pytest.raises(SpecError, match="it takes no `position`"):
        built(kind="pooled_queries", part=attention)
