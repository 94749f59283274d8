"""Parts one after the other without residual connections between them, as one part; the width may change on the way.

y = pad(part_n(norm_n(.. part_1(norm_1(x)))))          a narrower last output is padded with zeros at the end
The convolutions of an Evolved Transformer's cell widen the stream and narrow it again (arXiv 1901.11117, section 5.1).
"""

from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core import Frame, Memory, Norm, NormSpec, Out, Part, PartSpec, Positive, Site, Spec, State, kind_of
from anyformer.core.part import EMPTY, add_losses
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class ChainStep(Spec):
    """One of several parts that run one after the other."""

    part: PartSpec
    """The part that runs in this step."""
    norm: NormSpec | None = None
    """Normalises the input of the part."""
    expansion: Positive | None = None
    """Output width as a multiple of the model width, for parts that can change the width (conv, separable_conv,
    parallel, ...); the width of the whole if not given."""


@dataclass(frozen=True, kw_only=True)
class Chain(PartSpec, kind="chain"):
    """Runs parts one after the other as a single part, through wider or narrower layers."""

    steps: tuple[ChainStep, ...]
    """The parts in order."""

    def check(self) -> None:
        if not self.steps:
            raise SpecError("steps: give at least one.")

    def build(self, site: Site) -> "ChainPart":
        return ChainPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[Chain, ...]":
        conv, look, norm = kind_of(PartSpec, "conv")(), kind_of(PartSpec, "attention")(), kind_of(NormSpec, "layer")()
        wide = (ChainStep(part=conv, expansion=2.0), ChainStep(part=conv, norm=norm, expansion=0.5))
        return (cls(steps=wide), cls(steps=(ChainStep(part=look, norm=norm), ChainStep(part=conv))))


class ChainPart(Part):
    def __init__(self, spec: Chain, site: Site):
        super().__init__()
        self.channels, dim = site.width or site.dim, site.dim
        self.width = self.channels
        self.parts, self.norms = nn.ModuleList(), nn.ModuleDict()
        for index, step in enumerate(spec.steps):
            width = self.channels if step.expansion is None else round(step.expansion * (site.stream_dim or site.dim))
            with at(f"steps[{index}]"):
                part, norm = _placed(step, replace(site, dim=dim), width)
            self.parts.append(part)
            if norm is not None:
                self.norms[str(index)] = norm
            dim = width
        if dim > self.channels:
            raise SpecError(
                f"the last step gives {dim} channels where {self.channels} are expected. Set its expansion."
            )
        self.final_widths = tuple(widths for part in self._parts() for widths in part.final_widths)

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return tuple(part.init_state(batch, max_len, memory) for part in self._parts())

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        losses, states = EMPTY, []
        final: tuple[State, ...] = ()
        for index, part in enumerate(self._parts()):
            x = self.norms[str(index)](x, frame) if str(index) in self.norms else x
            out = part(x, frame, None if state is None else state[index])
            x, losses, final = out.y, add_losses(losses, out.losses), final + out.final
            states.append(out.state)
        y = F.pad(x, (0, self.channels - x.shape[-1]))
        return Out(y, None if state is None else tuple(states), losses, final=final)

    def _parts(self) -> list[Part]:
        return list(self.parts)  # type: ignore[arg-type]


def _placed(step: ChainStep, site: Site, width: int) -> tuple[Part, Norm | None]:
    if width < 1:
        raise SpecError(f"expansion={step.expansion} gives no channels.")
    part = step.part.place(replace(site, width=None if width == site.dim else width))
    if (part.width or site.dim) != width:
        raise SpecError(f"{step.part.kind} cannot give {width} channels of {site.dim}. Use conv or separable_conv.")
    if part.changes_length:
        raise SpecError(f"{step.part.kind} changes the length. Put it into a branch of its own.")
    return part, step.norm.build(site) if step.norm else None
