"""The tables of beam search, and one choice of the next tokens: tensors in, tensors out.

No function here reads a value on the host, so a GPU can choose again and again without it. A sentence that is over may
stay in the batch: its finished hypotheses do not change any more.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.core import reorder

Patience = Literal["full", "likely", "certain"]


class OpenHypotheses(NamedTuple):
    """Hypotheses that can be continued; an unused place has the score -inf."""

    score: Float[Tensor, "n k"]
    tokens: Int[Tensor, "n k t"]
    token: Int[Tensor, "n k"]
    """The last of the tokens, which the model has not read yet."""
    parent: Int[Tensor, "n k"]
    """Index of the hypothesis of the step before that this one continues."""


class FinishedHypotheses(NamedTuple):
    """Hypotheses that have stopped, best first; an unused place has the score -inf."""

    score: Float[Tensor, "n k"]
    tokens: Int[Tensor, "n k t"]
    length: Int[Tensor, "n k"]
    stopped: Bool[Tensor, "n k"]
    """True if a stopping token ended it, False if the limit did."""


class Tables(NamedTuple):
    """n sentences with k hypotheses each, of at most t tokens. Every tensor has the sentences first."""

    open: OpenHypotheses
    done: FinishedHypotheses
    over: Bool[Tensor, " n"]
    """True if no better hypothesis can be found."""
    limits: Int[Tensor, " n"]
    """The most tokens of each sentence."""
    step: Int[Tensor, " n"]
    """Number of tokens that were chosen."""
    divisors: Float[Tensor, "n t"]
    """Divisors of the length penalty for 1, 2, ... tokens."""
    stop: Int[Tensor, "n w"]

    def rows(self) -> Int[Tensor, " b"]:
        """The row of the model's state that each hypothesis continues."""
        n, k = self.open.parent.shape
        firsts = torch.arange(0, n * k, k, device=self.over.device)[:, None]
        return (self.open.parent + firsts).flatten()

    def select(self, places: Int[Tensor, " m"]) -> tuple["Tables", Int[Tensor, " b"]]:
        """The tables of these sentences, for a state whose rows were moved; and which rows these are."""
        rows = self.rows().view_as(self.open.parent)[places].flatten()
        tables: Tables = reorder(self, places)
        return tables._replace(open=tables.open._replace(parent=_indices(tables.open.parent))), rows


def begin(
    limits: Sequence[int], width: int, divisors: Sequence[float], stop: Sequence[int], device: torch.device
) -> Tables:
    """Tables before the first token, with room for as many tokens as there are divisors."""
    n = len(limits)
    unused = torch.full((n, width), -math.inf, device=device)
    tokens = torch.zeros(n, width, len(divisors), dtype=torch.long, device=device)
    score, zeros = unused.clone(), tokens[..., 0].clone()
    score[:, 0] = 0.0  # all beams are equal at first, so only one may be continued
    return Tables(
        OpenHypotheses(score, tokens, zeros, _indices(zeros)),
        FinishedHypotheses(unused, tokens, zeros, torch.zeros_like(zeros, dtype=torch.bool)),
        torch.zeros(n, dtype=torch.bool, device=device),
        torch.tensor(limits, device=device),
        torch.zeros(n, dtype=torch.long, device=device),
        torch.tensor(divisors, device=device).expand(n, -1),
        torch.tensor(stop, dtype=torch.long, device=device).expand(n, -1),
    )


def extend(
    tables: Tables, logits: Float[Tensor, "b v"], patience: Patience, bonus: Float[Tensor, "n k"] | None = None
) -> Tables:
    """The tables after one more token. `bonus`: added to the score of a hypothesis that continues each open one."""
    fresh, ends = _candidates(tables, logits)
    done = _finish(tables, fresh, ends, bonus)
    continued = _continue(fresh, ends, tables.open.score.shape[1])
    step = tables.step + 1
    full = done.score[:, -1] > -math.inf
    if patience != "full":
        length = tables.limits if patience == "certain" else step
        full = full & (continued.score.amax(1) / _divisor(tables, length) <= done.score[:, -1])
    over = tables.over | full | (tables.limits <= step)
    # no `_replace`: torch 2.11 compiles it to a shorter tuple if the tuple holds tuples
    return Tables(continued, done, over, tables.limits, step, tables.divisors, tables.stop)


def _candidates(tables: Tables, logits: Float[Tensor, "b v"]) -> tuple[OpenHypotheses, Bool[Tensor, "n c"]]:
    """The best continuations of each sentence, and which of them stop."""
    n, k = tables.open.score.shape
    most = max(2, 1 + tables.stop.shape[1]) * k  # k that continue are left if all others stop
    tokens = logits.topk(min(most, logits.shape[-1])).indices
    # log_softmax takes one pass on a CPU, logsumexp several; compiled, only the gathered values are computed
    best, each = logits.float().log_softmax(-1).gather(1, tokens), tokens.shape[-1]
    scores = (best.view(n, k, each) + tables.open.score[..., None]).flatten(1)
    scores, places = scores.topk(min(most, k * each))
    token, parents = tokens.view(n, -1).gather(1, places), places // each
    here = torch.arange(tables.divisors.shape[1], device=token.device) == tables.step[:, None, None]
    sequences = token[..., None].where(here, _gather(tables.open.tokens, parents))
    ends = (token[..., None] == tables.stop[:, None]).any(-1)
    return OpenHypotheses(scores, sequences, token, parents), ends


def _finish(tables: Tables, fresh: OpenHypotheses, ends: Tensor, bonus: Tensor | None) -> FinishedHypotheses:
    """The best k of the finished hypotheses and of the best k continuations, as far as these stop."""
    k, length = tables.open.score.shape[1], tables.step + 1
    score, ends = fresh.score[:, :k] / _divisor(tables, length)[:, None], ends[:, :k]
    if bonus is not None:
        score = score + bonus.gather(1, fresh.parent[:, :k])
    counts = (ends | (tables.limits == length)[:, None]) & ~tables.over[:, None]
    lengths = length[:, None] - ends.long()
    new = FinishedHypotheses(score.masked_fill(~counts, -math.inf), fresh.tokens[:, :k], lengths, ends)
    score, tokens, lengths, stopped = (torch.cat(pair, dim=1) for pair in zip(tables.done, new, strict=True))
    score, places = score.sort(dim=1, descending=True, stable=True)  # stable: equal scores stay in place
    score, places = score[:, :k].contiguous(), places[:, :k]  # compiled code guards on strides
    return FinishedHypotheses(score, _gather(tokens, places), lengths.gather(1, places), stopped.gather(1, places))


def _continue(fresh: OpenHypotheses, ends: Tensor, k: int) -> OpenHypotheses:
    """The best k continuations that do not stop. If there are fewer, stopped ones with the score -inf fill up."""
    places = ends.long().argsort(dim=1, stable=True)[:, :k]
    places = places.gather(1, _in_parent_order(fresh.parent.gather(1, places)))
    score = fresh.score.masked_fill(ends, -math.inf).gather(1, places)
    tokens, token = _gather(fresh.tokens, places), fresh.token.gather(1, places)
    return OpenHypotheses(score, tokens, token, fresh.parent.gather(1, places))


def _in_parent_order(parents: Int[Tensor, "n k"]) -> Int[Tensor, "n k"]:
    """An order of the new beams in which as many as possible keep the place of their parent, so that few rows move."""
    slots = _indices(parents)[..., None]  # [n k 1]
    follows = slots == parents[:, None, :]  # [n slot beam]
    first = ~(parents[:, :, None] == parents[:, None, :]).tril(-1).any(-1)
    free = ~follows.any(-1)  # places whose beam has no child: second children of other beams take them in turn
    turns = free.cumsum(1)[..., None] == (~first).cumsum(1)[:, None, :]
    takes = (follows & first[:, None, :]) | (turns & free[..., None] & ~first[:, None, :])
    return takes.long().argmax(-1)


def _divisor(tables: Tables, length: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    return tables.divisors.gather(1, (length - 1).clamp(0, tables.divisors.shape[1] - 1)[:, None])[:, 0]


def _gather(tokens: Int[Tensor, "n c t"], places: Int[Tensor, "n k"]) -> Int[Tensor, "n k t"]:
    return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[2]))


def _indices(like: Int[Tensor, "n k"]) -> Int[Tensor, "n k"]:
    return torch.arange(like.shape[1], device=like.device).expand_as(like)
