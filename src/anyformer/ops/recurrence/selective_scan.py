"""The selective state space of Mamba: n states for each channel, whose step, input and output depend on the token.

h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t ;  y_t = C_t h_t          (arXiv 2312.00752, eq. 2 with its simplified B)

`selective_scan_loop` is the definition. `selective_scan` processes the sequence in blocks of tokens: the decays and
inputs of a block are computed at once, run through a linear scan and freed before the next block. The backward pass
recomputes them from the state at the start of each block, so that the saved memory grows with the length like the
input, not n times as fast. On a GPU with Triton all of it is one operator, `selective_scan_gpu`, and its backward pass
another; it saves its inputs and nothing else.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from anyformer.ops.devices import TRITON, at_least_float32, is_empty, no_autocast, supports_triton
from anyformer.ops.recurrence.linear_scan import linear_scan

if TRITON:
    from anyformer.ops.kernels.selective_scan_kernel import backward, forward

_BLOCK = {"cpu": 1 << 17, "cuda": 1 << 26}
"""Values of h in a block: the size of a CPU cache, or a small share of a GPU's memory."""
_LEAST_BLOCK = 16
_FORGET = 1e30
"""A step long enough to erase the state, but finite: its gradient is 0 and not NaN."""


def supports_selective_scan(x: Tensor) -> bool:
    """True for several tokens a row in float32 on an NVIDIA GPU with Triton."""
    return supports_triton(x) and x.dtype == torch.float32 and x.shape[1] > 1


@torch.library.custom_op("anyformer::selective_scan", mutates_args=())
def selective_scan_gpu(
    start: Tensor, a: Tensor, x: Tensor, dt: Tensor, decay_dt: Tensor, write: Tensor, read: Tensor
) -> tuple[Tensor, Tensor]:
    """y [b t d] and the last h [b n d], for inputs as `selective_scan` prepares them."""
    with torch.cuda.device_of(x):
        return forward(start, [a, x, dt, decay_dt, write, read])


@selective_scan_gpu.register_fake
def _(start: Tensor, a: Tensor, x: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
    return _alike(x), _alike(start)


@torch.library.custom_op("anyformer::selective_scan_backward", mutates_args=())
def _gradients(start: Tensor, inputs: list[Tensor], dy: Tensor, dlast: Tensor) -> list[Tensor]:
    with torch.cuda.device_of(dy):
        return backward(start, inputs, dy, dlast)


@_gradients.register_fake
def _(start: Tensor, inputs: list[Tensor], dy: Tensor, dlast: Tensor) -> list[Tensor]:
    return [_alike(tensor) for tensor in (start, *inputs)]


def _alike(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _backward(ctx: Any, dy: Tensor, dlast: Tensor) -> tuple[Tensor, ...]:
    start, *inputs = ctx.saved_tensors
    return tuple(_gradients(start, inputs, dy, dlast))


selective_scan_gpu.register_autograd(
    _backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


class SelectiveInputs(NamedTuple):
    """The inputs of a block of tokens."""

    x: Float[Tensor, "b t d"]
    dt: Float[Tensor, "b t d"]
    decay_dt: Float[Tensor, "b t d"]
    """The step size for the decay: dt, but very large where a document begins."""
    write: Float[Tensor, "b t n"]
    read: Float[Tensor, "b t n"]


def selective_scan(
    x: Float[Tensor, "b t d"],
    dt: Float[Tensor, "b t d"],
    a: Float[Tensor, "n d"],
    write: Float[Tensor, "b t n"],
    read: Float[Tensor, "b t n"],
    start: Float[Tensor, "b n d"] | None = None,
    begins: Bool[Tensor, "b t"] | None = None,
) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b n d"]]:
    """y of every token, and the last h. Requires A < 0; a token with dt = 0 changes nothing."""
    sequences, a, h = _prepared(x, dt, a, write, read, start, begins)
    with no_autocast(x):
        if supports_selective_scan(sequences.x):
            y, last = selective_scan_gpu(h, a, *sequences)
            return y, last
        if x.shape[1] == 1 or torch.compiler.is_compiling():  # a compiler chooses itself what to save
            decay = (sequences.decay_dt[:, :, None] * a).exp()  # [b t n d]
            inputs = sequences.write[..., None] * (sequences.dt * sequences.x)[:, :, None]
            states = linear_scan(decay, inputs, h)
            return (sequences.read[:, :, None] @ states).squeeze(2), states[:, -1]
        y, last = _Blocks.apply(h, a, *sequences)  # type: ignore[no-untyped-call]
        return y, last


def selective_scan_loop(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    write: Tensor,
    read: Tensor,
    start: Tensor | None = None,
    begins: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, token by token: the reference for the blocks."""
    sequences, a, h = _prepared(x, dt, a, write, read, start, begins)
    outputs = []
    for x_t, dt_t, decay_t, write_t, read_t in zip(*(sequence.unbind(1) for sequence in sequences), strict=True):
        h = (decay_t[:, None] * a).exp() * h + write_t[..., None] * (dt_t * x_t)[:, None]
        outputs.append((read_t[..., None] * h).sum(1))
    return torch.stack(outputs, dim=1), h


def _prepared(
    x: Tensor, dt: Tensor, a: Tensor, write: Tensor, read: Tensor, start: Tensor | None, begins: Tensor | None
) -> tuple[SelectiveInputs, Tensor, Tensor]:
    dtype = at_least_float32(x)
    x, dt, a, write, read = (y.to(dtype) for y in (x, dt, a, write, read))
    h = x.new_zeros(x.shape[0], *a.shape) if start is None else start.to(dtype)
    decay_dt = dt if begins is None else dt.masked_fill(begins[..., None], _FORGET)
    return SelectiveInputs(x, dt, decay_dt, write, read), a, h


class _Values(NamedTuple):
    """A buffer for one value of every state of every token of a block [b t n d], and views of its tokens [b n d]. All
    blocks reuse it: allocating would cost more than the arithmetic, and new views as much as the steps."""

    all: Tensor
    steps: tuple[Tensor, ...]


class _Blocks(torch.autograd.Function):
    """Processes block after block; the backward recomputes each block from its start state."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, a: Tensor, *sequences: Tensor) -> tuple[Tensor, Tensor]:
        if is_empty(h):  # only memory is counted: save tensors of the right size
            starts_shape = (len(sequences[0].split(_length(h), dim=1)), *h.shape)
            ctx.save_for_backward(a, *sequences, h.new_empty(starts_shape))
            return torch.empty_like(sequences[0]), torch.empty_like(h)
        decay, states, starts, outputs = _room(sequences, h), _room(sequences, h), [], []
        for block in _cut(sequences, h):
            starts.append(h)
            _make(h, a, block, decay, states)
            inside = states.all[:, : block.x.shape[1]]
            h = inside[:, -1].clone()
            outputs.append((block.read[:, :, None] @ inside).squeeze(2))
        ctx.save_for_backward(a, *sequences, *starts)
        return torch.cat(outputs, dim=1), h

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        (dy, dh), (a, *saved) = grads, ctx.saved_tensors
        sequences, starts = saved[: len(SelectiveInputs._fields)], saved[len(SelectiveInputs._fields) :]
        blocks, da = _cut(sequences, starts[0]), torch.zeros_like(a)
        room = [_room(sequences, starts[0]) for _ in range(3)]
        parts, pieces = dy.split(blocks[0].x.shape[1], dim=1), []
        with no_autocast(a):
            for start, block, part in zip(reversed(starts), reversed(blocks), reversed(parts), strict=True):
                dh, gradients = _block_backward(start, a, block, (part, dh, da), room)
                pieces.append(gradients)
        return dh, da, *(torch.cat(parts, dim=1) for parts in zip(*reversed(pieces), strict=True))


def _make(start: Tensor, a: Tensor, block: SelectiveInputs, decay: _Values, h: _Values) -> None:
    """Writes the decays and h of every token of a block into the buffers."""
    length = block.x.shape[1]
    torch.mul(block.decay_dt[:, :, None], a, out=decay.all[:, :length]).exp_()
    torch.mul(block.write[..., None], (block.dt * block.x)[:, :, None], out=h.all[:, :length])
    if start.device.type == "cpu":
        for decay_t, h_t in zip(decay.steps[:length], h.steps[:length], strict=True):
            start = h_t.addcmul_(decay_t, start)
    else:  # a single step is too little work for a GPU
        h.all[:, :length] = linear_scan(decay.all[:, :length], h.all[:, :length], start)


def _block_backward(
    start: Tensor, a: Tensor, block: SelectiveInputs, grads: tuple[Tensor, Tensor, Tensor], room: list[_Values]
) -> tuple[Tensor, SelectiveInputs]:
    """Gradients of the start state and of the inputs of one block; the gradient of A is added to `da`.

    g_t = C_t dy_t + decay_{t+1} g_{t+1} is the gradient of h_t, and g_t decay_t h_{t-1} that of dt_t A.
    """
    (dy, dh, da), length = grads, block.x.shape[1]
    decays, states, slopes = room
    decay, h, g = (values.all[:, :length] for values in room)
    _make(start, a, block, decays, states)
    torch.mul(block.read[..., None], dy[:, :, None], out=g)
    g[:, -1] += dh
    if dh.device.type == "cpu":
        for at in range(length - 2, -1, -1):
            slopes.steps[at].addcmul_(decays.steps[at + 1], slopes.steps[at + 1])
    else:
        following = torch.cat((decay[:, 1:], torch.zeros_like(decay[:, :1])), dim=1)
        g[:] = linear_scan(following.flip(1), g.flip(1)).flip(1)
    read = (h @ dy[..., None]).squeeze(-1)
    write = (g @ (block.dt * block.x)[..., None]).squeeze(-1)
    dtx = (block.write[:, :, None] @ g).squeeze(2)
    g.mul_(decay)
    before = g[:, 0].clone()  # gradient of the start state
    g[:, 0].mul_(start)
    g[:, 1:].mul_(h[:, :-1])
    da += torch.mul(g, block.decay_dt[:, :, None], out=h).sum((0, 1))
    decay_dt = g.mul_(a).sum(2)
    return before, SelectiveInputs(dtx * block.dt, dtx * block.x, decay_dt, write, read)


def selective_scan_flops(tokens: int, states: int, channels: int) -> tuple[int, int]:
    """FLOPs (forward, backward) of all matrix products: C h forward; the gradients of C, h and the input backward."""
    one = 2 * tokens * states * channels
    return one, 3 * one


@register_flop_formula(torch.ops.anyformer.selective_scan)
def _flops(start: torch.Size, *others: Any, out_shape: Any) -> int:
    (batch, length, channels), _ = out_shape
    return selective_scan_flops(batch * length, start[1], channels)[0]


@register_flop_formula(torch.ops.anyformer.selective_scan_backward)
def _flops_backward(start: torch.Size, inputs: Any, dy: torch.Size, *others: Any, out_shape: Any) -> int:
    return selective_scan_flops(dy[0] * dy[1], start[1], dy[2])[1]


def _length(h: Tensor) -> int:
    return max(_LEAST_BLOCK, _BLOCK.get(h.device.type, _BLOCK["cuda"]) // max(1, h.numel()))


def _cut(sequences: Sequence[Tensor], h: Tensor) -> list[SelectiveInputs]:
    return [SelectiveInputs(*pieces) for pieces in zip(*(x.split(_length(h), dim=1) for x in sequences), strict=True)]


def _room(sequences: Sequence[Tensor], h: Tensor) -> _Values:
    values = h.new_empty(h.shape[0], min(_length(h), sequences[0].shape[1]), *h.shape[1:])
    return _Values(values, values.unbind(1) if h.device.type == "cpu" else ())
