"""A claim of the lectures as an experiment: what they say, what is measured, and what the figures say to that.

Measuring and judging are apart, so that figures which took hours can be stored, judged again and drawn again.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from anyformer.core.fields import did_you_mean
from anyformer.drawing.figures import Panel
from anyformer.errors import SpecError

CLAIMS = "anyformer.analysis.claims"
Figures: TypeAlias = Mapping[str, Any]
"""Name -> a number, or a list of numbers that belong to a curve; nothing that JSON cannot hold."""


Word: TypeAlias = Literal["holds", "does not hold", "depends"]


@dataclass(frozen=True)
class Verdict:
    """What the figures say to the claim."""

    word: Word
    because: str
    """With the figure that decides."""


class Claim(ABC):
    """What the lectures say. A file of `analysis/claims` that defines a subclass with `ids` adds one."""

    ids: ClassVar[tuple[str, ...]]
    """Rows of the lectures that it answers, the first one its name."""
    says: ClassVar[str]
    """What the lectures say, in our words."""
    trains: ClassVar[bool] = False
    """Needs models that have learned something: runs only when asked to, and is stored."""
    known: ClassVar[list[type["Claim"]]] = []

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "ids" in cls.__dict__:
            Claim.known.append(cls)

    @abstractmethod
    def find(self, folder: Path) -> Figures:
        """Measures; what has to be written on the way goes into `folder`."""

    @abstractmethod
    def judge(self, figures: Figures) -> Verdict:
        """The verdict that the figures give."""

    @abstractmethod
    def picture(self, figures: Figures) -> Sequence[Panel]:
        """The figures to look at."""


class Measured(Claim):
    """A claim that fresh weights, or none at all, can decide."""

    @abstractmethod
    def measure(self) -> Figures: ...

    def find(self, folder: Path) -> Figures:
        return self.measure()


class TrainedClaim(Claim):
    """A claim about what is learned."""

    trains = True

    @abstractmethod
    def train(self, folder: Path) -> Figures:
        """Its runs are folders inside `folder`."""

    def find(self, folder: Path) -> Figures:
        return self.train(folder)


@cache
def claims() -> tuple[Claim, ...]:
    """All of them, in the order of their names."""
    for module in pkgutil.iter_modules(importlib.import_module(CLAIMS).__path__, prefix=f"{CLAIMS}."):
        importlib.import_module(module.name)
    return tuple(sorted((kind() for kind in Claim.known), key=lambda claim: claim.ids))


def claim(name: str) -> Claim:
    """The one that answers this row."""
    by_id = {row: one for one in claims() for row in one.ids}
    if name.upper() not in by_id:
        raise SpecError(f"no claim is called {name!r}.{did_you_mean(name.upper(), by_id)}")
    return by_id[name.upper()]
