"""Recurrences whose state is a matrix, written by outer products and read by vectors: linear attention and its kin.

S_t = diag(a_t) S_{t-1} + k_t v_t^T ;  y_t = q_t S_t .  No decay: linear attention (arXiv 2006.16236). One a_t for each
head: state space duality (arXiv 2405.21060). One for each channel of k: gated linear attention (arXiv 2312.06635).

`outer_scan_loop` is the definition. `outer_scan` works in chunks: within one the tokens meet in pairs, as in attention
without a softmax; between chunks goes the state, in at least single precision. Decays come as logarithms and are only
ever taken over the tokens that lie between two others, so that nothing grows beyond 1 and nothing is divided. With a
decay for each channel a pair has no common factor; there a chunk is put together from single tokens, neighbour with
neighbour, and from one to the other all goes through the border between them: what i reads has decayed from the border
to i, what j writes from j to the border.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from anyformer.ops.dtypes import at_least_float32
from anyformer.ops.recurrence.linear_scan import linear_scan

_CHUNK = 64
_GATED_CHUNK = 32
"""A power of two."""


def outer_scan(
    q: Float[Tensor, "b t g n"],
    k: Float[Tensor, "b t g n"],
    v: Float[Tensor, "b t h c"],
    log_a: Float[Tensor, "b t h *n"] | None = None,
    start: Float[Tensor, "b g n r c"] | None = None,
    begins: Bool[Tensor, "b t"] | None = None,
) -> tuple[Float[Tensor, "b t h c"], Float[Tensor, "b g n r c"] | None]:
    """y of every token, and the state after the last one if one was given. Each of g keys serves r = h / g heads; a
    decay for each channel wants g = h. A token of `begins` finds an empty state."""
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
    """The definition, token by token: what the chunks are tested against."""
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
    """Empty: [b g n r c]."""
    (b, _, g, n), (h, c) = q.shape, v.shape[2:]
    return v.new_zeros(b, g, n, h // g, c, dtype=at_least_float32(v))


def outer_scan_flops(
    tokens: tuple[int, int], heads: tuple[int, int], sizes: tuple[int, int], gated: bool, stateful: bool
) -> int:
    """Of all matrix products; tokens = (b, t), heads = (g, h), sizes = (n, c). The backward has twice as many."""
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
    """At most one decay for each head: all pairs of a chunk at once."""
    t, low, g = v.shape[1], v.dtype, q.shape[2]
    chunk = min(t, _CHUNK)
    q, k = (_cut(x.to(low), chunk).transpose(2, 3) for x in (q, k))  # [b m g l n]
    v = _cut(v, chunk).unflatten(3, (g, -1)).permute(0, 1, 3, 4, 2, 5)  # [b m g r l c]
    document = None if begins is None else _cut(begins, chunk).cumsum(2)[:, :, None, None]  # [b m 1 1 l]
    since = None
    if log_a is not None:
        since = (
            _cut(log_a.to(at_least_float32(v)), chunk).unflatten(3, (g, -1)).permute(0, 1, 3, 4, 2).cumsum(-1)
        )  # [b m g r l]
    scores = (q @ k.mT)[:, :, :, None]
    y = _in_order((_decayed(scores, since, document) @ v).transpose(3, 4))  # [b t h c]
    if start is None and v.shape[1] == 1:
        return y.to(at_least_float32(v))[:, :t], None
    to_end, kept, from_start = _sides(since, document)
    some = _read_again(start)
    written = v[:, some] if to_end is None else v[:, some] * to_end[:, some, ..., None].to(low)
    kept = None if kept is None else kept[:, some, :, None, :, None]
    before, last = _through_states(q, (k[:, some], written.transpose(3, 4)), kept, start)
    if from_start is None:
        return (y.to(at_least_float32(v)) + _in_order(before))[:, :t], last
    return torch.addcmul(y, _in_order(before), _in_order(from_start.mT[..., None]))[:, :t], last


def _decayed(scores: Tensor, since: Tensor | None, document: Tensor | None) -> Tensor:
    """[b m g r l l]: what token i takes from token j, which is before it in the same document."""
    length = scores.shape[-1]
    ahead = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
    if document is not None:
        ahead = ahead | (document[..., :, None] != document[..., None, :])
    if since is None:
        return scores.masked_fill(ahead, 0.0)
    # sums alone, which hand their gradients on as they are: these are the largest tensors of all
    hidden = torch.zeros_like(ahead, dtype=since.dtype).masked_fill(ahead, -torch.inf)
    decay = (hidden + (-since)[..., None, :]).add_(since[..., :, None]).exp_()
    return scores * decay.to(scores.dtype)


def _in_order(x: Tensor) -> Tensor:
    """[b m g l r c] -> [b t h c]."""
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _read_again(start: Tensor | None) -> slice:
    """The chunks whose states are asked for: not that behind the last one if none was before the first."""
    return slice(None, -1 if start is None else None)


def _through_states(
    q: Tensor, writes: tuple[Tensor, Tensor], kept: Tensor | None, start: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """What the tokens of a chunk read of the chunks before it [b m g l r c], and the last state if there was a first.
    `writes`: keys [b m g l n] and what is written with them [b m g l r c]."""
    (k, written), low = writes, q.dtype
    added = (k.mT @ written.flatten(4)).unflatten(-1, written.shape[4:])  # [b m g n r c]
    states = _carried(kept, added, start)  # behind every chunk
    y = q[:, 1:] @ states[:, : q.shape[1] - 1].flatten(4).to(low)
    if start is None:
        return F.pad(y, (0, 0) * 3 + (1, 0)).unflatten(-1, written.shape[4:]), None
    first = q[:, :1] @ start[:, None].flatten(4).to(low)
    return torch.cat((first, y), dim=1).unflatten(-1, written.shape[4:]), states[:, -1]


def _sides(since: Tensor | None, document: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """[.. l] what the end of a chunk keeps of each token, [..] what it keeps of the start, [.. l] what each token sees
    of the start."""
    if document is None:
        if since is None:
            return None, None, None
        return (since[..., -1:] - since).exp(), since[..., -1].exp(), since.exp()
    ends, first = document == document[..., -1:], document == 0
    if since is None:
        return ends.float(), first[..., -1].float(), first.float()
    to_end, from_start = (since[..., -1:] - since).exp() * ends, since.exp() * first
    return to_end, from_start[..., -1], from_start


def _carried(kept: Tensor | None, added: Tensor, start: Tensor | None) -> Tensor:
    """The state behind every chunk [b m g n r c]."""
    if kept is not None:
        return linear_scan(kept, added, start)
    total = added.cumsum(1, dtype=at_least_float32(added))
    return total if start is None else total + start[:, None]


def _gated(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor, start: Tensor | None, begins: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """A decay for each channel: every chunk is put together from its tokens."""
    t, low, chunk = v.shape[1], v.dtype, _gated_chunk(v.shape[1])
    q, k, v, log_a = (
        _cut(x, chunk).transpose(2, 3).contiguous() for x in (q.to(low), k.to(low), v, log_a.to(at_least_float32(v)))
    )  # [b m h l c]
    decay = log_a.exp()
    if begins is not None:  # what a document finds of the one before it has decayed to nothing
        decay = decay.masked_fill(_cut(begins, chunk)[:, :, None, :, None], 0.0)
    piece = _tokens(q, k, decay)
    while piece.scores.shape[-1] < chunk:
        piece = _joined(piece, low)
    scores, reads, writes, kept = (x.squeeze(3) for x in piece)
    y = (scores.to(low) @ v).to(at_least_float32(v))
    last = None
    if start is not None or v.shape[1] > 1:
        some = _read_again(start)
        written = writes[:, some].to(low), v[:, some].unsqueeze(4)
        before, last = _through_states(reads.to(low), written, kept[:, some, ..., None, None], start)
        y = y + before.squeeze(4)
    return y.transpose(2, 3).flatten(1, 2)[:, :t], last


class _Pieces(NamedTuple):
    """Neighbouring tokens, p pieces of l each."""

    scores: Float[Tensor, "b m h p l l"]
    """What a token takes from another of its piece."""
    reads: Float[Tensor, "b m h p l n"]
    """q, decayed since the piece began."""
    writes: Float[Tensor, "b m h p l n"]
    """k, as much of it as is left where the piece ends."""
    kept: Float[Tensor, "b m h p n"]
    """What is left behind the piece of what was before it."""


def _tokens(q: Tensor, k: Tensor, decay: Tensor) -> _Pieces:
    """Every token a piece."""
    k = k.to(decay.dtype)
    scores = (q * k).sum(-1)[..., None, None]
    return _Pieces(scores, (q * decay).unsqueeze(-2), k.unsqueeze(-2), decay)


def _joined(pieces: _Pieces, low: torch.dtype) -> _Pieces:
    """Two and two: half as many, twice as long."""
    (early, late), (reads, later_reads) = (x.unflatten(3, (-1, 2)).unbind(4) for x in pieces[:2])
    (writes, later_writes), (kept, later_kept) = (x.unflatten(3, (-1, 2)).unbind(4) for x in pieces[2:])
    across = (later_reads.to(low) @ writes.to(low).mT).to(early.dtype)
    above = torch.cat((early, torch.zeros_like(early)), dim=-1)
    below = torch.cat((across, late), dim=-1)
    return _Pieces(
        torch.cat((above, below), dim=-2),
        torch.cat((reads, later_reads * kept[..., None, :]), dim=-2),
        torch.cat((writes * later_kept[..., None, :], later_writes), dim=-2),
        kept * later_kept,
    )


def _gated_chunk(t: int) -> int:
    return min(_GATED_CHUNK, 1 << (t - 1).bit_length())


def _cut(x: Tensor, chunk: int) -> Tensor:
    """[b t *d] -> [b m chunk *d], filled up with zeros: tokens that write nothing and forget nothing."""
    pad = -x.shape[1] % chunk
    padded = F.pad(x, (0, 0) * (x.dim() - 2) + (0, pad)) if pad else x
    chunks: Tensor = padded.unflatten(1, (-1, chunk))
    return chunks
