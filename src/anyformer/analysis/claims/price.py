"""'Free lunch? Almost': the cost of a parallel layer compared with others of the same width and length."""

from collections.abc import Mapping
from typing import Any

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.families import ATTENTION, CONVOLUTION, FEED_FORWARD, RECURRENT, decoder
from anyformer.core import Work, cost
from anyformer.drawing.figures import Bars, Panel

DIM, LENGTH = 128, 1024
LAYERS: dict[str, list[Mapping[str, Any]]] = {
    "RNN": [RECURRENT],
    "GRU": [{"kind": "gru"}],
    "LSTM": [{"kind": "lstm"}],
    "CNN": [CONVOLUTION],
    "Transformer": [ATTENTION, FEED_FORWARD],
}
WHAT = ("parameters", "FLOP", "activation bytes", "state bytes")


class PriceClaim(Measured):
    ids = ("CLM-16",)
    says = "The Transformer's parallelism is almost a free lunch: it takes more memory, operations and parameters."

    def measure(self) -> Figures:
        return {name: _costs(branches) for name, branches in LAYERS.items()}

    def decide(self, figures: Figures) -> Decision:
        times = {
            what: figures["Transformer"][place] / max(figures[name][place] for name in LAYERS if name != "Transformer")
            for place, what in enumerate(WHAT)
        }
        text = ", ".join(f"{what} {ratio:.1f}" for what, ratio in times.items())
        return "holds" if min(times.values()) > 1 else "depends", (
            f"a Transformer layer of width {DIM} over {LENGTH} tokens, in multiples of the most expensive other "
            f"layer: {text}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [
            Bars(what.capitalize(), what, [(name, max(figures[name][place], 1)) for name in LAYERS], log_y=True)
            for place, what in enumerate(WHAT)
        ]


def _costs(branches: list[Mapping[str, Any]]) -> list[int]:
    """The cost card of one layer: the difference of two layers and one, which cancels the embedding and the head."""
    models = [decoder(*branches, depth=depth, dim=DIM, max_len=LENGTH) for depth in (2, 1)]
    two, one = (cost(model, Work(length=LENGTH)).total for model in models)
    keys = ("params", "flops_forward", "activation_bytes", "state_bytes")
    return [getattr(two, key) - getattr(one, key) for key in keys]
