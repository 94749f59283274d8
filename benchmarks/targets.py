"""What is to be reached, from targets.toml beside this file; and how far a row is from it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.rows import Row

FILE = Path(__file__).with_name("targets.toml")


@dataclass(frozen=True, kw_only=True)
class Target:
    """The lowest ratios that will do."""

    device: str
    item: str
    peer: str
    shape: Mapping[str, Any] = field(default_factory=dict)
    """What a row has to say of itself to be meant."""
    ratio: float
    memory: float | None = None
    """How many times less of it."""

    def means(self, row: Row) -> bool:
        named = (self.device, self.item, self.peer) == (row.device, row.item, row.peer)
        return named and all(row.shape.get(name) == value for name, value in self.shape.items())

    def verdict(self, row: Row) -> str:
        """In words, with what was asked for."""
        asked = {"speed": (self.ratio, row.ratio), "memory": (self.memory, row.memory_ratio)}
        told = []
        for what, (wanted, found) in asked.items():
            if wanted is not None:
                reached = found is not None and found >= wanted
                told.append(f"{what} {wanted:g}x: {'reached' if reached else f'misses by {_gap(wanted, found)}'}")
        return "; ".join(told)


def _gap(wanted: float, found: float | None) -> str:
    return "all of it" if found is None else f"{100 * (1 - found / wanted):.2g}%"


@lru_cache
def _file() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text())


def targets() -> tuple[Target, ...]:
    return tuple(Target(**one) for one in _file()["target"])


def next_steps() -> tuple[str, ...]:
    """What people conclude from the figures."""
    return tuple(_file()["next"])


def verdict(row: Row) -> str:
    """Of the target that means this row; nothing where none does."""
    return next((target.verdict(row) for target in targets() if target.means(row)), "")
