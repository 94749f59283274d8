"""How tokens are distributed over experts: the capacity of an expert, and losses that balance the experts.

balance loss  E sum_i f_i P_i                            (arXiv 2101.03961, eq. 4; arXiv 2006.16668, algorithm 1)
importance and load  CV^2 of a sum over tokens           (arXiv 1701.06538, section 4 and appendix A)
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LEAST_CAPACITY = 4
"""Tokens of a document that an expert computes at any capacity factor: one expert may suit a short document well."""


def within_capacity(
    choices: Int[Tensor, "b t k"],
    wanted: Bool[Tensor, "b t k"],
    capacity: Int[Tensor, "#b t"],
    starts: Bool[Tensor, "b t"] | None,
    experts: int,
) -> Bool[Tensor, "b t k"]:
    """The wanted choices that are among the first `capacity` of their document for their expert, in order of position.

    No choice depends on another row, or on what a later token is. `starts`: the first tokens of documents; None: there
    is one document in a row.
    """
    chosen = (choices[..., None] == torch.arange(experts, device=choices.device)) & wanted[..., None]
    by_token = chosen.any(2).long()  # [b t e]
    rank = by_token.cumsum(1)
    if starts is not None:  # minus the rank before the document; ranks never fall, so the last start has the maximum
        rank = rank - (rank - by_token).where(starts[..., None], 0).cummax(1).values
    return wanted & (rank.gather(2, choices) <= capacity[..., None])


def expert_capacity(
    valid: Bool[Tensor, "b t"], starts: Bool[Tensor, "b t"] | None, factor: float, experts: int
) -> Int[Tensor, "b t"]:
    """C = max(4, ceil(factor n / experts)) for each token, with the number n of valid tokens of its document."""
    document = torch.zeros_like(valid, dtype=torch.long) if starts is None else starts.cumsum(1)
    lengths = document.new_zeros(valid.shape[0], valid.shape[1] + 1).scatter_add(1, document, valid.long())
    # A small decrement, since factor n / experts may be rounded to just above an integer.
    return (lengths.gather(1, document) * (factor / experts) - 1e-6).ceil().long().clamp(min=LEAST_CAPACITY)


def balance_loss(p: Float[Tensor, "b t e"], valid: Bool[Tensor, "b t"]) -> Float[Tensor, ""]:
    """E sum_i f_i P_i: f_i is the share of valid tokens whose most probable expert is i, P_i the mean of p_i.

    It is 1 if f or P is uniform, E if all tokens go to one expert with certainty, and may fall below 1 in between."""
    first = torch.zeros_like(p).scatter(-1, p.argmax(-1, keepdim=True), 1.0)
    shares, means = (token_sum(values, valid) / valid.sum().clamp(min=1) for values in (first, p))
    return p.shape[-1] * (shares * means).sum()


def token_sum(values: Float[Tensor, "b t e"], valid: Bool[Tensor, "b t"]) -> Float[Tensor, " e"]:
    """The sum over all valid tokens."""
    return values.where(valid[..., None], 0.0).sum((0, 1))


def squared_variation(sums: Float[Tensor, " e"]) -> Float[Tensor, ""]:
    """CV^2: the variance of the experts' sums, divided by the square of their mean. 0 if they are equal."""
    return sums.var(correction=0) / sums.mean().square().clamp(min=1e-10)


def selection_chance(
    clean: Float[Tensor, "b t e"], noisy: Float[Tensor, "b t e"], spread: Float[Tensor, "b t e"], k: int
) -> Float[Tensor, "b t e"]:
    """The probability that an expert is among the k largest logits if its own noise, of size `spread`, is drawn again
    and that of the other experts stays. It is smooth in the logits, and so is the load, its sum over tokens."""
    if k == clean.shape[-1]:
        return torch.ones_like(clean)
    *_, kth, following = noisy.topk(k + 1, dim=-1).values.unbind(-1)
    # The k-th largest logit of the other experts: an expert that is selected does not compete with itself.
    threshold = torch.where(noisy >= kth[..., None], following[..., None], kth[..., None])
    chance: Tensor = torch.special.ndtr((clean - threshold) / spread.clamp(min=1e-6))
    return chance
