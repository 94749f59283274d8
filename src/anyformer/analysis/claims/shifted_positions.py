"""How position schemes extrapolate: do attention weights change when all positions are shifted?"""

from typing import Any

import torch
from torch import Tensor

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.analysis.families import decoder
from anyformer.core import Frame, Model, capture
from anyformer.drawing.figures import Bars, Panel
from anyformer.errors import AnyformerError
from anyformer.parts.inits.xavier import Xavier

DIM, LENGTH, SHIFT = 32, 16, 32
INSIDE = {"rope": {"kind": "rope"}, "alibi": {"kind": "alibi"}, "none": None}


class ShiftedPositions(Measured):
    ids = ("POS-10",)
    says = "Sinusoidal positions can go on beyond the length seen in training; in practice that does not really work."

    def measure(self) -> Figures:
        models = {name: _model(position={"kind": name}) for name in ("sinusoidal", "learned")}
        models |= {name: _model(inside=position) for name, position in INSIDE.items()}
        learned = models.pop("learned")
        changes = {name: float((_look(model, SHIFT) - _look(model, 0)).abs().max()) for name, model in models.items()}
        return {**changes, "learned refuses": float(_refuses(learned))}

    def decide(self, figures: Figures) -> Decision:
        relative = max(figures["rope"], figures["alibi"], figures["none"])
        right = figures["sinusoidal"] > 0.01 and relative < 1e-3 and figures["learned refuses"] == 1.0
        return "depends" if right else "does not hold", (
            f"the same {LENGTH} tokens {SHIFT} places on are looked at differently by up to "
            f"{figures['sinusoidal']:.2f} under sinusoidal positions, which are new vectors there, by "
            f"{figures['rope']:.0e} under rope and {figures['alibi']:.0e} under alibi, which know distances only; "
            "learned ones end at their table"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        names = ("sinusoidal", *INSIDE)
        title = f"The same tokens {SHIFT} places on"
        return [Bars(title, "largest change of a weight", [(name, figures[name]) for name in names])]


def _model(position: dict[str, Any] | None = None, inside: dict[str, Any] | None = None) -> Model:
    attention = {"kind": "attention", "heads": 2, "position": inside}
    spec = decoder(attention, depth=1, dim=DIM, max_len=SHIFT)
    return spec.with_("init", Xavier()).with_("position", position).build()


@torch.no_grad()
def _look(model: Model, shift: int) -> Tensor:
    """[h t t]: the attention weights of tokens whose positions begin at `shift`."""
    tokens = torch.randint(16, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    with capture(model, "*.pattern") as seen:
        model(tokens, Frame(positions=shift + torch.arange(LENGTH)[None]))
    return next(iter(seen.values()))[0][0]


def _refuses(model: Model) -> bool:
    try:
        _look(model, SHIFT)
    except (AnyformerError, IndexError):
        return True
    return False
