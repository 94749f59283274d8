"""A table of presets: layers, width, heads and weights are those of the catalogue; data and hardware are as published.

The FLOPs of training are those of a decoder, 6 N D (arXiv 2001.08361), if the number of training tokens is known.
"""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anyformer.core.discovery import catalogue
from anyformer.core.readable_numbers import human
from anyformer.statistics.laws import training_flops

PUBLISHED = Path(__file__).with_name("large_models.csv")
Row = dict[str, str]
"""Heading -> text."""


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
    for name, counts in catalogue()["presets"].items():
        facts, (layers, width, heads), params = rows.get(name, {}), counts["sizes"], counts["cost"]["params"]
        published, tokens = (float(facts[key]) if facts.get(key) else None for key in ("published", "tokens"))
        words = {key: facts.get(key, "") for key in ("date", "data", "training", "remark")}
        models.append(Sized(name, layers, width, heads, params, published=published, tokens=tokens, **words))
    return tuple(sorted(models, key=lambda model: model.params))


def large(models: Sequence[Sized]) -> list[Sized]:
    """The published models, sorted by date."""
    return sorted((model for model in models if model.date), key=lambda model: (model.date, model.params))


def row(model: Sized) -> Row:
    """One model as a row of the table in the lectures."""
    return {
        "model": model.model,
        "layers": model.layers,
        "width": model.width,
        "heads": model.heads,
        "params": human(model.params),
        "data": model.data,
        "training": model.training,
    }


def filled(rows: Sequence[Row]) -> list[Row]:
    """The rows without columns that are empty in every row."""
    columns = [name for name in rows[0] if any(one[name] for one in rows)]
    return [{name: one[name] for name in columns} for one in rows]
