"""The table of docs/exporting.md: what becomes of every preset, and small models to check each of its cells with."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.models.test_presets import cut

from anyformer.core import ModelSpec

GUIDE = Path(__file__).parents[2] / "docs" / "exporting.md"
LONGEST = 24
SIZES = {
    "dim": 32, "depth": 2, "heads": 4, "kv_heads": 2, "vocab": 300, "max_len": LONGEST, "hidden": 48, "width": 16,
    "head_dim": 8,
}  # fmt: skip


class Row(NamedTuple):
    """What becomes of a preset: the class of transformers or the kind of graph, or the reason of a refusal."""

    hf: str
    onnx: str = ""


@cache
def rows() -> dict[str, Row]:
    """The rows of the table by preset; several presets may share a line."""
    table = [line.strip("|").split("|") for line in GUIDE.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    cells = [[cell.strip() for cell in line] for line in table]
    return {name.strip("` "): Row(*line[1:]) for line in cells for name in line[0].split(",")}


def refused(cell: str) -> str | None:
    """The reason of a refusal; None for a cell that works."""
    return cell.removeprefix("refused: ") if cell.startswith("refused: ") else None


def small(preset: str, longest: int = LONGEST) -> ModelSpec:
    """A preset with small sizes."""
    sizes = {name: size for name, size in SIZES.items() if name != "width" or "albert" in preset}
    depth = 3 if preset == "hybrid" else SIZES["depth"]  # its third layer is the one that attends
    return cut(preset, **{**sizes, "depth": depth, "max_len": longest})
