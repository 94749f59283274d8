"""Why dot products are scaled: q . k has variance d_k; a softmax of large numbers is one-hot and has no gradient."""

import torch
from torch import Tensor

from anyformer.analysis.claim import Decision, Figures, Measured, curves
from anyformer.drawing.figures import Lines, Panel

WIDTHS, KEYS, QUERIES = (4, 16, 64, 256, 1024), 32, 512


class DotProducts(Measured):
    ids = ("ATT-04",)
    says = (
        "Dot products grow with d_k, which pushes the softmax to where it has no gradient; 1 / sqrt(d_k) prevents it."
    )

    def measure(self) -> Figures:
        curves: dict[str, list[float]] = {"variance": []}
        for width in WIDTHS:
            rng = torch.Generator().manual_seed(0)
            q, k = (torch.randn(QUERIES, count, width, dtype=torch.float64, generator=rng) for count in (1, KEYS))
            scores = (q * k).sum(-1)  # [queries keys]
            curves["variance"].append(scores.var().item() / width)
            for name, scaled in (("plain", scores), ("scaled", scores / width**0.5)):
                entropy, gradient = _softmax(scaled)
                curves.setdefault(f"entropy, {name}", []).append(entropy)
                curves.setdefault(f"gradient, {name}", []).append(gradient)
        return {"widths": WIDTHS, **curves}

    def decide(self, figures: Figures) -> Decision:
        variance = all(0.95 < ratio < 1.05 for ratio in figures["variance"])
        change = {name: figures[name][-1] / figures[name][0] for name in figures if name not in ("widths", "variance")}
        collapses = change["entropy, plain"] < 0.1 and change["gradient, plain"] < 0.3
        stays = change["entropy, scaled"] > 0.9 and change["gradient, scaled"] > 0.8
        return variance and collapses and stays, (
            f"the variance of q . k is {figures['variance'][-1]:.2f} d_k at d_k = {figures['widths'][-1]}; from d_k = "
            f"{figures['widths'][0]} on, the entropy of the softmax falls to {change['entropy, plain']:.1%} and its "
            f"gradient to {change['gradient, plain']:.1%}, scaled to {change['entropy, scaled']:.0%} and "
            f"{change['gradient, scaled']:.0%}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        names = ("plain", "scaled")
        entropy, gradient = (curves(figures, "widths", names, f"{what}, ") for what in ("entropy", "gradient"))
        return [
            Lines("Entropy of the softmax", "d_k", "nats", entropy, log_x=True),
            Lines("Gradient of the softmax", "d_k", "norm of the Jacobian", gradient, log_x=True),
        ]


def _softmax(scores: Tensor) -> tuple[float, float]:
    """Entropy, and the norm of the Jacobian diag(p) - p p^T."""
    p = scores.softmax(-1)
    jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    return torch.special.entr(p).sum(-1).mean().item(), jacobian.norm(dim=(1, 2)).mean().item()
