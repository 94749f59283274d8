"""Recurrent cells over a sequence: RNN, LSTM and GRU, with padding, packed documents and an initial state.

`recur_loop` is the definition: the cell, token by token. An invalid token keeps the state and outputs zeros; a token
that begins a document starts from a zero state. `recur` runs torch's fused kernels, which support neither: it copies
every document to a row of its own, without invalid tokens, and runs rows of similar lengths together. Weights and the
order of gates are torch's: LSTM i f g o, GRU r z n.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from anyformer.core.module import Call
from anyformer.ops.devices import at_least_float32, is_empty

_UNROLLED = 32
"""Longest call that is unrolled in a compiled graph; longer calls break the graph for the fused kernel."""
_FORGET_NOTHING = 1e4
_IDLE_ROWS = {"cpu": 8, "cuda": 128}
"""Fixed cost of one kernel step, expressed in rows, for rnn to lstm of 256 to 1,024 units. Measured by
`python -m benchmarks.recurrent`."""
_ROOM = 2
"""Most tokens of the padded rows, as a multiple of the tokens of the batch."""

Carry: TypeAlias = tuple[Tensor, ...]
"""The state of a cell, [b n] each: h first, then an LSTM's c."""


class Weights(NamedTuple):
    """The weights of k gates of n units each."""

    input: Tensor
    """[k*n d]"""
    recurrent: Tensor
    """[k*n n]"""
    input_bias: Tensor | None = None
    recurrent_bias: Tensor | None = None


class Cell(NamedTuple):
    """A recurrent cell: one step, and the fused kernel for many steps."""

    gates: int
    carries: int
    step: Callable[[Tensor, Weights, Carry], Carry]
    """(input part of the gates [b k*n], weights, carry) -> the next carry."""
    kernel: Callable[..., tuple[Tensor, ...]]
    saved: int
    """Values per unit that the kernel saves for its backward, besides input and output."""
    hold: tuple[float, ...] = ()
    """Gate offsets that make a step keep the state, if the kernel returns that for the last step only (LSTM's c)."""


def recur(
    cell: Cell,
    weights: Weights,
    x: Float[Tensor, "b t d"],
    start: Carry | None = None,
    valid: Bool[Tensor, "b t"] | None = None,
    begins: Bool[Tensor, "b t"] | None = None,
) -> tuple[Float[Tensor, "b t n"], Carry | None]:
    """h of every token, and the carry after the last token if `start` was passed."""
    if is_empty(x):
        h: Tensor = _FusedShape.apply(x, weights.input, weights.recurrent.shape[1], cell.saved)  # type: ignore[no-untyped-call]
        return h, None if start is None else tuple(h[:, -1].to(leaf.dtype) for leaf in start)
    compiling = torch.compiler.is_compiling()
    # a dispatch mode counts or fakes operations, which a fused kernel would hide
    if x.shape[1] <= _UNROLLED if compiling else x.shape[1] == 1 or torch._C._len_torch_dispatch_stack():
        y, last = recur_loop(cell, weights, x, start, valid, begins)
        return y, None if start is None else last
    # not as a decorator, which would import the compiler in every command
    run = torch.compiler.disable(_recur_fused) if compiling else _recur_fused
    y, left = run(cell, weights, x, start, valid, begins)
    return y, left


def recur_loop(
    cell: Cell,
    weights: Weights,
    x: Float[Tensor, "b t d"],
    start: Carry | None = None,
    valid: Bool[Tensor, "b t"] | None = None,
    begins: Bool[Tensor, "b t"] | None = None,
) -> tuple[Float[Tensor, "b t n"], Carry]:
    """The definition, token by token: the reference for the fused kernels. The carry is at least float32."""
    carry, hidden = start or zero_carry(cell, weights, x), []
    gates = F.linear(x, weights.input, weights.input_bias)  # [b t k*n]
    for t in range(x.shape[1]):
        if begins is not None:
            carry = tuple(leaf.masked_fill(begins[:, t, None], 0.0) for leaf in carry)
        following = cell.step(gates[:, t], weights, carry)
        if valid is not None:
            live = valid[:, t, None]
            following = tuple(new.where(live, old) for new, old in zip(following, carry, strict=True))
        carry = following
        hidden.append(carry[0])
    y = torch.stack(hidden, dim=1).to(gates.dtype)
    return y if valid is None else y.masked_fill(~valid[..., None], 0.0), carry


def zero_carry(cell: Cell, weights: Weights, x: Tensor) -> Carry:
    """The initial carry: zeros."""
    units = weights.recurrent.shape[1]
    return tuple(x.new_zeros(x.shape[0], units, dtype=at_least_float32(x)) for _ in range(cell.carries))


def recurrence_flops(weights: Weights, call: Call) -> tuple[int, int]:
    """FLOPs (forward, backward) of all matrix products. The zeros before the first step need no gradient."""
    step = 2 * call.batch * weights.recurrent.numel()
    forward = 2 * call.batch * call.length * weights.input.numel() + call.length * step
    return forward, 2 * forward - (0 if call.state_learns else step)


def _recurrent_gates(weights: Weights, h: Tensor) -> Tensor:
    return F.linear(h.to(weights.recurrent.dtype), weights.recurrent, weights.recurrent_bias)


def _rnn_step(gates: Tensor, weights: Weights, carry: Carry) -> Carry:
    (h,) = carry
    return ((gates + _recurrent_gates(weights, h)).tanh().to(h.dtype),)


def _lstm_step(gates: Tensor, weights: Weights, carry: Carry) -> Carry:
    h, c = carry
    i, f, g, o = (gates + _recurrent_gates(weights, h)).chunk(4, dim=-1)
    c = f.sigmoid() * c + (i.sigmoid() * g.tanh()).to(c.dtype)
    return (o.sigmoid() * c.tanh()).to(h.dtype), c


def _gru_step(gates: Tensor, weights: Weights, carry: Carry) -> Carry:
    (h,) = carry
    (r, z, n), (hr, hz, hn) = gates.chunk(3, dim=-1), _recurrent_gates(weights, h).chunk(3, dim=-1)
    z = (z + hz).sigmoid()
    n = (n + (r + hr).sigmoid() * hn).tanh()
    return ((1 - z) * n + z * h,)


RNN_CELL = Cell(1, 1, _rnn_step, torch.rnn_tanh, saved=1)
LSTM_CELL = Cell(4, 2, _lstm_step, torch.lstm, saved=6, hold=(-_FORGET_NOTHING, _FORGET_NOTHING, 0.0, 0.0))
GRU_CELL = Cell(3, 1, _gru_step, torch.gru, saved=5)


def _recur_fused(
    cell: Cell, weights: Weights, x: Tensor, start: Carry | None, valid: Tensor | None, begins: Tensor | None
) -> tuple[Tensor, Carry | None]:
    carry = start or zero_carry(cell, weights, x)
    if valid is None and (begins is None or not begins[:, 1:].any()):
        if begins is not None:
            carry = tuple(leaf.masked_fill(begins[:, :1], 0.0) for leaf in carry)
        y, last = _run(cell, weights, x, carry)
        return y, None if start is None else last
    tokens, pieces, places, left = x.flatten(0, 1), [], [], carry
    for rows, fresh, final, lengths, at in _groups(x, valid, begins):
        run = tokens.index_select(0, at.flatten()).unflatten(0, at.shape)
        began = tuple(leaf.index_select(0, rows).masked_fill(fresh[:, None], 0.0) for leaf in carry)
        inside = torch.arange(run.shape[1], device=x.device) < lengths[:, None]
        y, last = _run_held(cell, weights, run, began, inside) if start else _run(cell, weights, run, began)
        last = (y[torch.arange(len(y), device=x.device), lengths - 1].to(last[0].dtype), *last[1:])
        if start:
            pairs = zip(left, last, strict=True)
            left = tuple(leaf.index_copy(0, rows[final], new[final]) for leaf, new in pairs)
        pieces.append(y[inside])
        places.append(at[inside])
    if not pieces:
        return x.new_zeros(*x.shape[:2], weights.recurrent.shape[1]), start
    y = torch.cat(pieces)
    y = y.new_zeros(len(tokens), y.shape[1]).index_copy(0, torch.cat(places), y)
    return y.unflatten(0, x.shape[:2]), None if start is None else left


def _run(cell: Cell, weights: Weights, x: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
    """Runs rows without gaps through the kernel, in the dtype of x."""
    began = tuple(leaf.to(x.dtype)[None].contiguous() for leaf in carry)
    flat = [weight for weight in weights if weight is not None]
    biased, train = weights.input_bias is not None, torch.is_grad_enabled()
    if biased and weights.recurrent_bias is None:
        flat.append(torch.zeros_like(flat[-1]))  # the kernels take both biases or none
    # cuDNN copies weights that do not lie side by side, and warns; the copy costs little beside the steps
    with warnings.catch_warnings(action="ignore", category=UserWarning) if x.is_cuda else nullcontext():
        y, *last = cell.kernel(x, began if cell.carries > 1 else began[0], flat, biased, 1, 0.0, train, False, True)
    return y, tuple(leaf[0].to(old.dtype) for leaf, old in zip(last, carry, strict=True))


def _run_held(cell: Cell, weights: Weights, x: Tensor, carry: Carry, inside: Tensor) -> tuple[Tensor, Carry]:
    """Runs padded rows so that padding keeps the state: an extra input marks it and sets the gates."""
    if not cell.hold or bool(inside.all()):
        return _run(cell, weights, x, carry)
    units = weights.recurrent.shape[1]
    column = weights.input.new_tensor(cell.hold).repeat_interleave(units)[:, None]
    marked = torch.cat((x, (~inside)[..., None].type_as(x)), dim=-1)
    return _run(cell, weights._replace(input=torch.cat((weights.input, column), dim=1)), marked, carry)


def _groups(
    x: Tensor, valid: Tensor | None, begins: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """Groups of m documents of similar lengths, the longest first: row of the batch [m]; whether the document begins
    here and does not continue from the state [m]; whether it is the last of its row, whose final state is returned [m];
    length [m]; and the indices of its tokens in [b*t], padded with the last one [m l]."""
    b, t = x.shape[:2]
    valid = torch.ones(b, t, dtype=torch.bool, device=x.device) if valid is None else valid
    begins = torch.zeros_like(valid) if begins is None else begins & valid
    opens = begins | (valid & (valid.cumsum(1) == 1))  # a row's first token may continue the document in the state
    tokens = valid.flatten().nonzero()[:, 0]
    number = opens.flatten().cumsum(0)[tokens] - 1  # [m]: the document of each token
    lengths = torch.bincount(number)
    first = lengths.cumsum(0) - lengths
    opening = tokens[first] if len(first) else first
    rows, fresh = opening // t, begins.flatten()[opening]
    final = torch.ones_like(fresh)
    final[:-1] = rows[1:] != rows[:-1]
    lengths, order = lengths.sort(descending=True, stable=True)
    for part in _fitting(lengths.cpu(), _IDLE_ROWS.get(x.device.type, _IDLE_ROWS["cuda"]), _ROOM * b * t):
        chosen = order[part]
        at = torch.arange(int(lengths[part][0]), device=x.device).minimum(lengths[part][:, None] - 1)
        yield rows[chosen], fresh[chosen], final[chosen], lengths[part], tokens[first[chosen][:, None] + at]


def _fitting(lengths: Tensor, idle: int, room: int) -> list[slice]:
    """Slices of documents whose padded rows have at most `room` tokens."""
    parts = list(_cuts(lengths, idle))
    filled = sum(int(lengths[part.start]) * (part.stop - part.start) for part in parts)
    return _fitting(lengths, idle // 2, room) if idle and filled > room else parts


def _cuts(lengths: Tensor, idle: int, start: int = 0) -> Iterator[slice]:
    """Splits sorted documents where the steps that shorter rows save exceed the extra kernel steps."""
    saved = (lengths[:1] - lengths) * torch.arange(len(lengths), 0, -1) - idle * lengths
    place = int(saved.argmax()) if len(lengths) else 0
    if place and saved[place] > 0:
        yield from _cuts(lengths[:place], idle, start)
        yield from _cuts(lengths[place:], idle, start + place)
    elif len(lengths):
        yield slice(start, start + len(lengths))


class _FusedShape(torch.autograd.Function):
    """The output shape on meta tensors, saving for the backward what a fused kernel saves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, units: int, saved: int) -> Tensor:
        y = x.new_empty(*x.shape[:2], units)
        ctx.save_for_backward(x, y, x.new_empty(*x.shape[:2], saved * units))
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        raise NotImplementedError("there are no values.")
