"""Is an attention matrix of low rank? The share of its energy in the largest singular values, as it gets sharper."""

import torch

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.drawing.figures import Line, Lines, Panel

TOKENS, WIDTH, KEPT = 512, 64, 128
SPREADS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Standard deviations of the scores: from almost even weights to almost one-hot ones."""


class LowRankClaim(Measured):
    ids = ("XF-08",)
    says = "The attention matrix is approximately of low rank, so that a few projected keys are enough."

    def measure(self) -> Figures:
        return {
            "spreads": SPREADS,
            "energy": [_energy(spread)[KEPT - 1] for spread in SPREADS],
            **{f"spectrum, spread {spread:g}": _energy(spread)[::16] for spread in (1.0, 8.0)},
        }

    def decide(self, figures: Figures) -> Decision:
        flat, sharp = figures["energy"][figures["spreads"].index(1.0)], figures["energy"][-1]
        return "holds" if min(figures["energy"]) > 0.9 else "depends" if flat > 0.9 else "does not hold", (
            f"{KEPT} of {TOKENS} singular values hold {flat:.1%} of the energy where scores have a standard "
            f"deviation of 1, as fresh weights give them, but {sharp:.1%} where it is {figures['spreads'][-1]:g} and "
            "each token attends to one"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        places = range(1, TOKENS + 1, 16)
        lines = [Line(name, places, figures[name]) for name in figures if name.startswith("spectrum")]
        return [Lines("Energy in the largest singular values", "singular values", "share", lines)]


def _energy(spread: float) -> list[float]:
    """The share of the squared singular values up to each."""
    rng = torch.Generator().manual_seed(0)
    q, k = (torch.randn(TOKENS, WIDTH, generator=rng) for _ in range(2))
    weights = (spread * q @ k.T / WIDTH**0.5).softmax(-1)
    squares = torch.linalg.svdvals(weights).square()
    return [float(share) for share in squares.cumsum(0) / squares.sum()]
