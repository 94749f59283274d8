"""Corruption of tokens in place: some are masked, some change places; the targets are the original tokens.

corrupt(x) -> inputs, targets, weight, and x again = targets where the weight is not 0, inputs elsewhere.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anyformer.data.tokenizers.vocabulary import Vocabulary

_ORDERS = torch.tensor([(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
"""Every order of three but the right one."""


class Corrupted(NamedTuple):
    """Inputs of the model, its targets, and the weight of each position."""

    inputs: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"]
    weight: Float[Tensor, "b t"]


class Shares(NamedTuple):
    """Share of words that is chosen, and shares of the chosen that become <mask> or another word; the rest stays."""

    chosen: float
    masked: float
    random: float


def free(tokens: Int[Tensor, "b t"], there: Bool[Tensor, "b t"], words: Vocabulary) -> Bool[Tensor, "b t"]:
    """True where a token exists that is not special."""
    return there & ~_special(words)[tokens]


def mask_words(
    tokens: Int[Tensor, "b t"],
    free: Bool[Tensor, "b t"],
    words: Vocabulary,
    shares: Shares,
    rng: torch.Generator,
    starts: Bool[Tensor, "b t"] | None = None,
) -> Corrupted:
    """BERT's corruption (arXiv 1810.04805, section 3.1); with `starts`, all tokens of a word are chosen together."""
    choice, outcome = (torch.rand(tokens.shape, generator=rng) for _ in range(2))
    if starts is not None:
        choice = choice.gather(1, (starts.cumsum(1) - 1).clamp(min=0))
    chosen = free & (choice < shares.chosen)
    ordinary = (~_special(words)).nonzero()[:, 0]
    others = ordinary[torch.randint(len(ordinary), tokens.shape, generator=rng)]
    inputs = tokens.masked_fill(chosen & (outcome < shares.masked), words.mask)
    replaced = chosen & (outcome >= shares.masked) & (outcome < shares.masked + shares.random)
    return Corrupted(others.where(replaced, inputs), tokens, chosen.float())


def shuffle_trigrams(
    tokens: Int[Tensor, "b t"],
    free: Bool[Tensor, "b t"],
    documents: Int[Tensor, "b t"],
    share: float,
    rng: torch.Generator,
) -> Corrupted:
    """Of the trigrams that lie end to end in each row, a share has its three tokens change places."""
    first = int(
        torch.randint(3, (), generator=rng)
    )  # another start each time, or the same trigrams would be drawn in every epoch
    stop = first + (tokens.shape[1] - first) // 3 * 3
    inputs, weight = tokens.clone(), torch.zeros(tokens.shape)
    if stop <= first:
        return Corrupted(inputs, tokens, weight)
    three, able, whose = (x[:, first:stop].unflatten(1, (-1, 3)) for x in (tokens, free, documents))  # [b n 3]
    able = able.all(-1) & (whose == whose[..., :1]).all(-1)
    chosen = able & (torch.rand(able.shape, generator=rng) < share)
    order = _ORDERS[torch.randint(len(_ORDERS), able.shape, generator=rng)]
    inputs[:, first:stop] = three.gather(-1, order).where(chosen[..., None], three).flatten(1)
    weight[:, first:stop] = chosen[..., None].expand_as(three).flatten(1).float()
    return Corrupted(inputs, tokens, weight)


@lru_cache(maxsize=8)
def _special(words: Vocabulary) -> Tensor:
    """Table that is True for special ids; searching a list of a hundred sentinels would be most of the work."""
    special = torch.zeros(words.size, dtype=torch.bool)
    special[[*words.special]] = True
    return special
