"""The attention weights of a run on a text, and a selection of a stack, a layer, a head and a token."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from anyformer.analysis.head_roles import HeadRole
from anyformer.core import Frame
from anyformer.core.discovery import discover
from anyformer.core.fields import did_you_mean
from anyformer.core.readable_numbers import counted
from anyformer.drawing.figures import one_line, picture
from anyformer.errors import Problem, SpecError
from anyformer.run import Choice, Run
from anyformer.viewing.attention_maps import WHOLE, PartWeights, StackWeights, looks, tapped
from anyformer.viewing.neuron_view import Neurons
from anyformer.viewing.page import NOTHING, column_names, left_out, page, row_names
from anyformer.viewing.tokenised_text import TokenisedText, read

Taps: TypeAlias = Callable[[str, str], Mapping[str, Sequence[Tensor]]]
PICTURES = (".svg", ".png")
PAGES = (".html", ".htm")


@dataclass(frozen=True, eq=False)
class View:
    """The attention weights or influences of a run's model on a text."""

    name: str
    text: str
    reading: TokenisedText
    looks: Sequence[StackWeights]
    taps: Taps
    """Captured tensors by tap of the part with a stack name and a layer label."""
    vectors: Float[Tensor, "t d"]
    """Output of the last layer for each token; for an encoder-decoder, of the encoder."""

    @classmethod
    @torch.no_grad()
    def of(cls, folder: str | Path, text: str, target: str | None = None, step: Choice = "best") -> "View":
        discover()
        run = Run.open(folder)
        predictor = run.trained("cpu", step)
        model, reading = predictor.model, read(predictor, text, target)
        stacks = looks(run.recipe.model, model, reading.tokens, reading.source)
        taps = partial(tapped, run.recipe.model, model, reading.tokens, reading.source)
        if reading.source is not None:
            vectors = model.encode(torch.tensor([reading.source]), Frame()).x[0]
        else:
            vectors = model(torch.tensor([reading.tokens]), Frame(), logits=False).y[0]
        return cls(run.name, text, reading, stacks, taps, vectors)

    def remarks(self) -> list[str]:
        """What the view does not show, such as tokens beyond the context."""
        return left_out(self.reading, self.looks)

    def alike(self, word: str) -> list[tuple[int, int, float]]:
        """Every pair of positions of a word with the cosine of its vectors; 1 if the vector ignores the context."""
        names = self.reading.source_names or self.reading.names
        places = [place for place, name in enumerate(names) if _bare(name) == _bare(word)]
        vectors = self.vectors.double()
        return [
            (one, other, torch.cosine_similarity(vectors[one], vectors[other], dim=0).item())
            for one, other in combinations(places, 2)
        ]

    def choose(self, layer: str | None = None, head: int | None = None, token: str | None = None) -> "ViewSelection":
        """Selects a layer ("2", "cross.2" or "cross") and a head from 1; default: the last layer and all heads."""
        name, _, number = (layer or "").rpartition(".")
        if not name and not number.isdigit() and number != WHOLE:
            name, number = number, ""
        stacks = {look.name: look for look in self.looks}
        if name and name not in stacks:
            raise _refusal("--layer", f"there is no {name!r} here.{did_you_mean(name, stacks)}")
        look = stacks[name] if name else self.looks[0]
        sheet = next((sheet for sheet in look.sheets if sheet.label == number), None) if number else look.sheets[-1]
        if sheet is None:
            labels = ", ".join(sheet.label for sheet in look.sheets)
            raise _refusal("--layer", f"there is no layer {number} here; there are {labels}.")
        if head is not None and head > len(sheet.weights):
            raise _refusal("--head", f"layer {sheet.label} has {counted(len(sheet.weights), 'heads')}.")
        rows = row_names(look, self.reading)[: sheet.weights.shape[1]]
        places = [place for place, row in enumerate(rows) if token is not None and _bare(row) == _bare(token)]
        if token is not None and not places:
            raise _refusal("--token", f"no token here is {token!r}.{did_you_mean(token, rows)}")
        return ViewSelection(self, look, sheet, None if head is None else head - 1, places[0] if places else None)

    def bytes(self, ending: str, choice: "ViewSelection", *, chosen: bool = True) -> bytes:
        """The page, or a picture of the selection, depending on the file name extension."""
        if ending in PICTURES:
            return choice.picture(ending[1:])
        if ending not in PAGES:
            raise SpecError(f"--out: a page ends in .html, a picture in .svg or .png, not in {ending or 'nothing'}.")
        start = choice.start if chosen else NOTHING
        return page(self.name, self.text, self.reading, self.looks, start).encode("utf-8", "replace")


@dataclass(frozen=True, eq=False)
class ViewSelection:
    """One matrix of a view, and optionally one of its rows."""

    view: View
    look: StackWeights
    sheet: PartWeights
    head: int | None
    """Head, counted from 0; None for the mean of all heads."""
    token: int | None

    @property
    def weights(self) -> Float[Tensor, "n m"]:
        return self.sheet.weights.mean(0) if self.head is None else self.sheet.weights[self.head]

    @property
    def rows(self) -> list[str]:
        return row_names(self.look, self.view.reading)[: self.sheet.weights.shape[1]]

    @property
    def columns(self) -> list[str]:
        count = self.sheet.weights.shape[2]
        if self.sheet.slots:
            return [str(slot + 1) for slot in range(count)]
        return column_names(self.look, self.view.reading)[:count]

    @property
    def start(self) -> dict[str, Any]:
        """The initial selection of the page."""
        layer = self.look.sheets.index(self.sheet)
        return {"look": self.look.name, "layer": layer, "head": self.head, "token": self.token}

    @property
    def title(self) -> str:
        heads = len(self.sheet.weights)
        which = "" if heads == 1 else f", mean of {heads} heads" if self.head is None else f", head {self.head + 1}"
        return f"{self.sheet.measure}: {self.look.name}, layer {self.sheet.label}{which}"

    def neurons(self) -> Neurons | None:
        """Query, keys and weights of the selected token in the selected head; None unless both are selected."""
        if self.head is None or self.token is None:
            return None
        return Neurons.of(self.view.taps(self.look.name, self.sheet.label), self.head, self.token)

    def picture(self, form: str) -> bytes:
        """A picture of `neurons` if there are any, otherwise the map of all tokens."""
        if self.token is not None and (neurons := self.neurons()):
            return neurons.drawing(self.rows[self.token], self.columns).bytes(form)
        return picture(self.title, self.rows, self.columns, self.weights, form)

    def strongest(self, row: int, most: int) -> list[tuple[str, float]]:
        """The `most` tokens with the largest weights in a row, with their weights."""
        values, places = self.weights[row].topk(min(most, self.weights.shape[1]))
        return [(self.columns[place], value) for place, value in zip(places.tolist(), values.tolist(), strict=True)]

    def by_head(self) -> "list[ViewSelection]":
        """The selection for every head alone; empty if one head is selected or there is only one."""
        heads = len(self.sheet.weights)
        return [replace(self, head=head) for head in range(heads)] if self.head is None and heads > 1 else []

    def lines(self) -> list[str]:
        """The selected row with every head's row, or the largest weights of every row, as text."""
        if self.token is None:
            return [self.title, *(self._line(row, _shown(self.rows[row]), 3) for row in range(len(self.rows)))]
        heads = [one._line(self.token, f"head {head}", 3) for head, one in enumerate(self.by_head(), start=1)]
        return [self.title, self._line(self.token, _shown(self.rows[self.token]), 8), *heads]

    def _line(self, row: int, name: str, most: int) -> str:
        strongest = ", ".join(f"{_shown(key)} {value:.4f}" for key, value in self.strongest(row, most))
        return f"{name:>12}  ->  {strongest}"

    def to_dict(self) -> dict[str, Any]:
        """The output of `view --json`."""
        chosen = slice(None) if self.token is None else slice(self.token, self.token + 1)
        sheet, distances = self.sheet, self.sheet.distance
        heads = range(len(sheet.weights)) if self.head is None else [self.head]
        return {
            "run": self.view.name,
            "stack": self.look.name,
            "layer": sheet.label,
            "head": None if self.head is None else self.head + 1,
            "measure": sheet.measure,
            "rows": self.rows[chosen],
            "columns": self.columns,
            "weights": self.weights[chosen].tolist(),
            "entropy": [sheet.entropy[head].item() for head in heads],
            "distance": None if distances is None else [distances[head].item() for head in heads],
            "roles": None if sheet.roles is None else [_role(sheet.roles[head]) for head in heads],
            "tokens": [self.look.length, self.look.width],
            "left_out": self.view.reading.left_out,
        }


def _role(role: HeadRole | None) -> dict[str, Any] | None:
    return None if role is None else {"name": role.name, "share": role.share}


def _refusal(option: str, text: str) -> SpecError:
    return SpecError(problems=[Problem(option, text)])


def _shown(token: str) -> str:
    """A token in a line of text, where white space alone would not be seen."""
    return token.strip() or one_line(token)


def _bare(token: str) -> str:
    return token.strip().casefold()
