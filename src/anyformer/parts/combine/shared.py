"""Weight sharing: several layers of a stack run the same part, each with its own state.

The compute does not change; weights and optimiser state are stored once.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from anyformer.core import Borrowed, Frame, Memory, Module, Out, Part, PartSpec, Site, State, kind_of
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class Shared(PartSpec, kind="shared"):
    """One set of weights for all layers of a stack with the same tag."""

    perspective = "efficiency"
    sources = ("self", "memory")

    tag: str
    """The name of the shared weights."""
    part: PartSpec
    """The part that is shared."""

    def check(self) -> None:
        if not self.tag or "." in self.tag:
            raise SpecError(f"tag={self.tag!r} must be a word without dots.")
        if any(isinstance(spec, Shared) and spec.tag == self.tag for _, spec in self.part.walk()):
            raise SpecError(f"tag={self.tag!r} is used again inside the shared part. Give the inner one another tag.")

    @classmethod
    def examples(cls) -> "tuple[Shared, ...]":
        return tuple(cls(tag="one", part=kind_of(PartSpec, kind)()) for kind in ("attention", "mlp"))

    def build(self, site: Site) -> "SharedPart":
        place = replace(site, layer=0)  # only the layer number may differ between the places
        weights = site.share(f"part/{self.tag}", lambda: SharedWeights(self.part, place))
        if weights.module.spec != self.part or weights.module.place != place:
            raise SpecError(f"two different parts have the tag {self.tag!r}. Make them equal, or use two tags.")
        return SharedPart(weights)


class SharedWeights(Module):
    """The shared part. The root of the model owns it, so it is counted, saved and initialised once."""

    def __init__(self, spec: PartSpec, place: Site):
        super().__init__()
        self.spec, self.place = spec, place
        with at("part"):
            self.part = spec.place(place)
        self.residuals = place.residuals  # the part is registered outside its stack


class SharedPart(Part):
    def __init__(self, weights: Borrowed[SharedWeights]):
        super().__init__()
        self.weights = weights
        self.final_widths, self.changes_length = weights.module.part.final_widths, weights.module.part.changes_length

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return self.weights.module.part.init_state(batch, max_len, memory)

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        return self.weights.module.part(x, frame, state)
