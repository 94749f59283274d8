"""Product-key memory: against a loop over all keys, at full size against all products, and as a part of a model."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import Call, Frame, Site, capture, initialise
from anyformer.errors import SpecError
from anyformer.parts.channels.mlp import MLPPart
from anyformer.parts.channels.product_keys import ProductKeys, ProductKeysPart
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.mixers.attention import AttentionPart
from anyformer.parts.norms.batch import BatchNorm
from anyformer.training import load

DIM, KEYS, HEADS, CHANNELS, TOP = 6, 5, 2, 4, 3


def built(dim: int = DIM, **options: Any) -> ProductKeysPart:
    spec = ProductKeys(**{"keys": KEYS, "heads": HEADS, "key_dim": CHANNELS, "top": TOP, **options})
    part = spec.build(Site(dim=dim))
    initialise(part, NormalInit(deviation=0.7), seed=0)
    return part


def tokens(length: int = 7, dim: int = DIM, seed: int = 1) -> Tensor:
    return torch.randn(2, length, dim, generator=torch.Generator().manual_seed(seed))


def slow_memory(part: ProductKeysPart, x: Tensor) -> Tensor:
    """The memory for one token [d]: a loop over heads and over all pairs of half-keys."""
    y, sets = torch.zeros_like(x), part.half_keys.view(HEADS, 2, KEYS, CHANNELS // 2)
    for h in range(HEADS):
        q = part.query.weight[h * CHANNELS : (h + 1) * CHANNELS] @ x
        q = (q - q.mean()) / (q.var(unbiased=False) + 1e-5).sqrt()
        q = q * part.norm.get_parameter("gain") + part.norm.get_parameter("bias")
        keys = [torch.cat((sets[h, 0, i], sets[h, 1, j])) for i, j in product(range(KEYS), range(KEYS))]
        scores = torch.stack([q @ key for key in keys])
        best = sorted(range(len(keys)), key=lambda slot: -float(scores[slot].detach()))[:TOP]
        for weight, slot in zip(scores[best].softmax(0), best, strict=True):
            y = y + weight * part.values.weight[slot]
    return y


@pytest.mark.row(
    "NAR-52",
    clause=(
        "top-k of each set, k^2 candidates, top-k again, then softmax",
        "table of 512^2 values of width d, the 4 heads are summed",
    ),
)
def test_a_memory_is_the_slow_loop_in_its_values_and_gradients() -> None:
    part, x = built(), tokens().requires_grad_()
    inputs = (x, *part.parameters())
    y, expected = part(x, Frame()).y, torch.stack([torch.stack([slow_memory(part, t) for t in row]) for row in x])
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)
    wanted = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    mine, theirs = (torch.autograd.grad((out * wanted).sum(), inputs) for out in (y, expected))
    for gradient, slow in zip(mine, theirs, strict=True):
        assert slow.abs().max() > 1e-3
        torch.testing.assert_close(gradient, slow, atol=1e-5, rtol=1e-4)


@pytest.mark.row(
    "NAR-52",
    clause=(
        "top-k equals brute force over all 262,144 products",
        "defaults: 512 keys, 4 heads, key 256, k = 32",
        "top-k of each set, k^2 candidates, top-k again, then softmax",
    ),
)
def test_the_best_keys_are_the_best_of_all_products() -> None:
    part, x = ProductKeys().build(Site(dim=8)), tokens(3, 8)
    initialise(part, Xavier(), seed=0)
    with torch.no_grad(), capture(part) as seen:
        part(x, Frame())
        q = part.norm(part.query(x).unflatten(-1, (4, 256)), Frame())
        first, second = part.half_keys.view(4, 2, 512, 128).unbind(1)
        scores = [
            torch.einsum("bthc,hnc->bthn", *pair) for pair in zip(q.chunk(2, dim=-1), (first, second), strict=True)
        ]
        every = (scores[0][..., None] + scores[1][..., None, :]).flatten(-2)
        n, m = torch.randint(512, (2, 1000))  # the score of a product is that of its two keys, joined
        joined = torch.einsum("bthc,hkc->bthk", q, torch.cat([first[:, n], second[:, m]], dim=-1))
        torch.testing.assert_close(every[..., 512 * n + m], joined, atol=1e-5, rtol=1e-4)
    best, slots = every.topk(32, dim=-1)
    assert every.shape[-1] == 262_144 == len(part.values.weight)
    assert torch.equal(seen["slots"][0].sort(-1).values, slots.sort(-1).values)
    torch.testing.assert_close(seen["weights"][0], best.softmax(-1), atol=1e-5, rtol=1e-4)


@pytest.mark.row("NAR-52", clause="memory replaces the FFN of one decoder layer, the 11th")
def test_at_full_size_the_11th_layer_of_the_decoder_has_a_memory_for_its_feed_forward_net() -> None:
    model: Any = load("vanilla-product-keys").build(device="meta")
    last = [block.branches[-1].part for half in (model.encoder, model.decoder) for block in half.stack.calls()]
    assert [index for index, part in enumerate(last) if isinstance(part, ProductKeysPart)] == [12 + 10]
    assert sum(isinstance(part, MLPPart) for part in last) == 23
    attentions = [module for module in model.modules() if isinstance(module, AttentionPart)]
    assert len(attentions) == 36 and {(part.h, part.c, part.scale) for part in attentions} == {(12, 64, 1.0)}


@pytest.mark.row(
    "NAR-52",
    clause=(
        "two sets of 512 x 128 sub-keys per head, values shared by heads",
        "table of 512^2 values of width d, the 4 heads are summed",
    ),
)
def test_at_full_size_four_heads_have_half_keys_and_share_one_table() -> None:
    model = load("vanilla-product-keys").build(device="meta")
    (memory,) = (module for module in model.modules() if isinstance(module, ProductKeysPart))
    assert memory.half_keys.shape == (4 * 2 * 512, 128)
    assert memory.values.weight.shape == (512**2, 768) and memory.query.weight.shape == (4 * 256, 768)
    assert memory.roles["half_keys"] == (("key", 512),) * 8


@pytest.mark.row("NAR-52", clause="table of 512^2 values of width d, the 4 heads are summed")
def test_heads_read_the_same_table_and_are_added() -> None:
    both, x = built(), tokens()
    expected = torch.zeros_like(x)
    for h in range(HEADS):
        alone = built(heads=1)
        with torch.no_grad():
            alone.query.weight.copy_(both.query.weight.view(HEADS, CHANNELS, DIM)[h])
            alone.half_keys.copy_(both.half_keys.view(HEADS, 2 * KEYS, -1)[h])
            alone.values.weight.copy_(both.values.weight)
        expected = expected + alone(x, Frame()).y
    torch.testing.assert_close(both(x, Frame()).y, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.row("NAR-52", clause="query net with layer norm")
def test_a_query_is_normalised_over_its_own_channels() -> None:
    part, x = built(), tokens()
    torch.testing.assert_close(part(9 * x, Frame()).y, part(x, Frame()).y, atol=1e-3, rtol=1e-3)
    part.train()
    torch.testing.assert_close(part(x[:1, 3:4], Frame()).y, part(x, Frame()).y[:1, 3:4], atol=1e-6, rtol=1e-5)
    with pytest.raises(SpecError, match=r"norm: batch depends on other tokens\. Use layer, rms or scale"):
        ProductKeys(norm=BatchNorm())


@pytest.mark.row("NAR-52", clause="gradients of the value table are sparse")
def test_only_values_that_were_read_get_a_gradient() -> None:
    part, x = built(keys=32), tokens()
    with capture(part) as seen:
        part(x, Frame()).y.square().sum().backward()
    gradient, read = part.values.weight.grad, torch.zeros(32**2, dtype=torch.bool)
    read[seen["slots"][0].flatten()] = True
    assert gradient is not None and torch.equal(gradient.abs().amax(1) > 0, read)
    assert 0 < read.sum() <= 2 * 7 * HEADS * TOP < len(read) // 8


@pytest.mark.parametrize("key_dim", [2, 8])
def test_operations_equal_the_counter(key_dim: int) -> None:
    part, x = built(key_dim=key_dim), tokens().requires_grad_()
    with FlopCounterMode(display=False) as counter:
        part(x, Frame()).y.sum().backward()
    projections = 3 * 2 * 14 * part.query.weight.numel()
    assert counter.get_total_flops() == projections + sum(part.core_flops(Call(batch=2, length=7)))


def test_every_head_reads_the_only_value_of_a_memory_of_one() -> None:
    part, x = built(keys=1, top=1), tokens()
    torch.testing.assert_close(part(x, Frame()).y, HEADS * part.values.weight.expand(2, 7, DIM))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"key_dim": 5}, "key_dim=5 must be even"), ({"keys": 4, "top": 5}, "top=5 must be at most keys=4")],
)
def test_sizes_that_do_not_fit_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ProductKeys(**options)  # type: ignore[arg-type]


def test_a_memory_learns_a_table_of_facts() -> None:
    part, x = built(16, keys=16, key_dim=16, top=8), tokens(32, 16)
    facts, optimizer = tokens(32, 16, seed=2), torch.optim.Adam(part.parameters(), lr=0.03)
    for _ in range(150):
        loss = (part(x, Frame()).y - facts).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05 < facts.square().mean()
