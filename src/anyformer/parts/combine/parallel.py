"""Parts side by side on one input; their outputs are added.

y = sum_i pad(part_i(x))          narrower outputs are padded with zeros at the end, as in the Evolved Transformer
The branches of its cells are of this kind (arXiv 1901.11117, section 5.1).
"""

from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core import Frame, Memory, Out, Part, PartSpec, Positive, Site, Spec, State, kind_of
from anyformer.core.part import EMPTY, add_losses
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class Lane(Spec):
    """One of several parts that read the same input."""

    part: PartSpec
    """The part that runs in this lane."""
    expansion: Positive | None = None
    """Output width as a multiple of the model width, for parts that can change the width (conv, separable_conv, lstm,
    ...); the width of the sum if not given."""


@dataclass(frozen=True, kw_only=True)
class Parallel(PartSpec, kind="parallel"):
    """Runs parts on the same input and adds their outputs, the narrower ones padded with zeros."""

    lanes: tuple[Lane, ...]
    """The parts that are added."""

    def check(self) -> None:
        if not self.lanes:
            raise SpecError("lanes: give at least one.")

    def build(self, site: Site) -> "ParallelPart":
        return ParallelPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Parallel, ...]":
        look, conv, mlp = (kind_of(PartSpec, kind)() for kind in ("attention", "conv", "mlp"))
        return (
            cls(lanes=(Lane(part=look), Lane(part=conv, expansion=0.5))),
            cls(lanes=(Lane(part=mlp), Lane(part=look))),
        )


class ParallelPart(Part):
    def __init__(self, spec: Parallel, site: Site):
        super().__init__()
        self.channels = site.width or site.dim
        self.width = self.channels
        self.lanes = nn.ModuleList()
        for index, lane in enumerate(spec.lanes):
            with at(f"lanes[{index}]"):
                self.lanes.append(self._placed(lane, site))
        self.final_widths = tuple(widths for lane in self._parts() for widths in lane.final_widths)

    def _placed(self, lane: Lane, site: Site) -> Part:
        width = self.channels if lane.expansion is None else round(lane.expansion * (site.stream_dim or site.dim))
        if not 0 < width <= self.channels:
            raise SpecError(f"expansion={lane.expansion} gives {width} channels; the sum has {self.channels}.")
        part = lane.part.place(replace(site, width=None if width == site.dim else width))
        if (part.width or site.dim) != width:
            raise SpecError(f"{lane.part.kind} cannot give {width} channels of {site.dim}. Use conv or separable_conv.")
        if part.changes_length:
            raise SpecError(f"{lane.part.kind} changes the length, so that its output cannot be added to others.")
        return part

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return tuple(lane.init_state(batch, max_len, memory) for lane in self._parts())

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        losses, states = EMPTY, []
        total: Tensor | None = None
        final: tuple[State, ...] = ()
        for index, lane in enumerate(self._parts()):
            out = lane(x, frame, None if state is None else state[index])
            y = F.pad(out.y, (0, self.channels - out.y.shape[-1]))
            total = y if total is None else total + y
            losses, final = add_losses(losses, out.losses), final + out.final
            states.append(out.state)
        assert total is not None
        return Out(total, None if state is None else tuple(states), losses, final=final)

    def _parts(self) -> list[Part]:
        return list(self.lanes)  # type: ignore[arg-type]
