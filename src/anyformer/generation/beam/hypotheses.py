"""What beam search knows of its sentences, and one choice of the next words: tensors in, tensors out.

Nothing here asks for a value or depends on the number of the step, but through a tensor: so a GPU can choose again and
again without the host. A sentence that is over may stay in the batch: what was found for it does not change any more.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map

Patience = Literal["full", "likely", "certain"]


class Open(NamedTuple):
    """Hypotheses that go on; the score of one that does not is -inf."""

    score: Float[Tensor, "n k"]
    tokens: Int[Tensor, "n k t"]
    word: Int[Tensor, "n k"]
    """The last of the tokens, which the model has not read yet."""
    parent: Int[Tensor, "n k"]
    """Which of the hypotheses before it goes on from."""


class Done(NamedTuple):
    """Hypotheses that have stopped, best first; a place that is not taken yet has the score -inf."""

    score: Float[Tensor, "n k"]
    tokens: Int[Tensor, "n k t"]
    length: Int[Tensor, "n k"]
    stopped: Bool[Tensor, "n k"]
    """By a word, and not by its length."""


class Tables(NamedTuple):
    """n sentences with k hypotheses each, of t words at most."""

    open: Open
    done: Done
    over: Bool[Tensor, " n"]
    """Nothing better can be found."""
    limits: Int[Tensor, " n"]
    """Words that may be written for each."""
    step: Int[Tensor, " 1"]
    """Words that have been written."""
    divisors: Float[Tensor, " t"]
    """Of the length penalty, for 1, 2, ... words."""
    stop: Int[Tensor, " w"]

    def rows(self, kept: Int[Tensor, " m"] | None = None) -> Int[Tensor, " b"]:
        """The row of the model's state that each hypothesis goes on from; of these sentences, or of all."""
        n, k = self.open.parent.shape
        firsts = torch.arange(0, n * k, k, device=self.over.device)[:, None]
        rows = self.open.parent + firsts
        return (rows if kept is None else rows[kept]).flatten()

    def sentences(self, kept: Int[Tensor, " m"]) -> "Tables":
        """Only these, whose rows have been moved already."""
        columns = self.open, self.done, self.over, self.limits
        going, done, over, limits = tree_map(lambda column: column.index_select(0, kept), columns)
        going = going._replace(parent=_places(going.parent))
        return self._replace(open=going, done=done, over=over, limits=limits)


def begin(
    limits: Sequence[int], width: int, divisors: Sequence[float], stop: Sequence[int], device: torch.device
) -> Tables:
    """Nothing written yet, and room for as many words as there are divisors."""
    n = len(limits)
    nothing = torch.full((n, width), -math.inf, device=device)
    tokens = torch.zeros(n, width, len(divisors), dtype=torch.long, device=device)
    score, none = nothing.clone(), tokens[..., 0].clone()
    score[:, 0] = 0.0  # all beams begin alike, so only the first may go on
    return Tables(
        Open(score, tokens, none, _places(none)),
        Done(nothing, tokens, none, torch.zeros_like(none, dtype=torch.bool)),
        torch.zeros(n, dtype=torch.bool, device=device),
        torch.tensor(limits, device=device),
        torch.zeros(1, dtype=torch.long, device=device),
        torch.tensor(divisors, device=device),
        torch.tensor(stop, dtype=torch.long, device=device),
    )


def extend(
    tables: Tables, logits: Float[Tensor, "b v"], patience: Patience, bonus: Float[Tensor, "n k"] | None = None
) -> Tables:
    """One word more. `patience`: of the beam; `bonus`: what each open hypothesis is worth beyond its probability."""
    fresh, ends = _candidates(tables, logits)
    done = _finish(tables, fresh, ends, bonus)
    going = _go_on(fresh, ends, tables.open.score.shape[1])
    step = tables.step + 1
    full = done.score[:, -1] > -math.inf
    if patience != "full":
        length = tables.limits if patience == "certain" else step
        full = full & (going.score.amax(1) / _divisor(tables, length) <= done.score[:, -1])
    over = tables.over | full | (tables.limits <= step)
    # written out: torch 2.11 compiles `_replace` of a tuple that holds tuples to one that is too short
    return Tables(going, done, over, tables.limits, step, tables.divisors, tables.stop)


def _candidates(tables: Tables, logits: Float[Tensor, "b v"]) -> tuple[Open, Bool[Tensor, "n c"]]:
    """The best continuations of each sentence, and which of them stop."""
    n, k = tables.open.score.shape
    most = max(2, 1 + len(tables.stop)) * k  # enough to go on, should all others stop; from one beam or from all
    words = logits.topk(min(most, logits.shape[-1])).indices
    # one pass on a CPU, where `logsumexp` takes several; and a compiler makes nothing but what is gathered
    best, each = logits.float().log_softmax(-1).gather(1, words), words.shape[-1]
    scores = (best.view(n, k, each) + tables.open.score[..., None]).flatten(1)
    scores, places = scores.topk(min(most, k * each))
    words, parents = words.view(n, -1).gather(1, places), places // each
    here = torch.arange(len(tables.divisors), device=words.device) == tables.step
    tokens = words[..., None].where(here, _taken(tables.open.tokens, parents))
    return Open(scores, tokens, words, parents), (words[..., None] == tables.stop).any(-1)


def _finish(tables: Tables, fresh: Open, ends: Tensor, bonus: Tensor | None) -> Done:
    """Of the best k continuations those that stop are held against the hypotheses found before."""
    k, length = tables.open.score.shape[1], tables.step + 1
    worth, ends = fresh.score[:, :k] / _divisor(tables, length), ends[:, :k]
    if bonus is not None:
        worth = worth + bonus.gather(1, fresh.parent[:, :k])
    counts = (ends | (tables.limits == length)[:, None]) & ~tables.over[:, None]
    new = Done(worth.masked_fill(~counts, -math.inf), fresh.tokens[:, :k], length - ends.long(), ends)
    score, tokens, lengths, stopped = (torch.cat(pair, dim=1) for pair in zip(tables.done, new, strict=True))
    score, places = score.sort(dim=1, descending=True, stable=True)  # of equals the earlier: nothing moves in vain
    score, places = score[:, :k].contiguous(), places[:, :k]  # the strides of before: a compiler asks for them
    return Done(score, _taken(tokens, places), lengths.gather(1, places), stopped.gather(1, places))


def _go_on(fresh: Open, ends: Tensor, k: int) -> Open:
    """The best k that do not stop. Where there are too few, others fill up that nothing comes from."""
    places = ends.long().argsort(dim=1, stable=True)[:, :k]
    places = places.gather(1, _staying(fresh.parent.gather(1, places)))
    score = fresh.score.masked_fill(ends, -math.inf).gather(1, places)
    return Open(score, _taken(fresh.tokens, places), fresh.word.gather(1, places), fresh.parent.gather(1, places))


def _staying(parents: Int[Tensor, "n k"]) -> Int[Tensor, "n k"]:
    """An order of new beams in which as many as can be stand where the one that they go on from stood."""
    slots = _places(parents)[..., None]  # [n k 1]
    follows = slots == parents[:, None, :]  # [n slot beam]
    first = ~(parents[:, :, None] == parents[:, None, :]).tril(-1).any(-1)
    left = ~follows.any(-1)  # from whom nobody goes on: the others are given these places, in turn
    turns = left.cumsum(1)[..., None] == (~first).cumsum(1)[:, None, :]
    stands = (follows & first[:, None, :]) | (turns & left[..., None] & ~first[:, None, :])
    return stands.long().argmax(-1)


def _divisor(tables: Tables, length: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
    return tables.divisors.index_select(0, (length - 1).clamp(0, len(tables.divisors) - 1))


def _taken(tokens: Int[Tensor, "n c t"], places: Int[Tensor, "n k"]) -> Int[Tensor, "n k t"]:
    return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[2]))


def _places(like: Int[Tensor, "n k"]) -> Int[Tensor, "n k"]:
    return torch.arange(like.shape[1], device=like.device).expand_as(like)
