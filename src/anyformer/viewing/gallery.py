"""Pictures of kinds, measured on small examples: masks, positions, norms and parts that mix tokens.

- Mask: a dark cell where the token of the row may attend to the token of the column.
- Position encoding: the value that is added to token vectors, by position and channel; inside attention, the score of
  two vectors of ones at every pair of positions.
- Norm: a cube of batch, positions and channels with the inputs x that the output y at the front corner depends on
  (dy / dx is not zero).
- Part at initialisation: the influence |dy_i/dx_j|, and the attention weights if any. A part that attends to mixtures
  of tokens, such as Linformer, has one column of weights for each mixture, and a picture of its projection: the share
  of every token (column) in every mixture (row) of the first head's keys.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from anyformer.analysis.influence import influence
from anyformer.core import (
    Frame,
    Heads,
    Marks,
    MaskRule,
    Memory,
    NormSpec,
    PartSpec,
    Position,
    PositionSpec,
    Site,
    Spec,
    StackPlace,
    capture,
    initialise,
)  # fmt: skip
from anyformer.drawing.figures import Drawing
from anyformer.errors import SpecError
from anyformer.parts.inits.xavier import Xavier

M = TypeVar("M", bound=nn.Module)
LENGTH, PART_DIM = 16, 32
"""Tokens in the pictures of masks and parts, and the width of a part."""
CUBE = (4, 5, 6)
"""Batch, positions and channels in the picture of a norm."""
POSITIONS, POSITION_DIM, POSITION_HEADS = 64, 64, 4
INCHES, LONGEST_TITLE = 3.4, 30
MARKED, OTHER = "#2767c4", "#dfe4ea20"


def picture_of(kind: type[Spec]) -> Drawing:
    """The picture of the examples of a kind."""
    if not kind.examples():
        raise SpecError(f"--picture: {kind.kind} has no stand-alone examples, so it cannot be measured.")
    if issubclass(kind, MaskRule):
        return of_masks(kind.examples())
    if issubclass(kind, PositionSpec):
        return of_positions(kind.examples())
    if issubclass(kind, NormSpec):
        return of_norms(kind.examples())
    if issubclass(kind, PartSpec):
        return of_part(kind.examples()[0])
    raise SpecError(f"--picture: {kind.kind} has no picture. Masks, positions, norms and mixers have one.")


def mask_matrix(rule: MaskRule) -> Bool[Tensor, "t s"]:
    """Whether the token of the row may attend to the token of the column.

    Masks that depend on more than positions get typical marks: two documents, a prefix of five tokens, and a random
    order of eight tokens in two streams.
    """
    order = torch.randperm(LENGTH // 2, generator=torch.Generator().manual_seed(0)).repeat(2)
    halves = torch.arange(LENGTH) // (LENGTH // 2)
    documents = (torch.arange(LENGTH) >= 6).long()
    marks = Marks(torch.arange(LENGTH), segment=documents, order=order, stream=halves, prefix=torch.tensor([5]))
    return rule.allows(marks.as_queries(), marks._replace(prefix=None).as_keys()).expand(LENGTH, LENGTH)


def of_masks(rules: Sequence[MaskRule]) -> Drawing:
    """A drawing of several masks side by side."""
    edges, ticks = [edge - 0.5 for edge in range(LENGTH)], range(0, LENGTH, 5)

    def draw(figure: Figure) -> None:
        for axes, rule in zip(figure.subplots(1, len(rules), squeeze=False)[0], rules, strict=True):
            axes.imshow(mask_matrix(rule).numpy(), cmap="Blues", vmin=0, vmax=1.4)
            axes.set_xticks(edges, [], minor=True)
            axes.set_yticks(edges, [], minor=True)
            axes.grid(which="minor", color="white", linewidth=0.8)
            axes.tick_params(which="both", length=0)
            axes.set(title=_title(rule), xlabel="key", ylabel="query", xticks=ticks, yticks=ticks)

    return Drawing(draw, (INCHES * len(rules), INCHES))


def depends(spec: NormSpec) -> Bool[Tensor, "b t d"]:
    """Whether the first output of a norm depends on each input, in training mode."""
    site = Site(dim=CUBE[-1])
    x = torch.randn(CUBE, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (slopes,) = torch.autograd.grad(_initialised(spec.build(site), site).train()(x, Frame())[0, 0, 0], x)
    return slopes != 0


def of_norms(specs: Sequence[NormSpec]) -> Drawing:
    """A drawing of several norms side by side."""

    def draw(figure: Figure) -> None:
        for place, spec in enumerate(specs, 1):
            axes = figure.add_subplot(1, len(specs), place, projection="3d")
            cube = depends(spec).numpy()
            axes.set_box_aspect(None, zoom=0.85)  # leave room for the label of the third axis
            colours = np.where(cube, MARKED, OTHER)
            axes.voxels(np.ones_like(cube), facecolors=colours, edgecolor="#9aa3ad", linewidth=0.3)
            axes.set(title=_title(spec), xlabel="batch", ylabel="place", zlabel="channel")
            axes.set(xticks=[], yticks=[], zticks=[])

    return Drawing(draw, (3.6 * len(specs), 3.6))


@torch.no_grad()
def table(spec: PositionSpec) -> Float[Tensor, "t d"]:
    """The values that a position encoding adds to token vectors."""
    position = _position(spec, Heads(1, POSITION_DIM))
    return position.embed(torch.zeros(1, POSITIONS, POSITION_DIM), torch.arange(POSITIONS)[None])[0]


@torch.no_grad()
def scores(spec: PositionSpec) -> Float[Tensor, "t s"]:
    """Attention scores of two vectors of ones at every pair of positions, in the first head."""
    channels = POSITION_DIM // POSITION_HEADS
    heads = Heads(POSITION_HEADS, channels, channels**-0.5)
    position, places = _position(spec, heads), Marks(torch.arange(POSITIONS)[None])
    ones = torch.ones(1, POSITIONS, POSITION_HEADS, channels)
    q, k = (position.rotate(ones, places.position) for _ in range(2))
    products = torch.einsum("bthc,bshc->bhts", q * heads.scale, k)
    bias = position.bias(q, k, places, places)
    return (products if bias is None else products + bias.dense())[0, 0]


def of_positions(specs: Sequence[PositionSpec]) -> Drawing:
    """A drawing of several position encodings side by side."""

    def draw(figure: Figure) -> None:
        for axes, spec in zip(figure.subplots(1, len(specs), squeeze=False)[0], specs, strict=True):
            enters = type(_position(spec, Heads(1, POSITION_DIM))).enters()
            values = table(spec) if enters else scores(spec)
            image = axes.imshow(values.numpy(), cmap="RdBu", aspect="auto", interpolation="nearest")
            axes.set(title=_title(spec), xlabel="channel" if enters else "position of the key")
            axes.set_ylabel("position" if enters else "position of the query")
            figure.colorbar(image, ax=axes, shrink=0.8)

    return Drawing(draw, (4.6 * len(specs), 3.8))


def part_matrices(spec: PartSpec) -> dict[str, Float[Tensor, "t s"]]:
    """The influence between tokens, and the weights and the projection of the first head if the part has any."""
    site = Site(dim=PART_DIM, causal="causal" not in spec.limits, max_len=LENGTH)
    part = _initialised(spec.place(site), site)
    x = torch.randn(1, LENGTH, PART_DIM, generator=torch.Generator().manual_seed(0))

    def call(rows: Tensor) -> Tensor:
        y: Tensor = part(rows, Frame(memory=Memory(x=x.expand(len(rows), -1, -1)), place=StackPlace(inputs=rows))).y
        return y

    matrices = {"influence": influence(call, x).norms}
    with capture(part.eval()) as seen, torch.no_grad():
        call(x)
    for title, tap in (("weights", "pattern"), ("projection", "key_shares")):
        shown = [values[0][0, 0] for name, values in seen.items() if name.endswith(tap) and values[0].dim() == 4]
        matrices |= {title: shown[0]} if shown else {}
    return matrices


def of_part(spec: PartSpec) -> Drawing:
    """A drawing of the matrices of a part."""
    matrices = part_matrices(spec)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(matrices), squeeze=False)[0]
        for axes, (name, values) in zip(panels, matrices.items(), strict=True):
            most, signed = float(values.abs().max()), name == "projection"  # a projection has negative shares too
            axes.imshow(values.numpy(), cmap="RdBu" if signed else "Blues", vmin=-most if signed else 0.0, vmax=most)
            x_label, y_label = (("input" if size == LENGTH else "mixture") for size in reversed(values.shape))
            axes.set(title=f"{_title(spec)}: {name}", xlabel=x_label, ylabel="output" if not signed else y_label)
            axes.set(xticks=range(0, values.shape[1], 5), yticks=range(0, values.shape[0], 5))

    return Drawing(draw, (INCHES * len(matrices) + 0.4, INCHES))


def _position(spec: PositionSpec, heads: Heads) -> Position:
    site = Site(dim=POSITION_DIM, max_len=POSITIONS)
    return _initialised(spec.build(site, heads), site)


def _initialised(module: M, site: Site) -> M:
    """The module with initialised weights; `site` is where it was built, and owns the shared modules."""
    for each in (module, site.shared):
        initialise(each, Xavier(), 0)
    return module


def _title(spec: Spec) -> str:
    data = {name: value for name, value in spec.to_dict().items() if name != "kind"}
    options = ", ".join(f"{name}={value}" for name, value in data.items() if isinstance(value, str | int | float))
    title = f"{spec.kind}({options})"
    return title if options and len(title) <= LONGEST_TITLE else str(spec.kind)
