"""How position schemes extrapolate: do attention weights change when all positions are shifted?"""

from typing import Any

import torch
from torch import Tensor

from anyformer.analysis.claim import Figures, Measured, Verdict
from anyformer.core import Frame, Model, capture, decode
from anyformer.core.model import ModelSpec
from anyformer.drawing.figures import Bars, Panel
from anyformer.errors import AnyformerError
from anyformer.models import Decoder  # noqa: F401  (joins its family)

VOCAB, DIM, LENGTH, SHIFT = 16, 32, 16, 32
ADDED = {"sinusoidal": {"kind": "sinusoidal"}, "learned": {"kind": "learned"}}
INSIDE = {"rope": {"kind": "rope"}, "alibi": {"kind": "alibi"}, "none": None}


class ShiftedPositions(Measured):
    ids = ("POS-10",)
    says = "Sinusoidal positions can go on beyond the length seen in training; in practice that does not really work."

    def measure(self) -> Figures:
        changes = {name: _change(_model(position, None)) for name, position in ADDED.items() if name != "learned"}
        changes |= {name: _change(_model(None, position)) for name, position in INSIDE.items()}
        return {**changes, "learned refuses": float(_refuses(_model(ADDED["learned"], None)))}

    def judge(self, figures: Figures) -> Verdict:
        relative = max(figures["rope"], figures["alibi"], figures["none"])
        right = figures["sinusoidal"] > 0.01 and relative < 1e-3 and figures["learned refuses"] == 1.0
        return Verdict(
            "depends" if right else "does not hold",
            f"the same {LENGTH} tokens {SHIFT} places on are looked at differently by up to "
            f"{figures['sinusoidal']:.2f} under sinusoidal positions, which are new vectors there, by "
            f"{figures['rope']:.0e} under rope and {figures['alibi']:.0e} under alibi, which know distances only; "
            "learned ones end at their table",
        )

    def picture(self, figures: Figures) -> list[Panel]:
        names = ("sinusoidal", *INSIDE)
        title = f"The same tokens {SHIFT} places on"
        return [Bars(title, "largest change of a weight", [(name, figures[name]) for name in names])]


def _model(entry: dict[str, Any] | None, inside: dict[str, Any] | None) -> Model:
    attention = {"kind": "attention", "heads": 2} | ({"position": inside} if inside else {})
    stack = {"blocks": {"layer": {"branches": [{"part": attention}]}}, "depth": 1}
    plain = {
        "kind": "decoder",
        "vocab": VOCAB,
        "dim": DIM,
        "max_len": SHIFT,
        "stack": stack,
        "init": {"kind": "xavier"},
    }
    return decode(ModelSpec, plain | ({"position": entry} if entry else {})).build()


@torch.no_grad()
def _look(model: Model, shift: int) -> Tensor:
    """[h t t]: the attention weights of tokens whose positions begin at `shift`."""
    tokens = torch.randint(VOCAB, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    with capture(model, "*.pattern") as seen:
        model(tokens, Frame(positions=shift + torch.arange(LENGTH)[None]))
    return next(iter(seen.values()))[0][0]


def _change(model: Model) -> float:
    return float((_look(model, SHIFT) - _look(model, 0)).abs().max())


def _refuses(model: Model) -> bool:
    try:
        _look(model, SHIFT)
    except (AnyformerError, IndexError):
        return True
    return False
