"""A learned weighted mean of the outputs of several layers.

y = gamma sum_j s_j h_j ,  s = softmax(w) ,  h_0 = x , h_j = part_j(h_{j-1})          (ELMo, arXiv 1802.05365, eq. 1)
"""

from dataclasses import dataclass

from torch import Tensor, nn

from anyformer.core import EMPTY, Frame, Memory, Out, Part, PartSpec, Site, State, Tap, kind_of, param
from anyformer.core.part import add_losses
from anyformer.errors import SpecError, at


@dataclass(frozen=True, kw_only=True)
class ScalarMix(PartSpec, kind="scalar_mix"):
    """Runs parts one after the other and returns a learned weighted mean of the input and all outputs."""

    sources = ("self", "memory")

    parts: tuple[PartSpec, ...]
    """The parts in order; each reads the output of the one before."""

    def check(self) -> None:
        if not self.parts:
            raise SpecError("parts: give at least one.")

    def build(self, site: Site) -> "ScalarMixPart":
        return ScalarMixPart(self, site)

    @classmethod
    def examples(cls) -> "tuple[ScalarMix, ...]":
        mix, look = kind_of(PartSpec, "min_gru")(), kind_of(PartSpec, "attention")()
        return (cls(parts=(mix, mix)), cls(parts=(look, look)))


class ScalarMixPart(Part):
    def __init__(self, spec: ScalarMix, site: Site):
        super().__init__()
        self.parts = nn.ModuleList()
        for index, part in enumerate(spec.parts):
            with at(f"parts[{index}]"):
                self.parts.append(part.place(site))
                if self._parts()[-1].changes_length:
                    raise SpecError(
                        f"{part.kind} changes the length, but the layers are averaged. Place it before them."
                    )
        self.final_widths = tuple(widths for part in self._parts() for widths in part.final_widths)
        self.logits = param((len(spec.parts) + 1,), "scalar")
        self.gamma = param((1,), "gain")
        self.weights = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return tuple(part.init_state(batch, max_len, memory) for part in self._parts())

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        shares = self.weights(self.logits.softmax(0))
        y, states, losses = shares[0] * x, [], EMPTY
        final: tuple[State, ...] = ()
        for index, part in enumerate(self._parts()):
            out = part(x, frame, None if state is None else state[index])
            x, final = out.y, final + out.final
            y = y + shares[index + 1] * x
            states.append(out.state)
            losses = add_losses(losses, out.losses)
        return Out(self.gamma * y, None if state is None else tuple(states), losses, final=final)

    def _parts(self) -> list[Part]:
        return list(self.parts)  # type: ignore[arg-type]
