"""Pictures of masks: a dark cell where the token of the row may attend to the token of the column.

Masks that depend on more than positions get typical marks: two documents, a prefix of five tokens, and a random order
of eight tokens in two streams.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from matplotlib.figure import Figure
from torch import Tensor

from anyformer.core import Marks, MaskRule
from anyformer.drawing.figure_files import Drawing
from anyformer.viewing.gallery.kind_labels import called

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
