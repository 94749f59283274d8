"""A recurrence beside a linear path, which lets gradients pass many layers without nonlinearities.

[f'; h'] = layer([f; h]) :  f' = W [f; h] + b ,  h' = part(f')          (Zhou et al., arXiv 1606.04199, section 3.1)
The stream has f in its first half and h in the second, so the branch is joined by `replace`. The path from f of the
first layer to f of the last is a product of matrices.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anyformer.core import Frame, Linear, Memory, Out, Part, PartSpec, Site, State, Tap, decode
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class FastForward(PartSpec, kind="fast_forward"):
    """A recurrence of half the width beside a linear path of half the width, which it reads; join it by `replace`."""

    sources = ("self", "memory")

    part: PartSpec
    """The part that reads the linear path: lstm, or unidirectional around it in an encoder."""

    def build(self, site: Site) -> "FastForwardPart":
        if site.dim % 2:
            raise SpecError(f"dim={site.dim} has no halves for the path and the part beside it. Make it even.")
        return FastForwardPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[FastForward, ...]":
        back = {"kind": "unidirectional", "part": {"kind": "lstm"}, "direction": "back"}
        return (cls(part=decode(PartSpec, {"kind": "min_gru"})), cls(part=decode(PartSpec, back)))


class FastForwardPart(Part):
    def __init__(self, spec: FastForward, site: Site):
        super().__init__()
        half = site.dim // 2
        self.path = Linear(site.dim, half, role="in", bias=True)
        with at("part"):
            self.part = spec.part.place(replace(site, dim=half))
            if self.part.changes_length:
                raise SpecError(
                    f"{spec.part.kind} changes the length, but the path beside it does not. Place it before."
                )
        self.summary, self.final_widths = self.part.summary, self.part.final_widths
        self.straight = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return self.part.init_state(batch, max_len, memory)

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        f = self.straight(self.path(x))
        out = self.part(f, frame, state)
        return out._replace(y=torch.cat((f, out.y), dim=-1))
