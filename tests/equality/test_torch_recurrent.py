"""Stacks of recurrent parts against torch's modules with the same weights: outputs, states and gradients."""

from functools import partial
from typing import Any

import pytest
import torch
from tests.conformance.translators import branch, translator
from tests.equality.comparing import lengths_mask, randomise, twin
from tests.equality.copying import Peer, Table, copy, gradients_of
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves

from anyformer.core import Frame, PartSpec, Site, decode
from anyformer.models import Block, Branch, Stack
from anyformer.models.stack import StackModule
from anyformer.parts.joins.replace import Replace

DIM, T = 16, 11
PEERS: dict[str, type[nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
every_kind = pytest.mark.parametrize(
    "kind",
    [
        pytest.param("rnn", marks=pytest.mark.row("RNN-01")),
        pytest.param("lstm", marks=pytest.mark.row("RNN-05")),
        pytest.param("gru", marks=pytest.mark.row("RNN-06")),
    ],
)


def stacked(part: PartSpec, depth: int, *, causal: bool = True) -> StackModule:
    """A stack in the classic sense: no norm, no residual."""
    layer = Block(branches=(Branch(part=part, place="none", join=Replace()),))
    return Stack(blocks={"layer": layer}, depth=depth).build(Site(dim=DIM, causal=causal))


def recurrent(read: Peer, ours: str, theirs: str, two: bool = True) -> Table:
    """One direction of one layer; the plain RNN has the sum of torch's two biases."""
    table = {f"{ours}input": (read(f"weight_ih_{theirs}"),), f"{ours}recurrent": (read(f"weight_hh_{theirs}"),)}
    first, second = read(f"bias_ih_{theirs}"), read(f"bias_hh_{theirs}")
    if two:
        return table | {f"{ours}input_bias": (first,), f"{ours}recurrent_bias": (second,)}
    return table | {f"{ours}bias": (first + second,)}


def layers(read: Peer, kind: str, depth: int) -> Table:
    pieces = (recurrent(read, f"layers.{n}.branches.0.part.", f"l{n}", kind != "rnn") for n in range(depth))
    return {name: tensors for piece in pieces for name, tensors in piece.items()}


def two_directions(read: Peer, depth: int) -> Table:
    table: Table = {}
    for n in range(depth):
        table |= recurrent(read, f"layers.{n}.branches.0.part.ahead.", f"l{n}")
        table |= recurrent(read, f"layers.{n}.branches.0.part.back.", f"l{n}_reverse")
    return table


def near(ours: Tensor, theirs: Tensor) -> None:
    """To a millionth in double precision; float32 rounds larger values by more."""
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0.0 if ours.dtype == torch.float64 else 1e-5)


def check_gradients(ours: StackModule, peer: nn.Module, table: Table, x: Tensor, y: Tensor) -> None:
    """To a millionth in double precision. Both biases of a plain RNN have the gradient of the sum."""
    assert x.grad is not None and y.grad is not None
    pairs = [(x.grad, y.grad), *((ours.get_parameter(name).grad, torch.cat(pieces)) for name, pieces in table.items())]
    for mine, other in pairs:
        assert mine is not None
        largest = 1.0 if mine.dtype == torch.float64 else 2 * max(1.0, other.abs().max().item())
        torch.testing.assert_close(mine, other, atol=1e-6 * largest, rtol=0)


@pytest.mark.row("RNN-01", clause="d_in d + d d + d parameters: one bias where torch has two")
@pytest.mark.row("RNN-03", clause="the head comes off the stack: it reads the top layer's state alone")
@pytest.mark.row(
    "RNN-04",
    clause=(
        "layer j reads layer j-1 at step t and its own state of step t-1",
        "the lowest layer reads the inputs x",
        "equals torch.nn.RNN(num_layers=N)",
    ),
)
@pytest.mark.row("RNN-05", clause="i, f, o are sigmoids and g a tanh of affine maps of [x_t; h_(t-1)]")
@pytest.mark.row("RNN-01", clause="outputs, final state and gradients equal torch.nn.RNN (tanh) to 1e-6")
@pytest.mark.row("RNN-05", clause="equals torch.nn.LSTM to 1e-6")
@pytest.mark.row("RNN-06", clause="equals torch.nn.GRU to 1e-6")
@every_kind
@pytest.mark.parametrize("depth", [1, 3])
def test_a_stack_equals_torch(kind: str, depth: int) -> None:
    peer = randomise(PEERS[kind](DIM, DIM, depth, batch_first=True)).double()
    ours = stacked(decode(PartSpec, {"kind": kind}), depth).double()
    copy(peer, ours, partial(layers, kind=kind, depth=depth))
    x, y = twin((3, T, DIM), torch.float64)
    out = ours(x, Frame(positions=torch.arange(T).expand(3, -1)), ours.init_state(3, T))
    theirs, last = peer(y)
    near(out.y, theirs)
    mine = torch.stack([torch.stack(tree_leaves(layer)) for layer in out.state])  # [layer carry b n]
    others = torch.stack(last if isinstance(last, tuple) else (last,))  # [carry layer b n]
    near(mine, others.transpose(0, 1))
    weight = torch.randn_like(theirs)
    ((out.y * weight).sum() + mine.square().sum()).backward()
    ((theirs * weight).sum() + others.square().sum()).backward()
    gradients = layers(gradients_of(peer), kind, depth)
    if kind == "rnn":
        gradients = {name: tuple(t / 2 if name.endswith("bias") else t for t in p) for name, p in gradients.items()}
    check_gradients(ours, peer, gradients, x, y)


@pytest.mark.row("RNN-07", clause="equals torch.nn.LSTM(bidirectional=True)")
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_two_directions_equal_torch(depth: int, padded: bool) -> None:
    peer = randomise(nn.LSTM(DIM, DIM // 2, depth, batch_first=True, bidirectional=True))
    ours = stacked(decode(PartSpec, {"kind": "bidirectional", "part": {"kind": "lstm"}}), depth, causal=False)
    copy(peer, ours, partial(two_directions, depth=depth))
    (x, y), lengths = twin((3, T, DIM)), [T, 4, 7] if padded else [T, T, T]
    valid = lengths_mask(lengths)
    packed = pack_padded_sequence(y, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    theirs = pad_packed_sequence(peer(packed)[0], batch_first=True)[0]
    mine = ours(x, Frame(valid=valid) if padded else Frame()).y
    near(mine[valid], theirs[valid])
    weight = torch.randn_like(theirs)
    (mine * weight)[valid].sum().backward()
    (theirs * weight)[valid].sum().backward()
    check_gradients(ours, peer, two_directions(gradients_of(peer), depth), x, y)


@every_kind
def test_padded_rows_leave_the_states_of_packed_sequences(kind: str) -> None:
    peer = randomise(PEERS[kind](DIM, DIM, batch_first=True))
    ours = stacked(decode(PartSpec, {"kind": kind}), 1)
    copy(peer, ours, partial(layers, kind=kind, depth=1))
    x, lengths = torch.randn(4, T, DIM), [6, T, 1, 7]
    packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    last = peer(packed)[1]
    frame = Frame(valid=lengths_mask(lengths), positions=torch.arange(T).expand(4, -1))
    state = ours(x, frame, ours.init_state(4, T)).state
    for mine, other in zip(tree_leaves(state), last if isinstance(last, tuple) else (last,), strict=True):
        near(mine, other[0])


@pytest.mark.row("SUM-01", clause="an LSTM encoder-decoder with additive (Bahdanau) attention")
@torch.no_grad()
def test_lstms_with_additive_attention_translate_as_torchs_cells_do() -> None:
    fed = {"kind": "attention_fed", "part": {"kind": "lstm"}, "look": {"kind": "additive_attention"}}
    both = {"kind": "bidirectional", "part": {"kind": "lstm"}}
    model: Any = randomise(translator([branch(both)], [branch(fed)], depth=1, vocab=11, dim=DIM).build()).eval()
    source, target = torch.randint(11, (2, 7)), torch.randint(11, (2, 5))
    reader, cell = nn.LSTM(DIM, DIM // 2, bidirectional=True, batch_first=True), nn.LSTMCell(2 * DIM, DIM)
    encoder, decoder = (half.stack.layers["0"].branches[0].part for half in (model.encoder, model.decoder))
    given = [*encoder.ahead.weights, *encoder.back.weights, *decoder.part.weights]
    for mine, theirs in zip(given, [*reader.parameters(), *cell.parameters()], strict=True):
        theirs.copy_(mine)
    memory = model.encode(source, Frame())
    h, _ = reader(model.encoder.embedding(source))
    near(memory.x, h)
    state, said, look = (torch.zeros(2, DIM), torch.zeros(2, DIM)), [], decoder.look
    for x in model.encoder.embedding(target).unbind(1):
        e = torch.tanh(look.query(state[0])[:, None] + look.key(h)) @ look.score.weight[0]
        state = cell(torch.cat((x, torch.einsum("bs,bsd->bd", e.softmax(-1), h)), dim=-1), state)
        said.append(state[0])
    near(model(target, Frame(memory=memory), logits=False).y, torch.stack(said, dim=1))
