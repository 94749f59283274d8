"""A self-contained page of attention weights: it loads nothing, and no text can run as a script."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from torch import Tensor

import anyformer
from anyformer.core.readable_numbers import counted
from anyformer.viewing.attention_maps import PartWeights, StackWeights
from anyformer.viewing.tokenised_text import TokenisedText

TEMPLATES = Path(__file__).parent / "templates"
SHOWN = 2000
"""Maximum number of characters of the text in the header of the page."""
NOTHING: Mapping[str, Any] = MappingProxyType({"look": None, "layer": None, "head": None, "token": None})


def page(
    name: str, text: str, reading: TokenisedText, looks: Sequence[StackWeights], start: Mapping[str, Any] = NOTHING
) -> str:
    """The HTML page for the run `name` on `text`; `start` is its initial selection, with numbers from 0."""
    css, script = ((TEMPLATES / file).read_text(encoding="utf-8") for file in ("view.css", "view.js"))
    data = json.dumps({"looks": [_look(look, reading) for look in looks], "start": dict(start)}, allow_nan=False)
    for letter in "&<>":  # escaped, so that no text can close the script element around the data
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    policy = (
        f"default-src 'none'; style-src '{_sha(css)}'; script-src '{_sha(script)}'; base-uri 'none'; form-action 'none'"
    )
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("view.html.j2").render(
        name=name,
        text=text[:SHOWN] + (" ..." if len(text) > SHOWN else ""),
        facts=_facts(reading, looks),
        css=Markup(css),
        script=Markup(script),
        data=Markup(data),
        policy=policy,
        version=anyformer.__version__,
    )


def row_names(look: StackWeights, reading: TokenisedText) -> list[str]:
    """Names of the query tokens; for cross-attention, the tokens that are predicted."""
    names = {"cross": reading.written, "encoder": reading.source_names or reading.names}.get(look.name, reading.names)
    return names[: look.length]


def column_names(look: StackWeights, reading: TokenisedText) -> list[str]:
    """Names of the key tokens."""
    return reading.source_names[: look.width] if look.name == "cross" else row_names(look, reading)


def _look(look: StackWeights, reading: TokenisedText) -> dict[str, Any]:
    rows, columns = (max(sheet.weights.shape[axis] for sheet in look.sheets) for axis in (1, 2))
    return {
        "name": look.name,
        "rows": row_names(look, reading)[:rows],
        "columns": column_names(look, reading)[:columns],
        "tokens": [look.length, look.width],
        "sheets": [_sheet(sheet) for sheet in look.sheets],
    }


def _sheet(sheet: PartWeights) -> dict[str, Any]:
    return {
        "label": sheet.label,
        "measure": sheet.measure,
        "slots": sheet.slots,
        "directions": sheet.directions,
        "shape": list(sheet.weights.shape),
        "weights": _packed(sheet.weights),
        "overview_shape": list(sheet.overview.shape),
        "overview": _packed(sheet.overview),
        "entropy": [round(value, 5) for value in sheet.entropy.tolist()],
        "distance": None if sheet.distance is None else [round(value, 5) for value in sheet.distance.tolist()],
        "roles": sheet.roles and [role and [role.name, round(role.share, 4)] for role in sheet.roles],
    }


def _facts(reading: TokenisedText, looks: Sequence[StackWeights]) -> list[str]:
    """Notes for readers: what is measured, and what was truncated or estimated."""
    notes: list[str] = []
    sheets = [sheet for look in looks for sheet in look.sheets]
    measures = {sheet.measure for sheet in sheets}
    if "attention" in measures:
        notes.append("Attention: the weight of each token (column) in the output of a head at a token (row).")
    if "influence" in measures:
        whose = "Some of its layers have" if "attention" in measures else "This model has"
        notes.append(
            f"{whose} no attention weights. Shown instead is influence: the norm of the derivative "
            "|dy_i/dx_j|, how much the output at token i would change with the input at token j."
        )
    if any(sheet.directions and sheet.directions[0] < sheet.directions[1] for sheet in sheets):
        notes.append("Influences of this many tokens are estimated from random directions of the output.")
    notes += left_out(reading, looks)
    if any(sheet.slots for sheet in sheets):
        notes.append("Numbered columns are not tokens: the layer attends to a fixed number of mixtures of tokens.")
    return notes


def left_out(reading: TokenisedText, looks: Sequence[StackWeights]) -> list[str]:
    """Notes about the tokens of a long text that are not shown, and how to see them."""
    notes: list[str] = []
    if count := reading.left_out:
        end = f"{counted(count, 'tokens')} at the end of the text"
        notes.append(f"{end} did not fit into the model and {'was' if count == 1 else 'were'} left out.")
    for look in looks:
        tokens = len(reading.source or reading.tokens) if look.name == "encoder" else len(reading.tokens)
        if look.length < tokens:
            notes.append(f"{look.name}: read up to token {look.length:,} of {tokens:,}, because influence is slow.")
        rows = look.sheets[0].weights.shape[1]
        if rows < look.length:
            notes.append(
                f"{look.name}: lines, map and numbers show the first {rows:,} of {look.length:,} tokens; small "
                "pictures, entropy and distance cover all tokens."
            )
    return [*notes, "To see the rest, give that part of the text alone."] if notes else []


def _packed(values: Tensor) -> str:
    """Values as little-endian 32-bit floats in base64."""
    return base64.b64encode(values.float().contiguous().numpy().astype("<f4").tobytes()).decode()


def _sha(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
