"""Recurrences whose state is a matrix, written by outer products and read by vectors: linear attention and variants.

S_t = diag(a_t) S_{t-1} + k_t v_t^T ;  y_t = q_t S_t .  No decay: linear attention (arXiv 2006.16236). One a_t for each
head: state space duality (arXiv 2405.21060). One for each channel of k: gated linear attention (arXiv 2312.06635).

`outer_scan_loop` is the definition. `outer_scan` works in chunks: inside a chunk over pairs of tokens, as in attention
without a softmax; between chunks through the state, in at least float32. Decays are passed as logarithms and only ever
accumulated between two tokens, so that no factor exceeds 1 and nothing is divided. With a decay for each channel a pair
has no common factor; then a chunk is built from single tokens by joining neighbours, and what j writes for i decays
from j to the border between the two halves, and from there to i.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from anyformer.ops.devices import at_least_float32
from anyformer.ops.padding import cut
from anyformer.ops.recurrence.linear_scan import linear_scan

_CHUNK = 64
_GATED_CHUNK = 32
"""Chunk length with a decay for each channel; a power of two."""


def outer_scan(
    q: Float[Tensor, "b t g n"],
    k: Float[Tensor, "b t g n"],
    v: Float[Tensor, "b t h c"],
    log_a: Float[Tensor, "b t h *n"] | None = None,
    start: Float[Tensor, "b g n r c"] | None = None,
    begins: Bool[Tensor, "b t"] | None = None,
) -> tuple[Float[Tensor, "b t h c"], Float[Tensor, "b g n r c"] | None]:
    """y of every token, and the last state if `start` was passed. Each of g keys serves r = h / g heads; a decay for
    each channel requires g = h. The state is reset before a token of `begins`."""
    last: Tensor | None
    if v.shape[1] == 1:
        y, last = outer_scan_loop(q, k, v, log_a, start, begins)
    elif log_a is not None and log_a.dim() == 4:
        y, last = _gated(q, k, v, log_a, start, begins)
    else:
        y, last = _plain(q, k, v, log_a, start, begins)
    return y, None if start is None else last


def outer_scan_loop(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None = None,
    start: Tensor | None = None,
    begins: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, token by token: the reference for the chunks."""
    dtype, (b, t, g) = at_least_float32(v), q.shape[:3]
    q, k, v = (x.to(dtype) for x in (q, k, v))
    state = new_state(q, v) if start is None else start.to(dtype)
    v, outputs = v.unflatten(2, (g, -1)), []  # [b t g r c]
    for at in range(t):
        if begins is not None:
            state = state.masked_fill(begins[:, at, None, None, None, None], 0.0)
        if log_a is not None:
            a = log_a[:, at].to(dtype).exp()
            state = state * (a[..., None, None] if log_a.dim() == 4 else a.view(b, g, 1, -1, 1))
        state = state + (k[:, at, :, :, None] @ v[:, at].flatten(2)[:, :, None]).unflatten(-1, v.shape[-2:])
        y = q[:, at, :, None] @ state.flatten(-2)  # [b g 1 r*c]
        outputs.append(y.view(b, -1, v.shape[-1]))
    return torch.stack(outputs, dim=1), state


def new_state(q: Tensor, v: Tensor) -> Tensor:
    """An empty state [b g n r c]."""
    (b, _, g, n), (h, c) = q.shape, v.shape[2:]
    return v.new_zeros(b, g, n, h // g, c, dtype=at_least_float32(v))


def outer_scan_flops(
    tokens: tuple[int, int], heads: tuple[int, int], sizes: tuple[int, int], gated: bool, stateful: bool
) -> int:
    """Forward FLOPs of all matrix products; tokens = (b, t), heads = (g, h), sizes = (n, c). Backward: twice that."""
    (b, t), (g, h), (n, c) = tokens, heads, sizes
    states = 4 * n * c * h
    if t == 1:
        return b * states
    chunk = _gated_chunk(t) if gated else min(t, _CHUNK)
    chunks = -(-t // chunk)
    pairs = h * ((chunk - 1) * n + 2 * chunk * c) if gated else 2 * chunk * (g * n + h * c)
    return b * chunk * (chunks * pairs + (chunks if stateful else chunks - 1) * states)


def _plain(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | None, start: Tensor | None, begins: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The scan with at most one decay for each head: all pairs of a chunk at once."""
    t, low, g = v.shape[1], v.dtype, q.shape[2]
    chunk = min(t, _CHUNK)
    q, k = (cut(x.to(low), chunk).transpose(2, 3) for x in (q, k))  # [b m g l n]
    v = cut(v, chunk).unflatten(3, (g, -1)).permute(0, 1, 3, 4, 2, 5)  # [b m g r l c]
    document = None if begins is None else cut(begins, chunk).cumsum(2)[:, :, None, None]  # [b m 1 1 l]
    since = None  # [b m g r l]
    if log_a is not None:
        since = cut(log_a.to(at_least_float32(v)), chunk).unflatten(3, (g, -1)).permute(0, 1, 3, 4, 2).cumsum(-1)
    scores = (q @ k.mT)[:, :, :, None]
    y = _in_order((_decayed(scores, since, document) @ v).transpose(3, 4))  # [b t h c]
    if start is None and v.shape[1] == 1:
        return y.to(at_least_float32(v))[:, :t], None
    to_end, decay_over, from_start = _sides(since, document)
    some = slice(None, -1 if start is None else None)  # the last state is needed only if there was a first
    written = v[:, some] if to_end is None else v[:, some] * to_end[:, some, ..., None].to(low)
    decay_over = None if decay_over is None else decay_over[:, some, :, None, :, None]
    before, last = _through_states(q, (k[:, some], written.transpose(3, 4)), decay_over, start)
    if from_start is None:
        return (y.to(at_least_float32(v)) + _in_order(before))[:, :t], last
    return torch.addcmul(y, _in_order(before), _in_order(from_start.mT[..., None]))[:, :t], last


def _decayed(scores: Tensor, since: Tensor | None, document: Tensor | None) -> Tensor:
    """[b m g r l l]: the weight of token j in the output of token i, for j <= i in the same document."""
    length = scores.shape[-1]
    ahead = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
    if document is not None:
        ahead = ahead | (document[..., :, None] != document[..., None, :])
    if since is None:
        return scores.masked_fill(ahead, 0.0)
    # additions only, whose backward copies nothing: these are the largest tensors
    hidden = torch.zeros_like(ahead, dtype=since.dtype).masked_fill(ahead, -torch.inf)
    decay = (hidden + (-since)[..., None, :]).add_(since[..., :, None]).exp_()
    return scores * decay.to(scores.dtype)


def _in_order(x: Tensor) -> Tensor:
    """[b m g l r c] -> [b t h c]."""
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _through_states(
    q: Tensor, writes: tuple[Tensor, Tensor], decay_over: Tensor | None, start: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """What the tokens of a chunk read from earlier chunks [b m g l r c], and the last state if `start` was passed.
    `writes`: keys [b m g l n] and values [b m g l r c]."""
    (k, written), low = writes, q.dtype
    added = (k.mT @ written.flatten(4)).unflatten(-1, written.shape[4:])  # [b m g n r c]
    if decay_over is not None:
        states = linear_scan(decay_over, added, start)  # after every chunk
    else:
        states = added.cumsum(1, dtype=at_least_float32(added))
        states = states if start is None else states + start[:, None]
    y = q[:, 1:] @ states[:, : q.shape[1] - 1].flatten(4).to(low)
    if start is None:
        return F.pad(y, (0, 0) * 3 + (1, 0)).unflatten(-1, written.shape[4:]), None
    first = q[:, :1] @ start[:, None].flatten(4).to(low)
    return torch.cat((first, y), dim=1).unflatten(-1, written.shape[4:]), states[:, -1]


def _sides(since: Tensor | None, document: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Decays from each token to the end of its chunk [.. l], from the start to the end [..], and from the start to each
    token [.. l]."""
    if document is None:
        if since is None:
            return None, None, None
        return (since[..., -1:] - since).exp(), since[..., -1].exp(), since.exp()
    ends, first = document == document[..., -1:], document == 0
    if since is None:
        return ends.float(), first[..., -1].float(), first.float()
    to_end, from_start = (since[..., -1:] - since).exp() * ends, since.exp() * first
    return to_end, from_start[..., -1], from_start


def _gated(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, start: Tensor | None, begins: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The scan with a decay for each channel: every chunk is built from its tokens."""
    t, low, chunk = v.shape[1], v.dtype, _gated_chunk(v.shape[1])
    q, k, v, log_a = (
        cut(x, chunk).transpose(2, 3).contiguous() for x in (q.to(low), k.to(low), v, log_a.to(at_least_float32(v)))
    )  # [b m h l c]
    decay = log_a.exp()
    if begins is not None:  # reset the state at the start of a document
        decay = decay.masked_fill(cut(begins, chunk)[:, :, None, :, None], 0.0)
    wide = k.to(decay.dtype)
    scores = (q * wide).sum(-1)[..., None, None]
    piece = _Pieces(scores, (q * decay).unsqueeze(-2), wide.unsqueeze(-2), decay)  # of one token each
    while piece.scores.shape[-1] < chunk:
        piece = _joined(piece, low)
    scores, reads, writes, decay_over = (x.squeeze(3) for x in piece)
    y = (scores.to(low) @ v).to(at_least_float32(v))
    last = None
    if start is not None or v.shape[1] > 1:
        some = slice(None, -1 if start is None else None)
        written = writes[:, some].to(low), v[:, some].unsqueeze(4)
        before, last = _through_states(reads.to(low), written, decay_over[:, some, ..., None, None], start)
        y = y + before.squeeze(4)
    return y.transpose(2, 3).flatten(1, 2)[:, :t], last


class _Pieces(NamedTuple):
    """Pieces of neighbouring tokens: p pieces of l tokens each."""

    scores: Float[Tensor, "b m h p l l"]
    """Weight of token j in the output of token i of the same piece."""
    reads: Float[Tensor, "b m h p l n"]
    """q times the decay from the start of the piece to the token."""
    writes: Float[Tensor, "b m h p l n"]
    """k times the decay from the token to the end of the piece."""
    decay_over: Float[Tensor, "b m h p n"]
    """Decay over the complete piece."""


def _joined(pieces: _Pieces, low: torch.dtype) -> _Pieces:
    """Joins pairs of neighbouring pieces: half as many, twice as long."""
    (early, late), (reads, later_reads) = (x.unflatten(3, (-1, 2)).unbind(4) for x in pieces[:2])
    (writes, later_writes), (decay_over, later_kept) = (x.unflatten(3, (-1, 2)).unbind(4) for x in pieces[2:])
    across = (later_reads.to(low) @ writes.to(low).mT).to(early.dtype)
    above = torch.cat((early, torch.zeros_like(early)), dim=-1)
    below = torch.cat((across, late), dim=-1)
    return _Pieces(
        torch.cat((above, below), dim=-2),
        torch.cat((reads, later_reads * decay_over[..., None, :]), dim=-2),
        torch.cat((writes * later_kept[..., None, :], later_writes), dim=-2),
        decay_over * later_kept,
    )


def _gated_chunk(t: int) -> int:
    return min(_GATED_CHUNK, 1 << (t - 1).bit_length())
