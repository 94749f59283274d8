"""Linear time-invariant state spaces, one for each channel, in three equivalent forms.

continuous x' = A x + B u, y = C x ;  recurrent x_t = A' x_{t-1} + B' u_t, y_t = C x_t ;  convolution y = K * u with
K_l = C A'^l B' .

`state_space_loop` is the recurrent form and the definition; `convolve` is the convolution by FFT, whose rounding errors
leak from the future into the past. `state_space_scan` combines both: a convolution, as a matrix product, inside chunks,
and the recurrence from chunk to chunk as a parallel scan of log2(chunks) levels. If documents begin inside a chunk, the
convolution is a masked sum over lags.
"""

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core.module import Call
from anyformer.ops.padding import compact, cut, take

CHUNK = 64
_PACKED_CHUNK = 16


@runtime_checkable
class Dynamics(Protocol):
    """A discrete state space of s real states for each channel, as matrices for chunks of l tokens."""

    def kernel(self, length: int) -> Float[Tensor, "d l"]:
        """The convolution kernel K_0 .. K_{l-1}."""

    def write(self, length: int) -> Float[Tensor, "d l s"]:
        """A'^{l-1-j} B': the contribution of token j to the state at the end of the chunk."""

    def read(self, length: int) -> Float[Tensor, "d s l"]:
        """C A'^{i+1}: the contribution of the state before the chunk to the output of token i."""

    def advance(self, x: Float[Tensor, "*b d s"], steps: int | Int[Tensor, " b"]) -> Float[Tensor, "*b d s"]:
        """A'^steps x, with one number of steps for all states, or one (at most a chunk) for each row of [b d s]."""

    @property
    def states(self) -> int: ...


def state_space_scan(
    dynamics: Dynamics,
    u: Float[Tensor, "b t d"],
    start: Float[Tensor, "b d s"] | None = None,
    begins: Bool[Tensor, "b t"] | None = None,
    valid: Bool[Tensor, "b t"] | None = None,
) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b d s"] | None]:
    """y of every token, and the last state if `start` was passed. The state is reset before a token of `begins`;
    invalid tokens are skipped."""
    if valid is None:
        return _scan(dynamics, u, start, begins, u.shape[1])
    places = compact(valid)
    u = take(u.masked_fill(~valid[..., None], 0.0), places.order)
    y, last = _scan(dynamics, u, start, None if begins is None else take(begins, places.order), places.lengths)
    return take(y, places.back), last


def state_space_loop(
    dynamics: Dynamics, u: Tensor, start: Tensor | None = None, begins: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, token by token: the reference for the chunks."""
    x = u.new_zeros(u.shape[0], u.shape[2], dynamics.states) if start is None else start
    now, write, read, outputs = dynamics.kernel(1)[:, 0], dynamics.write(1)[:, 0], dynamics.read(1)[:, :, 0], []
    for at in range(u.shape[1]):
        if begins is not None:
            x = x.masked_fill(begins[:, at, None, None], 0.0)
        outputs.append((x * read).sum(-1) + now * u[:, at])
        x = dynamics.advance(x, 1) + u[:, at, :, None] * write
    return torch.stack(outputs, dim=1), x


def convolve(kernel: Float[Tensor, "d t"], u: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
    """y = K * u over the complete sequence by FFT, in O(t log t)."""
    t = u.shape[1]
    product = torch.fft.rfft(u, n=2 * t, dim=1) * torch.fft.rfft(kernel, n=2 * t).T
    y: Tensor = torch.fft.irfft(product, n=2 * t, dim=1)[:, :t]
    return y


def chunks_of(call: Call) -> tuple[int, int]:
    """(number, length) of the chunks of one scan; a call with a state has positions, as packed documents have."""
    chunk = min(call.length, _PACKED_CHUNK if call.past else CHUNK)
    return -(-call.length // chunk), chunk


def chunk_steps(chunks: int) -> int:
    """How many states are advanced to find that before each chunk: n + n/2 + n/4 + .. for n chunks without the last."""
    before = chunks - 1
    return 2 * before - before.bit_count()


def state_space_flops(call: Call, channels: int, states: int) -> int:
    """FLOPs of the matrix products of one scan without packed documents; the backward pass has twice as many."""
    chunks, chunk = chunks_of(call)
    token = 2 * call.batch * chunk * channels
    several = chunk > 1  # a sum over a single token is not a matrix product
    if call.past:  # read every starting state; write to each of them and to the last one
        return token * states * (chunks + (chunks + 1 if several else 0))
    within = token * chunk * chunks if several else 0
    return within + (2 * token * states * chunks if chunks > 1 else 0)


def _scan(
    dynamics: Dynamics, u: Tensor, start: Tensor | None, begins: Tensor | None, count: int | Tensor
) -> tuple[Tensor, Tensor | None]:
    """The scan of rows of which the first `count` tokens are valid."""
    t, chunk = u.shape[1], min(u.shape[1], CHUNK if begins is None else _PACKED_CHUNK)
    pieces = cut(u, chunk)  # [b m l d]
    document = None if begins is None else cut(begins, chunk).cumsum(2)  # [b m l]
    y = _within_chunks(dynamics.kernel(chunk), pieces, document)
    if start is None and pieces.shape[1] == 1:
        return y.flatten(1, 2)[:, :t], None
    starts = _starts(dynamics, pieces, document, start)
    seen = torch.einsum("bmds,dsl->bmld", starts, dynamics.read(chunk))
    y = y + (seen if document is None else seen.masked_fill((document > 0)[..., None], 0.0))
    last = None if start is None else _last(dynamics, pieces, document, starts, count)
    return y.flatten(1, 2)[:, :t], last


def _within_chunks(kernel: Tensor, u: Tensor, document: Tensor | None) -> Tensor:
    """The convolution inside every chunk of [b m l d]: one Toeplitz matrix for each channel; with documents lag by lag,
    so that no large tensor is saved."""
    length = kernel.shape[1]
    if document is None:
        windows = F.pad(kernel, (length - 1, 0)).flip(1).unfold(1, length, 1)  # [d l l], the last row first
        return torch.einsum("bmjd,dij->bmid", u, windows.flip(1))
    y = u * kernel[:, 0]
    for lag in range(1, length):
        same = (document[..., lag:] == document[..., :-lag])[..., None]
        y = y + F.pad((u[:, :, :-lag] * kernel[:, lag]) * same, (0, 0, lag, 0))
    return y


def _starts(dynamics: Dynamics, u: Tensor, document: Tensor | None, start: Tensor | None) -> Tensor:
    """[b m d s]: the state before every chunk."""
    chunk = u.shape[2]
    if document is not None:
        u = u.masked_fill((document != document[..., -1:])[..., None], 0.0)
    added = torch.einsum("bmjd,djs->bmds", u, dynamics.write(chunk))[:, :-1]
    first = added.new_zeros(len(u), 1, *added.shape[2:]) if start is None else start.to(added.dtype)[:, None]
    cleared = None if document is None else document[:, :-1, -1] > 0
    return _scan_chunks(dynamics, chunk, added, cleared, first)


def _scan_chunks(
    dynamics: Dynamics,
    steps: int,
    added: Float[Tensor, "b m d s"],
    cleared: Tensor | None,
    first: Float[Tensor, "b 1 d s"],
) -> Float[Tensor, "b m+1 d s"]:
    """x_0 = `first` and x_{i+1} = A'^steps x_i + added_i for [b m d s], where x_i counts as 0 if cleared_i, by halving:
    the recurrence of pairs of chunks gives every second state, and one step from these gives the others."""
    if added.shape[1] == 0:
        return first
    even, odd = added[:, ::2], added[:, 1::2]
    pairs = _step(dynamics, steps, even[:, : odd.shape[1]], None if cleared is None else cleared[:, 1::2]) + odd
    cleared_pairs = None if cleared is None else cleared[:, ::2][:, : odd.shape[1]] | cleared[:, 1::2]
    states = _scan_chunks(dynamics, 2 * steps, pairs, cleared_pairs, first)
    between = _step(dynamics, steps, states[:, : even.shape[1]], None if cleared is None else cleared[:, ::2]) + even
    return _interleave(states, between)


def _step(dynamics: Dynamics, steps: int, x: Tensor, cleared: Tensor | None) -> Tensor:
    x = dynamics.advance(x, steps)
    return x if cleared is None else x.masked_fill(cleared[..., None, None], 0.0)


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    """even_0, odd_0, even_1, odd_1, .. along the second dimension; `even` has as many entries or one more."""
    count = odd.shape[1]
    merged = torch.stack((even[:, :count], odd), dim=2).flatten(1, 2)
    return torch.cat((merged, even[:, count:]), dim=1)


def _last(dynamics: Dynamics, u: Tensor, document: Tensor | None, starts: Tensor, count: int | Tensor) -> Tensor:
    """The state after `count` tokens, from the start of the chunk in which they end."""
    (b, _, length), device = u.shape[:3], u.device
    tokens = count if isinstance(count, Tensor) else torch.full((b,), count, device=device)
    ends = (tokens - 1).clamp(min=0) // length  # [b]
    left = tokens - ends * length
    places = left[:, None] - length + torch.arange(length, device=device)  # so that the last token comes last
    inside = places >= 0
    rows = take(take(u, ends[:, None])[:, 0], places.clamp(min=0))  # [b l d]
    x = dynamics.advance(take(starts, ends[:, None])[:, 0], left)
    if document is not None:
        numbers = take(take(document, ends[:, None])[:, 0], places.clamp(min=0))
        inside = inside & (numbers == numbers[:, -1:])
        fresh = (numbers[:, -1] > 0) & (left > 0)
        x = x.masked_fill(fresh[:, None, None], 0.0)
    rows = rows.masked_fill(~inside[..., None], 0.0)
    return x + torch.einsum("bjd,djs->bds", rows, dynamics.write(length))
