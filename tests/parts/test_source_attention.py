"""Attention of recurrent and convolutional decoders to a source: the equations, written out."""

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.core import Frame, Memory, PartSpec, Site, StackPlace, capture, decode, initialise
from anyformer.errors import SpecError
from anyformer.parts.inits.normal import NormalInit
from anyformer.training import load

DIM, S = 8, 5
KINDS = ["additive_attention", "luong_attention", "multi_step_attention"]


def look(kind: str, memory_dim: int = DIM, **fields: Any) -> Any:
    spec = decode(PartSpec, {"kind": "cross", "part": {"kind": kind, **fields}})
    part = spec.build(Site(dim=DIM, memory_dim=memory_dim))
    initialise(part, NormalInit(deviation=0.5), seed=0)
    return part


def source(memory_dim: int = DIM) -> Memory:
    return Memory(x=torch.randn(2, S, memory_dim), inputs=torch.randn(2, S, memory_dim))


@pytest.mark.row(
    "RNN-10",
    clause=(
        "scores s_t . h_i against every encoder state h_1..h_N",
        "alpha^t = softmax of the scores, and it sums to 1",
        "context a_t = sum_i alpha_i h_i",
        "output layer reads tanh(W_c [a_t; s_t])",
        "agrees with an einsum reference of the equations",
    ),
)
@pytest.mark.parametrize(("score", "width"), [("dot", DIM), ("general", 6)])
def test_luongs_attention_is_its_equation(score: str, width: int) -> None:
    part, memory, s = look("luong_attention", width, score=score), source(width), torch.randn(2, 4, DIM)
    h = memory.x
    e = torch.einsum("btd,bsd->bts", s, h if part.key is None else part.key(h))
    a = torch.einsum("bts,bsd->btd", e.softmax(-1), h)
    expected = torch.tanh(torch.cat((a, s), dim=-1) @ part.out.weight.T)
    torch.testing.assert_close(part(s, Frame(memory=memory)).y, expected)


@pytest.mark.row("SUM-01", clause="attention equals v . tanh(W_s s + W_h h_i), softmax, weighted sum")
@pytest.mark.row(
    "RNN-11", clause=("score v . tanh(W_s s_(t-1) + W_h h_i)", "agrees with the equations written out directly")
)
@pytest.mark.parametrize("width", [DIM, 6])
def test_additive_attention_is_its_equation(width: int) -> None:
    part, memory, s = look("additive_attention", width, hidden=7), source(width), torch.randn(2, 4, DIM)
    e = torch.zeros(2, 4, S)
    for t in range(4):
        for i in range(S):
            e[:, t, i] = (torch.tanh(part.query(s[:, t]) + part.key(memory.x[:, i])) * part.score.weight[0]).sum(-1)
    c = torch.einsum("bts,bsd->btd", e.softmax(-1), memory.x)
    torch.testing.assert_close(part(s, Frame(memory=memory)).y, c if part.out is None else part.out(c))


@pytest.mark.row("SUM-01", clause="attention passes gradcheck")
@pytest.mark.row("RNN-11", clause="gradcheck passes")
def test_the_gradient_of_additive_attention_is_right() -> None:
    part = look("additive_attention").double()
    s, h = (torch.randn(1, n, DIM, dtype=torch.double, requires_grad=True) for n in (2, 3))
    assert torch.autograd.gradcheck(lambda s, h: part(s, Frame(memory=Memory(x=h))).y, (s, h))


@pytest.mark.row("WMT-04", clause="softmax of d . z weights the sum of z + e, source embedding added")
def test_multi_step_attention_is_its_equation() -> None:
    part, memory, h, g = look("multi_step_attention"), source(), torch.randn(2, 4, DIM), torch.randn(2, 4, DIM)
    assert memory.inputs is not None
    d = part.query(h) + g
    a = torch.einsum("btd,bsd->bts", d, memory.x).softmax(-1)
    c = torch.einsum("bts,bsd->btd", a, memory.x + memory.inputs)
    torch.testing.assert_close(part(h, Frame(memory=memory, place=StackPlace(inputs=g))).y, c)


@pytest.mark.row(
    "WMT-04",
    clause=(
        "multi-step attention: query W h_i + b + g_i in every decoder layer",
        "attention weights of every decoder layer sum to 1",
    ),
)
def test_every_layer_of_convs2s_looks_with_its_state_and_the_word_it_stands_on() -> None:
    model: Any = load("convs2s", f"model.encoder.dim={DIM}", f"model.decoder.dim={DIM}").build(seed=0).eval()
    words: list[Tensor] = []
    states: list[Tensor] = []
    model.decoder.stack.register_forward_pre_hook(lambda _stack, args: words.append(args[0]))
    queries = [part for name, part in model.decoder.named_modules() if name.endswith(".query")]
    for query in queries:
        query.bias.data.normal_()
        query.register_forward_pre_hook(lambda _query, args: states.append(args[0]))
    memory = model.encode(torch.arange(7)[None], Frame())
    with capture(model, "*.pattern") as seen:
        model(torch.arange(6)[None], Frame(memory=memory))
    patterns = [calls[0] for calls in seen.values()]
    assert len(patterns) == len(states) == len(model.decoder.stack.calls()) == 4
    for query, h, pattern in zip(queries, states, patterns, strict=True):
        d = h @ query.weight.T + query.bias + words[0]
        torch.testing.assert_close(pattern, torch.einsum("btd,bsd->bts", d, memory.x).softmax(-1))
        torch.testing.assert_close(pattern.sum(-1), torch.ones(1, 6))


@pytest.mark.row("RNN-10", clause="alpha^t = softmax of the scores, and it sums to 1")
@pytest.mark.row("WMT-04")
@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_the_source_sum_to_one_and_padding_has_none(kind: str) -> None:
    part, valid = look(kind), torch.tensor([[True] * S, [True] * 3 + [False] * 2])
    with capture(part) as seen:
        part(torch.randn(2, 4, DIM), Frame(memory=Memory(x=torch.randn(2, S, DIM), valid=valid)))
    (pattern,) = seen["pattern"]
    torch.testing.assert_close(pattern.sum(-1), torch.ones(2, 4))
    assert not pattern[1, :, 3:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_target_sees_the_source_of_its_own_segment(kind: str) -> None:
    part, x, h = look(kind), torch.randn(1, 6, DIM), torch.randn(1, S, DIM)
    memory = Memory(x=h, segments=torch.tensor([[0, 0, 0, 1, 1]]))
    packed = part(x, Frame(memory=memory, segments=torch.tensor([[0, 0, 1, 1, 1, 1]]))).y
    alone = [
        part(x[:, a], Frame(memory=Memory(x=h[:, b]))).y for a, b in ((slice(2), slice(3)), (slice(2, 6), slice(3, 5)))
    ]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1))


@pytest.mark.parametrize("kind", KINDS)
def test_they_look_at_an_encoder_only(kind: str) -> None:
    with pytest.raises(SpecError, match="inside cross"):
        decode(PartSpec, {"kind": kind}).place(Site(dim=DIM))
    with pytest.raises(SpecError, match=f"{kind} needs the encoder's output"):
        look(kind)(torch.randn(2, 4, DIM), Frame())


def bahdanau(memory: Memory, x: Tensor) -> tuple[Any, Tensor]:
    """`attention_fed` as a part, and its equations with torch's own cell."""
    look = {"kind": "additive_attention"}
    spec = decode(PartSpec, {"kind": "attention_fed", "part": {"kind": "gru"}, "look": look})
    part: Any = spec.build(Site(dim=DIM, memory_dim=DIM))
    initialise(part, NormalInit(deviation=0.5), seed=0)
    cell = torch.nn.GRUCell(2 * DIM, DIM)
    with torch.no_grad():
        for mine, theirs in zip(part.part.weights, cell.parameters(), strict=True):
            theirs.copy_(mine)
    s, said = torch.zeros(x.shape[0], DIM), []
    for t in range(x.shape[1]):
        e = torch.tanh(part.look.query(s)[:, None] + part.look.key(memory.x)) @ part.look.score.weight[0]
        c = torch.einsum("bs,bsd->bd", e.softmax(-1), memory.x)
        s = cell(torch.cat((x[:, t], c), dim=-1), s)
        said.append(s)
    return part, torch.stack(said, dim=1)


@pytest.mark.row(
    "RNN-11",
    clause=(
        "score v . tanh(W_s s_(t-1) + W_h h_i)",
        "context c_t = sum_i alpha_ti h_i is fed to the decoder GRU",
        "each output step receives a context of its own",
        "agrees with the equations written out directly",
    ),
)
def test_the_decoder_finds_its_next_input_with_its_last_state() -> None:
    memory, x = source(), torch.randn(2, 6, DIM)
    part, expected = bahdanau(memory, x)
    torch.testing.assert_close(part(x, Frame(memory=memory)).y, expected)
