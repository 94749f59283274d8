"""Layer and batch norm: does the output of a sample depend on other samples, or on training mode?"""

import torch

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.core import Frame, NormSpec, Site, decode, initialise
from anyformer.drawing.figures import Bars, Panel
from anyformer.parts.inits.normal import NormalInit

DIM = 16


class Norms(Measured):
    ids = ("TRF-09",)
    says = "Batch norm normalises over the batch, layer norm over the features of each token by itself."

    def measure(self) -> Figures:
        return {f"{kind}, {name}": value for kind in ("layer", "batch") for name, value in _differences(kind).items()}

    def decide(self, figures: Figures) -> Decision:
        right = figures["layer, other samples"] == figures["layer, training or not"] == 0.0
        right = right and min(figures["batch, other samples"], figures["batch, training or not"]) > 0.01
        return right, (
            f"other samples in the batch change the output of a sample by {figures['batch, other samples']:.2f} under "
            f"batch norm, by {figures['layer, other samples']:g} under layer norm; switching to evaluation mode by "
            f"{figures['batch, training or not']:.2f} and {figures['layer, training or not']:g}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [Bars("Change of one sample's output", "largest difference", list(figures.items()))]


@torch.no_grad()
def _differences(kind: str) -> dict[str, float]:
    """The largest change of the first sample, when the others change and when training ends."""
    norm = decode(NormSpec, {"kind": kind}).build(Site(dim=DIM))
    initialise(norm, NormalInit(), 0)
    x = torch.randn(4, 6, DIM, generator=torch.Generator().manual_seed(0))
    others = torch.cat((x[:1], 3 * x[1:] + 1))
    alone, among, again = (norm.train()(batch, Frame())[0] for batch in (x, others, x))
    evaluated = norm.eval()(x, Frame())[0]
    return {
        "other samples": float((alone - among).abs().max()),
        "training or not": float((again - evaluated).abs().max()),
    }
