"""'Free lunch? Almost': the cost of a parallel layer compared with others of the same width and length."""

from typing import Any

from anyformer.analysis.claim import Figures, Measured, Verdict
from anyformer.analysis.families import ATTENTION, CONVOLUTION, FEED_FORWARD, RECURRENT
from anyformer.core import ModelSpec, Work, cost, decode
from anyformer.drawing.figures import Bars, Panel
from anyformer.models import Decoder  # noqa: F401  (joins its family)

DIM, LENGTH = 128, 1024
LAYERS: dict[str, list[dict[str, Any]]] = {
    "RNN": [dict(RECURRENT)],
    "GRU": [{"kind": "gru"}],
    "LSTM": [{"kind": "lstm"}],
    "CNN": [dict(CONVOLUTION)],
    "Transformer": [dict(ATTENTION), dict(FEED_FORWARD)],
}
WHAT = ("parameters", "FLOP", "activation bytes", "state bytes")


class PriceClaim(Measured):
    ids = ("CLM-16",)
    says = "The Transformer's parallelism is almost a free lunch: it takes more memory, operations and parameters."

    def measure(self) -> Figures:
        return {name: _costs(branches) for name, branches in LAYERS.items()}

    def judge(self, figures: Figures) -> Verdict:
        times = {
            what: figures["Transformer"][place] / max(figures[name][place] for name in LAYERS if name != "Transformer")
            for place, what in enumerate(WHAT)
        }
        text = ", ".join(f"{what} {ratio:.1f}" for what, ratio in times.items())
        return Verdict(
            "holds" if min(times.values()) > 1 else "depends",
            f"a Transformer layer of width {DIM} over {LENGTH} tokens, in multiples of the most expensive other "
            f"layer: {text}",
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [
            Bars(what.capitalize(), what, [(name, max(figures[name][place], 1)) for name in LAYERS], log_y=True)
            for place, what in enumerate(WHAT)
        ]


def _costs(branches: list[dict[str, Any]]) -> list[int]:
    """The cost card of one layer: the difference of two layers and one, which cancels the embedding and the head."""
    two_layers, one_layer = (cost(_model(depth, branches), Work(length=LENGTH)).total for depth in (2, 1))
    return [
        two_layers.params - one_layer.params,
        two_layers.flops_forward - one_layer.flops_forward,
        two_layers.activation_bytes - one_layer.activation_bytes,
        two_layers.state_bytes - one_layer.state_bytes,
    ]


def _model(depth: int, branches: list[dict[str, Any]]) -> ModelSpec:
    stack = {"blocks": {"layer": {"branches": [{"part": part} for part in branches]}}, "depth": depth}
    return decode(ModelSpec, {"kind": "decoder", "vocab": 16, "dim": DIM, "max_len": LENGTH, "stack": stack})
