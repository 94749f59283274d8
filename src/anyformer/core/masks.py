"""Attention masks as pure element-wise rules: which query sees which key.

One rule serves the dense mask, FlexAttention's mask_mod, the window of flash attention (`band`), the blocked CPU path,
the cost (pairs) and the picture. Rules combine with `&` and `|`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import chain
from operator import and_, or_
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from anyformer.core.frame import Marks
from anyformer.core.spec import Spec, decode
from anyformer.errors import SpecError

_ROWS = 1024


class Band(NamedTuple):
    """A mask that depends on the distance alone: i sees j  iff  -back <= j - i <= ahead."""

    back: int | None
    """None: to the first token."""
    ahead: int | None
    """None: to the last token."""

    def limits(self) -> tuple[int, int]:
        """Back and ahead as kernels take them: -1 for no limit."""
        back, ahead = (-1 if limit is None else limit for limit in self)
        return back, ahead


@dataclass(frozen=True, kw_only=True)
class MaskRule(Spec):
    """Which query sees which key."""

    symmetric: ClassVar[bool] = False
    """True: i sees j exactly if j sees i. Then a causal stack keeps half of the pairs, and counting is quick."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Not a field: derived, and set once, because a compiled graph reads an attribute but cannot run json.
        object.__setattr__(self, "text", json.dumps(self.to_dict(), sort_keys=True))

    if TYPE_CHECKING:

        @property
        def text(self) -> str:
            """The rule as JSON. Caches use it as their key: a compiled graph can hold a string, but no object."""

    def allows(self, q: Marks, k: Marks) -> Bool[Tensor, "..."]:
        """True where a query sees a key, element-wise over marks that broadcast against each other."""
        raise NotImplementedError

    @property
    def directed(self) -> bool:
        """True: the rule decides by itself, at least in part, which future tokens are visible in a causal stack."""
        return False

    def in_causal(self) -> "MaskRule":
        """The rule in a stack that must not see the future, except where the rule itself is directed."""
        return self if self.directed else self & Causal()

    @property
    def static(self) -> bool:
        """True: the rule depends on positions alone, so that a mask can be cached by length."""
        return True

    @property
    def band(self) -> Band | None:
        """The rule as a band of distances, for kernels that support only that; None if it is not one."""
        return None

    @property
    def band_in_document(self) -> Band | None:
        """The band of tokens that a token sees in its own document; None if it is not one.

        A band of positions is one of tokens: in a document both count up by one.
        """
        return self.band

    @property
    def is_full(self) -> bool:
        """True: every token sees every token, so that no mask is needed."""
        return self.band == Band(None, None)

    @property
    def is_causal(self) -> bool:
        """True for the causal triangle, which every kernel has a fast path for."""
        return self.band == Band(None, 0)

    def pairs(self, q_len: int, k_len: int) -> int:
        """Number of allowed (query, key) pairs if the queries are the last q_len of k_len tokens."""
        return _count_pairs(self, q_len, k_len)

    def __and__(self, other: "MaskRule") -> "MaskRule":
        rules = [rule for rule in _unique(And, self, other) if rule != Full()] or [Full()]
        return rules[0] if len(rules) == 1 else And(rules=tuple(rules))

    def __or__(self, other: "MaskRule") -> "MaskRule":
        rules = _unique(Or, self, other)
        if Full() in rules:
            return Full()
        return rules[0] if len(rules) == 1 else Or(rules=tuple(rules))


@dataclass(frozen=True, kw_only=True)
class Full(MaskRule, kind="full"):
    """Every token sees every token."""

    band = Band(None, None)

    def allows(self, q: Marks, k: Marks) -> Tensor:
        return torch.ones_like(q.position - k.position, dtype=torch.bool)

    def pairs(self, q_len: int, k_len: int) -> int:
        return q_len * k_len


@dataclass(frozen=True, kw_only=True)
class Causal(MaskRule, kind="causal"):
    """A token sees itself and the tokens before it."""

    band = Band(None, 0)

    def allows(self, q: Marks, k: Marks) -> Tensor:
        return k.position <= q.position

    def pairs(self, q_len: int, k_len: int) -> int:
        return q_len * (k_len - q_len) + q_len * (q_len + 1) // 2


@dataclass(frozen=True, kw_only=True)
class Segment(MaskRule, kind="segment"):
    """Tokens of one packed document see each other."""

    band_in_document = Band(None, None)
    static = False

    def allows(self, q: Marks, k: Marks) -> Tensor:
        if q.segment is None or k.segment is None:
            return torch.ones_like(q.position - k.position, dtype=torch.bool)
        return q.segment == k.segment


@dataclass(frozen=True, kw_only=True)
class _Combined(MaskRule):
    """Several rules as one."""

    rules: tuple[MaskRule, ...]

    def check(self) -> None:
        if not self.rules:
            raise SpecError("rules: give at least one.")

    @property
    def directed(self) -> bool:
        return any(rule.directed for rule in self.rules)

    @property
    def static(self) -> bool:
        return all(rule.static for rule in self.rules)


@dataclass(frozen=True, kw_only=True)
class And(_Combined, kind="and"):
    """A key is seen if all rules allow it."""

    def allows(self, q: Marks, k: Marks) -> Tensor:
        return reduce(and_, (rule.allows(q, k) for rule in self.rules))

    def pairs(self, q_len: int, k_len: int) -> int:
        others = [rule for rule in self.rules if not rule.is_causal]
        if len(others) == 1 < len(self.rules) and others[0].symmetric:
            return _half(others[0], k_len) - _half(others[0], k_len - q_len)
        return super().pairs(q_len, k_len)

    def in_causal(self) -> MaskRule:
        if not self.directed:
            return self & Causal()
        return reduce(and_, (rule.in_causal() if rule.directed else rule for rule in self.rules))

    @property
    def band(self) -> Band | None:
        return _intersection([rule.band for rule in self.rules])

    @property
    def band_in_document(self) -> Band | None:
        return _intersection([rule.band_in_document for rule in self.rules])

    @classmethod
    def examples(cls) -> "tuple[And, ...]":
        return (cls(rules=(Full(), Causal())),)


@dataclass(frozen=True, kw_only=True)
class Or(_Combined, kind="or"):
    """A key is seen if any rule allows it."""

    def allows(self, q: Marks, k: Marks) -> Tensor:
        return reduce(or_, (rule.allows(q, k) for rule in self.rules))

    def in_causal(self) -> MaskRule:
        """Each rule for itself, so that a prefix stays open beside rules that must not see the future."""
        return reduce(or_, (rule.in_causal() for rule in self.rules))

    @classmethod
    def examples(cls) -> "tuple[Or, ...]":
        return (cls(rules=(Causal(), Full())),)


def dense(rule: MaskRule, q_len: int, k_len: int) -> Bool[Tensor, "q k"]:
    """The rule as a dense mask, for queries that are the last q_len of k_len tokens; the reference and the picture."""
    return torch.cat(list(_chunks(rule, q_len, k_len)))


def rule_from(text: str) -> MaskRule:
    """The rule with this `MaskRule.text`."""
    return decode(MaskRule, json.loads(text))


def _intersection(bands: list[Band | None]) -> Band | None:
    """The band inside all others; None if one rule is not a band."""
    common = Band(None, None)
    for band in bands:
        if band is None:
            return None
        common = Band(_nearer(common.back, band.back), _nearer(common.ahead, band.ahead))
    return common


def _nearer(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _half(rule: MaskRule, length: int) -> int:
    """Pairs of a symmetric rule on and below the diagonal."""
    each = Marks(torch.arange(length, device="cpu"))
    return (rule.pairs(length, length) + int(rule.allows(each, each).sum())) // 2


def _chunks(rule: MaskRule, q_len: int, k_len: int) -> Iterator[Tensor]:
    """The dense mask, some rows at a time, on the CPU whatever torch's default device is."""
    keys = torch.arange(k_len, device="cpu")
    for queries in keys[k_len - q_len :].split(_ROWS):
        yield rule.allows(Marks(queries[:, None]), Marks(keys[None])).expand(len(queries), k_len)


@lru_cache(maxsize=4096)
def _count_pairs(rule: MaskRule, q_len: int, k_len: int) -> int:
    return sum(int(rows.sum()) for rows in _chunks(rule, q_len, k_len))


def _unique(combined: type[_Combined], *operands: MaskRule) -> list[MaskRule]:
    """All rules of the operands, each once; an operand that is a combination itself is flattened."""
    parts = (operand.rules if isinstance(operand, combined) else (operand,) for operand in operands)
    return list(dict.fromkeys(chain.from_iterable(parts)))
