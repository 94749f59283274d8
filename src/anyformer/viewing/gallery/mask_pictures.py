"""What a mask lets through, as a picture: a dark cell where the row's token may look at the column's.

Rules that go by more than positions see marks like those of a real row: two documents, a prefix of five tokens, and an
order of eight tokens whose second half asks for them.
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
    """Of one row of sixteen tokens."""
    order = torch.randperm(LENGTH // 2, generator=torch.Generator().manual_seed(0)).repeat(2)
    halves = torch.arange(LENGTH) // (LENGTH // 2)
    documents = (torch.arange(LENGTH) >= 6).long()
    return Marks(torch.arange(LENGTH), segment=documents, order=order, stream=halves, prefix=torch.tensor([5]))


def seen(rule: MaskRule) -> Bool[Tensor, "t s"]:
    """Whether each of the tokens may look at each."""
    row = marks()
    keys = row._replace(prefix=None).as_keys()
    return rule.allows(row.as_queries(), keys).expand(LENGTH, LENGTH)


def of_masks(rules: Sequence[MaskRule]) -> Drawing:
    """Side by side."""

    def draw(figure: Figure) -> None:
        for axes, rule in zip(figure.subplots(1, len(rules), squeeze=False)[0], rules, strict=True):
            axes.imshow(seen(rule).numpy(), cmap="Blues", vmin=0, vmax=1.4)
            axes.set_xticks([edge - 0.5 for edge in range(LENGTH)], [], minor=True)
            axes.set_yticks([edge - 0.5 for edge in range(LENGTH)], [], minor=True)
            axes.grid(which="minor", color="white", linewidth=0.8)
            axes.tick_params(which="both", length=0)
            axes.set(title=called(rule), xlabel="is looked at", ylabel="looks", xticks=TICKS, yticks=TICKS)

    return Drawing(draw, (INCHES * len(rules), INCHES))
