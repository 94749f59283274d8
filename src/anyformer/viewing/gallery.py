"""Pictures of kinds, measured on small examples: masks, positions, norms and parts that mix tokens.

Pictures of masks: a dark cell where the token of the row may attend to the token of the column.

Masks that depend on more than positions get typical marks: two documents, a prefix of five tokens, and a random order
of eight tokens in two streams.

Pictures of norms: a cube of batch, positions and channels with the inputs that one output depends on.

The dependence is measured: an input x is marked if dy / dx is not zero for the output y at the front corner.

Pictures of position encodings.

For an encoding that is added to token vectors: the added value by position and channel, T x d. For an encoding inside
attention: the score of two vectors of ones at every pair of positions.

Pictures of parts at initialisation on sixteen tokens: the influence |dy_i/dx_j|, and the attention weights if any.

The attention weights of a part that attends to mixtures of tokens, such as Linformer, have one column for each mixture.
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
    capture,
    initialise,
)
from anyformer.drawing.figures import Drawing
from anyformer.errors import SpecError
from anyformer.parts.inits.xavier import Xavier

M = TypeVar("M", bound=nn.Module)


def fresh(module: M, site: Site) -> M:
    """The module with initialised weights; `site` is where it was built, and owns the shared modules."""
    for each in (module, site.shared):
        initialise(each, Xavier(), 0)
    return module


LONGEST = 30


def called(spec: Spec) -> str:
    data = spec.to_dict()
    options = ", ".join(
        f"{name}={value}" for name, value in data.items() if isinstance(value, str | int | float) and name != "kind"
    )
    name = f"{spec.kind}({options})"
    return name if options and len(name) <= LONGEST else str(spec.kind)


LENGTH = 16
INCHES, TICKS = 3.4, range(0, LENGTH, 5)


def marks() -> Marks:
    """Marks of one sequence of sixteen tokens."""
    order = torch.randperm(LENGTH // 2, generator=torch.Generator().manual_seed(0)).repeat(2)
    halves = torch.arange(LENGTH) // (LENGTH // 2)
    documents = (torch.arange(LENGTH) >= 6).long()
    return Marks(torch.arange(LENGTH), segment=documents, order=order, stream=halves, prefix=torch.tensor([5]))


def seen(rule: MaskRule) -> Bool[Tensor, "t s"]:
    """The matrix of a mask: whether the token of the row may attend to the token of the column."""
    row = marks()
    keys = row._replace(prefix=None).as_keys()
    return rule.allows(row.as_queries(), keys).expand(LENGTH, LENGTH)


def of_masks(rules: Sequence[MaskRule]) -> Drawing:
    """A drawing of several masks side by side."""

    def draw(figure: Figure) -> None:
        for axes, rule in zip(figure.subplots(1, len(rules), squeeze=False)[0], rules, strict=True):
            axes.imshow(seen(rule).numpy(), cmap="Blues", vmin=0, vmax=1.4)
            axes.set_xticks([edge - 0.5 for edge in range(LENGTH)], [], minor=True)
            axes.set_yticks([edge - 0.5 for edge in range(LENGTH)], [], minor=True)
            axes.grid(which="minor", color="white", linewidth=0.8)
            axes.tick_params(which="both", length=0)
            axes.set(title=called(rule), xlabel="key", ylabel="query", xticks=TICKS, yticks=TICKS)

    return Drawing(draw, (INCHES * len(rules), INCHES))


BATCH, LENGTH, DIM = 4, 5, 6
MARKED, OTHER = "#2767c4", "#dfe4ea20"


def depends(spec: NormSpec) -> Bool[Tensor, "b t d"]:
    """Whether the first output depends on each input, in training mode."""
    site = Site(dim=DIM)
    norm = fresh(spec.build(site), site)
    x = torch.randn(BATCH, LENGTH, DIM, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (slopes,) = torch.autograd.grad(norm.train()(x, Frame())[0, 0, 0], x)
    return slopes != 0


def of_norms(specs: Sequence[NormSpec]) -> Drawing:
    """A drawing of several norms side by side."""

    def draw(figure: Figure) -> None:
        for place, spec in enumerate(specs, 1):
            axes = figure.add_subplot(1, len(specs), place, projection="3d")
            cube = depends(spec).numpy()
            colours = np.where(cube, MARKED, OTHER)
            axes.set_box_aspect(None, zoom=0.85)  # leave room for the label of the third axis
            axes.voxels(np.ones_like(cube), facecolors=colours, edgecolor="#9aa3ad", linewidth=0.3)
            axes.set(
                title=called(spec), xlabel="batch", ylabel="place", zlabel="channel", xticks=[], yticks=[], zticks=[]
            )

    return Drawing(draw, (3.6 * len(specs), 3.6))


LENGTH, DIM, HEADS = 64, 64, 4


def built(spec: PositionSpec, heads: Heads) -> Position:
    """A position module with initialised weights."""
    site = Site(dim=DIM, max_len=LENGTH)
    return fresh(spec.build(site, heads), site)


@torch.no_grad()
def table(spec: PositionSpec) -> Float[Tensor, "t d"]:
    """The values that the encoding adds to token vectors."""
    return built(spec, Heads(1, DIM)).embed(torch.zeros(1, LENGTH, DIM), torch.arange(LENGTH)[None])[0]


@torch.no_grad()
def scores(spec: PositionSpec) -> Float[Tensor, "t s"]:
    """Attention scores of two vectors of ones at every pair of positions, in the first head."""
    heads = Heads(HEADS, DIM // HEADS, (DIM // HEADS) ** -0.5)
    position, places = built(spec, heads), Marks(torch.arange(LENGTH)[None])
    ones = torch.ones(1, LENGTH, HEADS, heads.channels)
    q, k = (position.rotate(ones, places.position) for _ in range(2))
    products = torch.einsum("bthc,bshc->bhts", q * heads.scale, k)
    bias = position.bias(q, k, places, places)
    return (products if bias is None else products + bias.dense())[0, 0]


def of_positions(specs: Sequence[PositionSpec]) -> Drawing:
    """A drawing of several position encodings side by side."""

    def draw(figure: Figure) -> None:
        for axes, spec in zip(figure.subplots(1, len(specs), squeeze=False)[0], specs, strict=True):
            enters = type(built(spec, Heads(1, DIM))).enters()
            shown = table(spec) if enters else scores(spec)
            image = axes.imshow(shown.numpy(), cmap="RdBu", aspect="auto", interpolation="nearest")
            axes.set(title=called(spec), xlabel="channel" if enters else "position of the key")
            axes.set_ylabel("position" if enters else "position of the query")
            figure.colorbar(image, ax=axes, shrink=0.8)

    return Drawing(draw, (4.6 * len(specs), 3.8))


LENGTH, DIM, INCHES = 16, 32, 3.4


def takes(spec: PartSpec) -> dict[str, Float[Tensor, "t s"]]:
    """The influence between tokens, and the attention weights of the first head if the part has any, by name."""
    site = Site(dim=DIM, causal="causal" not in spec.limits, max_len=LENGTH)
    part = fresh(spec.place(site), site)
    x = torch.randn(1, LENGTH, DIM, generator=torch.Generator().manual_seed(0))
    frame = Frame(memory=Memory(x=x), inputs=x)
    with capture(part.eval(), "*pattern") as seen, torch.no_grad():
        part(x, frame)
    patterns = [weights[0][0, 0] for weights in seen.values() if weights[0].dim() == 4]

    def call(rows: Tensor) -> Tensor:
        y: Tensor = part(rows, Frame(memory=Memory(x=x.expand(len(rows), -1, -1)), inputs=rows)).y
        return y

    return {"influence": influence(call, x).norms, **({"weights": patterns[0]} if patterns else {})}


def of_parts(specs: Sequence[PartSpec]) -> Drawing:
    """A drawing of the matrices of the first spec."""
    matrices = takes(specs[0])

    def draw(figure: Figure) -> None:
        for axes, (name, values) in zip(
            figure.subplots(1, len(matrices), squeeze=False)[0], matrices.items(), strict=True
        ):
            axes.imshow(values.numpy(), cmap="Blues", vmin=0.0)
            axes.set(title=f"{called(specs[0])}: {name}", xlabel="input", ylabel="output")
            axes.set(xticks=range(0, values.shape[1], 5), yticks=range(0, LENGTH, 5))

    return Drawing(draw, (INCHES * len(matrices) + 0.4, INCHES))


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
        return of_parts(kind.examples())
    raise SpecError(f"--picture: {kind.kind} has no picture. Masks, positions, norms and mixers have one.")
