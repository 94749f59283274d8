"""Attention as a soft lookup: softmax(q K / tau) V tends to the value of the best key as tau goes to 0."""

import torch

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.core import Full, Marks
from anyformer.drawing.figures import Line, Lines, Panel
from anyformer.ops.attention.attend import dispatch
from anyformer.ops.attention.call import AttentionCall

ENTRIES, WIDTH = 16, 32
TEMPERATURES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
NEAR = 1e-4


class Lookup(Measured):
    ids = ("RNN-19",)
    says = "A table gives the value of the key that matches; attention is a soft table that gives a mixture of all."

    def measure(self) -> Figures:
        rng = torch.Generator().manual_seed(0)
        keys = torch.linalg.qr(torch.randn(WIDTH, ENTRIES, dtype=torch.float64, generator=rng)).Q.T
        values = torch.randn(ENTRIES, WIDTH, dtype=torch.float64, generator=rng)
        queries = torch.randn(ENTRIES, WIDTH, dtype=torch.float64, generator=rng)
        best = values[(queries @ keys.T).argmax(-1)]
        soft = [_look(queries, keys, values, temperature) for temperature in TEMPERATURES]
        exact = _look(keys, keys, values, TEMPERATURES[-1])
        return {
            "temperatures": TEMPERATURES,
            "error": [(output - best).abs().max().item() for output in soft],
            "error of exact keys": (exact - values).abs().max().item(),
        }

    def decide(self, figures: Figures) -> Decision:
        right = figures["error"][-1] < NEAR and figures["error of exact keys"] < NEAR and figures["error"][0] > 0.1
        return right, (
            f"soft and hard differ by {figures['error'][0]:.2g} at tau = 1 and by {figures['error'][-1]:.1g} at tau = "
            f"{figures['temperatures'][-1]:g}; queries equal to a key return its value to "
            f"{figures['error of exact keys']:.1g}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        shown = [max(error, 1e-17) for error in figures["error"]]
        line = Line("soft against hard", figures["temperatures"], shown)
        return [Lines("Soft lookup tends to the hard one", "temperature", "largest difference", [line], True, True)]


def _look(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, temperature: float) -> torch.Tensor:
    q, k, v = (tensor[None, :, None] for tensor in (queries, keys, values))  # [1 t 1 c]
    marks = Marks(torch.arange(ENTRIES)[None])
    return dispatch(q, k, v, AttentionCall(Full(), marks, marks), scale=1 / temperature)[0, :, 0]
