"""A table of presets: layers, width, heads and weights are computed from the specs; data and hardware are as published.

The FLOPs of training are those of a decoder, 6 N D (arXiv 2001.08361), if the number of training tokens is known.
"""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anyformer.core import ModelSpec
from anyformer.models.presets import preset_names
from anyformer.models.single import stacks_of
from anyformer.parts.mixers.attention import Attention
from anyformer.statistics.laws import training_flops
from anyformer.training import load

PUBLISHED = Path(__file__).with_name("large_models.csv")


@dataclass(frozen=True)
class Sized:
    """The sizes of a preset, and published facts about the training of that model."""

    model: str
    layers: str
    width: str
    heads: str
    params: int
    """Number of weights, counted in the built model."""
    date: str = ""
    """Year and month of publication, as 2020-05; empty for presets that are not published models."""
    published: float | None = None
    tokens: float | None = None
    """Number of training tokens, if published."""
    data: str = ""
    training: str = ""
    remark: str = ""

    @property
    def flops(self) -> float | None:
        """FLOPs of training; None if the number of tokens is unknown."""
        return None if self.tokens is None else training_flops(self.params, self.tokens)

    @property
    def year(self) -> float:
        year, month = map(int, self.date.split("-"))
        return year + (month - 0.5) / 12

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "flops": self.flops}


@cache
def sized() -> tuple[Sized, ...]:
    """All presets, sorted by their number of weights."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = {line.pop("preset"): line for line in csv.DictReader(file)}
    models = []
    for name in preset_names():
        row = rows.get(name, {})
        published, tokens = (float(row[key]) if row.get(key) else None for key in ("published", "tokens"))
        words = {key: row.get(key, "") for key in ("date", "data", "training", "remark")}
        models.append(Sized(name, *sizes(load(name)), weights(name), published=published, tokens=tokens, **words))
    return tuple(sorted(models, key=lambda model: model.params))


def large(models: Sequence[Sized]) -> list[Sized]:
    """The published models, sorted by date."""
    return sorted((model for model in models if model.date), key=lambda model: (model.date, model.params))


def sizes(spec: ModelSpec) -> tuple[str, str, str]:
    """Layers, width and heads of a model; values that differ between its stacks are listed for each."""
    halves = list(stacks_of(spec).values())
    heads = {str(inner.heads): None for _, inner in spec.walk() if isinstance(inner, Attention)}
    widths = {str(half.dim): None for half in halves}
    return " + ".join(str(half.stack.depth) for half in halves), " / ".join(widths), " / ".join(heads)


@cache
def weights(name: str) -> int:
    """The number of weights of a preset, counted on the meta device."""
    return sum(parameter.numel() for parameter in load(name).build(device="meta").parameters())
