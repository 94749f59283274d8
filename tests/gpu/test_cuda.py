"""On a GPU: every kind gives the CPU's numbers, and the fused paths give the reference's."""

from collections.abc import Iterator

import pytest
import torch
from tests.conformance.memories import each
from tests.conformance.probes import near
from tests.conformance.subjects import names, subject_named
from torch import Tensor
from torch.utils._pytree import tree_map

from anyformer.core import (
    Causal,
    Frame,
    Full,
    Heads,
    Marks,
    MaskRule,
    ModelSpec,
    PositionSpec,
    Site,
    decode,
    initialise,
)
from anyformer.ops.attention.attend import dispatch
from anyformer.ops.attention.call import AttentionCall, attention_weights, weighted_sum
from anyformer.ops.attention.flex import block_mask, prefers_flex
from anyformer.parts.inits.normal import NormalInit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

LENGTH = 384
SPARSE = [
    {"kind": "window", "size": 50},
    {"kind": "block_local", "size": 64},
    {"kind": "strided", "stride": 32},
    {"kind": "random_blocks", "block": 32, "count": 2},
    {"kind": "or", "rules": [{"kind": "window", "size": 40}, {"kind": "global_tokens", "tokens": 3}]},
]


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield


@pytest.mark.parametrize("name", names())
def test_the_gpu_gives_the_numbers_of_the_cpu(name: str) -> None:
    subject = subject_named(name)
    tokens, memory = subject.tokens(), subject.memory(3)
    there = each(memory, Tensor.cuda)
    with torch.no_grad():
        here = subject.run(tokens, Frame(memory=memory))
        near(subject.run(tokens.cuda(), Frame(memory=there), model=subject.fresh().cuda()).cpu(), here, 1e-4)


@pytest.mark.parametrize("rule", SPARSE, ids=lambda rule: str(rule["kind"]))
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_flex_equals_the_written_out_mask(rule: dict[str, object], causal: bool) -> None:
    found = decode(MaskRule, rule) & (Causal() if causal else Full())
    _compare(found, None)


@pytest.mark.parametrize("kind", ["alibi", "t5_bias", "shaw", "xl"])
def test_flex_equals_the_written_out_bias(kind: str) -> None:
    _compare(Causal(), kind)


def test_a_block_mask_is_built_once() -> None:
    first, again = (decode(MaskRule, SPARSE[0]).text for _ in range(2))
    q = torch.randn(1, LENGTH, 4, 32, device="cuda")
    assert block_mask(first, q, q) is block_mask(again, q, q)


@pytest.mark.compile
@pytest.mark.parametrize(
    "part", [{"mask": SPARSE[0]}, {"position": {"kind": "alibi"}}, {"position": {"kind": "t5_bias"}}]
)
def test_a_model_on_the_flex_path_compiles_to_one_graph(part: dict[str, object]) -> None:
    branches = [{"part": {"kind": "attention", "heads": 4, **part}}, {"part": {"kind": "mlp"}}]
    stack = {"depth": 2, "blocks": {"layer": {"branches": branches}}}
    model = decode(ModelSpec, {"kind": "decoder", "vocab": 29, "dim": 128, "stack": stack}).build(device="cuda")
    tokens = torch.arange(256, device="cuda")[None] % 29
    expected = model(tokens, Frame()).y
    compiled = torch.compile(model, fullgraph=True)
    near(compiled(tokens, Frame()).y, expected, 1e-4)
    compiled(tokens, Frame()).y.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def _compare(rule: MaskRule, kind: str | None) -> None:
    inputs = [torch.randn(2, LENGTH, 4, 32, device="cuda", requires_grad=True) for _ in range(3)]
    marks = Marks(torch.arange(LENGTH, device="cuda")[None])
    sight = AttentionCall(rule, marks, marks, plain=True)
    q, k, v = inputs
    position = _position(kind)
    bias = position.bias(q, k, marks, marks) if position else None
    assert prefers_flex(q, k, sight, bias)
    fast = dispatch(q, k, v, sight, scale=0.2, bias=bias)
    slow = weighted_sum(attention_weights(q, k, sight, scale=0.2, bias=bias), v)
    near(fast, slow, 1e-4)
    weight = torch.randn_like(slow)
    for mine, theirs in zip(_gradients(fast, inputs, weight), _gradients(slow, inputs, weight), strict=True):
        near(mine, theirs, 1e-3)


def _position(kind: str | None):  # type: ignore[no-untyped-def]
    if kind is None:
        return None
    site = Site(dim=128)
    module = decode(PositionSpec, {"kind": kind}).build(site, Heads(4, 32, 0.2))
    module.kept = site.shared  # owns a table on loan
    initialise(module, NormalInit(deviation=0.5), seed=0)
    return module.cuda()


def _gradients(y: Tensor, inputs: list[Tensor], weight: Tensor) -> list[Tensor]:
    return list(tree_map(torch.clone, torch.autograd.grad((y * weight).sum(), inputs, retain_graph=True)))
