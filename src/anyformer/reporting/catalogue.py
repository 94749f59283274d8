"""The catalogue of kinds: description, options, limits, slots and cost of each, as plain data."""

import difflib
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import cattrs

from anyformer.core import discovery
from anyformer.core.fields import did_you_mean
from anyformer.core.schema import Option
from anyformer.errors import SpecError

PERSPECTIVES = {
    "vanilla": "from the original Transformer, or older",
    "efficiency": "less time or memory for long sequences",
    "generalisation": "learns more from less data: structure, regularisation, pre-training",
    "adaptation": "designed for a task or a kind of data",
}
"""The lectures' taxonomy of architectures."""


@dataclass(frozen=True)
class Measures:
    """An example of a kind, where it fits, and its cost or its picture, which take time to find."""

    example: str
    """A line of a recipe that uses the kind."""
    fits: tuple[str, ...]
    """The fields that accept the kind, such as `branch.part`."""
    cost: dict[str, int] | None = None
    """Parameters, FLOPs and bytes of a part alone."""
    size: str = ""
    """The input size of the cost."""
    picture: str = ""
    """The matrix of a mask."""
    pictured: str = ""
    """The mask of the picture, as TOML."""


@dataclass(frozen=True)
class CatalogueEntry:
    """One kind of the catalogue."""

    family: str
    """Name of the class of its family."""
    kind: str
    slot: str
    """The folder of its module below `anyformer.parts`; for a kind defined elsewhere, the name of its family."""
    slot_text: str
    """First line of the documentation of the slot."""
    family_names: tuple[str, ...]
    """The names by which its family can be selected: mixers, mixer, part, parts, PartSpec."""
    perspective: str | None
    """One of `PERSPECTIVES`, for the architectures of the lectures; None for every other kind."""
    summary: str
    text: str
    """The docstring of its module with idea, equation and paper; its summary if the module has several kinds."""
    options: tuple[Option, ...]
    limits: dict[str, str]
    measures: Measures | None = None

    def to_dict(self) -> dict[str, Any]:
        """The entry in the output of `parts --json`."""
        return {
            "family": self.slot,
            "kind": self.kind,
            "summary": self.summary,
            "options": [asdict(option) for option in self.options],
            "perspective": self.perspective,
            "limits": self.limits,
        }


def stored_entries() -> list[CatalogueEntry]:
    """Every built-in kind, sorted by slot and name, as `catalogue.json` has it."""
    return cattrs.structure(discovery.catalogue()["parts"], list[CatalogueEntry])


def select(
    entries: Sequence[CatalogueEntry], kind: str | None, family: str | None, perspective: str | None
) -> list[CatalogueEntry]:
    """The entries that match every filter that is not None. An unknown name is an error."""
    if family is not None:
        slots = {entry.slot for entry in entries}
        entries = [entry for entry in entries if family in entry.family_names]
        if not entries:
            raise _unknown("family", family, slots)
    if perspective is not None:
        if perspective not in PERSPECTIVES:
            raise _unknown("perspective", perspective, PERSPECTIVES)
        entries = [entry for entry in entries if entry.perspective == perspective]
    if kind is not None:
        near = difflib.get_close_matches(kind, sorted({entry.kind for entry in entries}), 3)
        entries = [entry for entry in entries if entry.kind == kind]
        if not entries:  # without the list of known kinds, which has more than a hundred
            guess = f" Did you mean {' or '.join(near)}?" if near else ""
            hint = f"For a kind of your own: anyformer --import FILE parts {kind}"
            raise SpecError(f"no part is called {kind!r}.{guess} All of them: anyformer parts. {hint}")
    return list(entries)


def _unknown(what: str, name: str, known: Collection[str]) -> SpecError:
    return SpecError(f"no {what} is called {name!r}.{did_you_mean(name, known)}")
