"""Small mixtures of experts in float64, and what their taps show, for the tests of `experts`."""

from typing import Any

import torch
from torch import Tensor

from anyformer.core import Frame, Site, capture, initialise
from anyformer.parts.channels.experts import Experts, ExpertsPart
from anyformer.parts.inits.xavier import Xavier

DIM, HIDDEN, EXPERTS, ROWS, LENGTH = 12, 10, 4, 3, 20


def built(*, dim: int = DIM, **options: Any) -> ExpertsPart:
    part = Experts(**{"experts": EXPERTS, "hidden": HIDDEN, **options}).build(Site(dim=dim)).double()
    initialise(part, Xavier(), seed=0)
    return part


def routed(logits: Tensor, **options: Any) -> ExpertsPart:
    """A part that reads the logits of its experts from its input [b t e]."""
    part = built(dim=logits.shape[-1], experts=logits.shape[-1], **options)
    part.router.data[: logits.shape[-1]] = torch.eye(logits.shape[-1])
    return part


def tokens(rows: int = ROWS, length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randn(rows, length, DIM, generator=torch.Generator().manual_seed(seed)).double()


def seen(part: ExpertsPart, x: Tensor, frame: Frame | None = None) -> dict[str, Tensor]:
    """The choices, gates and number of dropped choices of one call."""
    with capture(part) as taps, torch.no_grad():
        part(x, frame or Frame())
    return {name: values[0] for name, values in taps.items()}


@torch.no_grad()
def balance(part: ExpertsPart, x: Tensor) -> float:
    """The balance loss of one call in training."""
    return float(part.train()(x, Frame()).losses["balance"])
