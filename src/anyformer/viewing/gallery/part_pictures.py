"""Pictures of parts at initialisation on sixteen tokens: the influence |dy_i/dx_j|, and the attention weights if any.

The attention weights of a part that attends to mixtures of tokens, such as Linformer, have one column for each mixture.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from anyformer.analysis.influence import influence
from anyformer.core import Frame, Memory, PartSpec, Site, capture
from anyformer.drawing.figure_files import Drawing
from anyformer.viewing.gallery.fresh_parts import fresh
from anyformer.viewing.gallery.kind_labels import called

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
