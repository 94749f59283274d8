"""One set of weights at several places of a stack: every place runs the same part, each with a state of its own.

Compute stays what it was; weights, and what the optimiser keeps of them, are there once.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from anyformer.core import Borrowed, Frame, Memory, Module, Out, Part, PartSpec, Site, State, kind_of
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class Shared(PartSpec, kind="shared"):
    """One set of weights for all places of a stack that bear the same tag."""

    perspective = "efficiency"
    sources = ("self", "memory")

    tag: str
    """The name that the places have in common."""
    part: PartSpec
    """What stands at each of them."""

    def check(self) -> None:
        if not self.tag or "." in self.tag:
            raise SpecError(f"tag={self.tag!r} must be a word without dots.")
        if any(isinstance(spec, Shared) and spec.tag == self.tag for _, spec in self.part.walk()):
            raise SpecError(f"tag={self.tag!r} is used again inside the shared part. Give the inner one another tag.")

    @classmethod
    def examples(cls) -> "tuple[Shared, ...]":
        return tuple(cls(tag="one", part=kind_of(PartSpec, kind)()) for kind in ("attention", "mlp"))

    def build(self, site: Site) -> "SharedPart":
        place = replace(site, layer=0)  # all that may differ between the places
        weights = site.share(f"part/{self.tag}", lambda: SharedWeights(self.part, place))
        if weights.module.spec != self.part or weights.module.place != place:
            raise SpecError(f"two different parts bear the tag {self.tag!r}. Make them equal, or give them two tags.")
        return SharedPart(weights)


class SharedWeights(Module):
    """The part itself: owned by the root of the model, and so counted, saved and filled once."""

    def __init__(self, spec: PartSpec, place: Site):
        super().__init__()
        self.spec, self.place = spec, place
        with at("part"):
            self.part = spec.place(place)
        self.residuals = place.residuals  # it stands outside the stack that it feeds


class SharedPart(Part):
    def __init__(self, weights: Borrowed[SharedWeights]):
        super().__init__()
        self.weights = weights
        self.final_widths, self.lengthens = weights.module.part.final_widths, weights.module.part.lengthens

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return self.weights.module.part.init_state(batch, max_len, memory)

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        return self.weights.module.part(x, frame, state)
