"""Roles of attention heads, read off by a probe: which simple rule says where a head attends (arXiv 1906.04341).

share = mean over rows i of sum_j w_ij [the rule names key j for query i]        skill = (share - chance) / (1 - chance)

`chance` is the share of uniform weights over all keys, or over the keys up to the query if no head attends to later
keys. A row counts if the rule names some of these keys, but not all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Rule: TypeAlias = Callable[[Int[Tensor, " t"]], Bool[Tensor, "t t"]]
"""Token ids -> whether the rule names the key of the column for the query of the row."""
LEAST_SKILL = 0.5
"""A head has a role if it is at least halfway from uniform weights to following the rule always."""


class HeadRole(NamedTuple):
    """The rule that describes a head best."""

    name: str
    share: float
    """Share of the weight on the keys that the rule names."""
    skill: float
    """0 for uniform weights, 1 for a head that always follows the rule."""


def _offset(away: int, tokens: Tensor) -> Tensor:
    places = torch.arange(len(tokens), device=tokens.device)
    return places[None, :] - places[:, None] == away


def _first(tokens: Tensor) -> Tensor:
    named = torch.zeros(len(tokens), len(tokens), dtype=torch.bool, device=tokens.device)
    named[1:, 0] = True  # for the first query the key is itself, which is another role
    return named


def _same_token(tokens: Tensor) -> Tensor:
    return (tokens[:, None] == tokens[None, :]) & ~_offset(0, tokens)


def _induction(tokens: Tensor) -> Tensor:
    earlier = _same_token(tokens).tril(-1)
    return torch.cat((torch.zeros_like(earlier[:, :1]), earlier[:, :-1]), dim=1)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "previous token": lambda tokens: _offset(-1, tokens),
        "next token": lambda tokens: _offset(1, tokens),
        "first token": _first,
        "itself": lambda tokens: _offset(0, tokens),
        "same token": _same_token,
        "induction": _induction,
    }
)
"""Same token: another occurrence of the token. Induction: the token that followed an earlier occurrence."""


def role_skills(weights: Float[Tensor, "h t t"], tokens: Sequence[int]) -> dict[str, Float[Tensor, "h 2"]]:
    """Share and skill of every head by rule; rules that name no key in this text are left out."""
    ids = torch.tensor(list(tokens), device=weights.device)
    possible = torch.ones_like(weights[0], dtype=torch.bool)
    if not bool(weights.triu(1).any()):
        possible = possible.tril()
    choices = possible.sum(-1)
    skills = {}
    for name, rule in RULES.items():
        named = rule(ids) & possible
        rows = named.any(-1) & (named.sum(-1) < choices)
        if not bool(rows.any()):
            continue
        total = weights[:, rows].sum(-1)
        share = ((weights[:, rows] * named[rows]).sum(-1) / total.clamp_min(1e-30)).mean(-1)
        chance = (named.sum(-1) / choices)[rows].mean()
        skills[name] = torch.stack((share, (share - chance) / (1 - chance)), dim=-1)
    return skills


def head_roles(weights: Float[Tensor, "h t t"], tokens: Sequence[int]) -> list[HeadRole | None]:
    """The role of every head of a layer in this text; None for a head that follows none of the rules."""
    skills = role_skills(weights, tokens)
    if not skills:
        return [None] * len(weights)
    names, table = list(skills), torch.stack(list(skills.values()))  # [rules h 2]
    best = table[..., 1].argmax(0).tolist()
    closest = [HeadRole(names[rule], *table[rule, head].tolist()) for head, rule in enumerate(best)]
    return [role if role.skill >= LEAST_SKILL else None for role in closest]
