"""A stack is a layout of named blocks, cycled to a depth. Same tag, same weights; every call has a state of its own."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anyformer.core import Frame, Memory, Module, Out, Range, Site, Spec, State
from anyformer.core.fields import did_you_mean
from anyformer.errors import SpecError, at
from anyformer.models.block import Block, BlockModule, in_turn


@dataclass(frozen=True, kw_only=True)
class Stack(Spec):
    """Layers, one after the other."""

    blocks: dict[str, Block]
    """The kinds of layer, by name."""
    layout: tuple[str, ...] = ()
    """Names of blocks in order, repeated up to `depth`; each block once if not given. A depth below one cycle leaves
    out the blocks at its end."""
    depth: Annotated[int, Range(low=1, high=10_000)]
    """Number of layers."""

    def check(self) -> None:
        if not self.blocks:
            raise SpecError("a stack needs at least one block.")
        for name in self.layout:
            if name not in self.blocks:
                raise SpecError(f"layout: no block is called {name!r}.{did_you_mean(name, self.blocks)}")
        for one in self.blocks.values():
            if one.share and any(one.share == other.share and one != other for other in self.blocks.values()):
                raise SpecError(f"share={one.share!r} stands on blocks that differ; blocks of one tag must be equal.")

    @property
    def order(self) -> tuple[str, ...]:
        """The name of each layer's block."""
        cycle = self.layout or tuple(self.blocks)
        return tuple(cycle[layer % len(cycle)] for layer in range(self.depth))

    def build(self, site: Site) -> "StackModule":
        for name in self.blocks:
            if name not in (self.layout or self.order):
                rule = "layout does not name it" if self.layout else f"depth={self.depth} does not reach it"
                raise SpecError(f"blocks.{name} would never be used: {rule}. Leave it out, or write it into layout.")
        return StackModule(self, site)


class StackModule(Module):
    def __init__(self, spec: Stack, site: Site):
        super().__init__()
        self.layers = nn.ModuleDict()
        self.order: list[str] = []
        self._groups: list[Callable[..., Out]] = []
        self.residuals = sum(len(spec.blocks[name].branches) for name in spec.order)
        site = replace(site, layers=spec.depth, residuals=self.residuals)
        for layer, name in enumerate(spec.order):
            block = spec.blocks[name]
            key = f"shared/{block.share}" if block.share else str(layer)
            if key not in self.layers:
                with at(f"blocks.{name}"):
                    self.layers[key] = BlockModule(block, replace(site, layer=layer))
            self.order.append(key)
        self.final_widths = tuple(block.final_widths for block in self.calls())

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return tuple(block.init_state(batch, max_len, memory) for block in self.calls())

    def recompute(self, spans: Iterable[tuple[int, int, bool]]) -> None:
        """Activation checkpointing of the layers first..end-1 of a span, if its flag is set: in training they store
        their input alone, and run again in the backward pass."""
        layers = self.calls()
        groups = [(partial(in_turn, layers[first:end]), again) for first, end, again in spans]
        self._groups = [partial(checkpoint, run, use_reentrant=False) if again else run for run, again in groups]

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        groups = self._groups if state is None and self.training else []
        return in_turn(groups or self.calls(), x, frame, state)

    if TYPE_CHECKING:
        __call__ = forward

    def calls(self) -> list[BlockModule]:
        """The layers in order; a shared one as often as it runs."""
        return [self.layers[key] for key in self.order]  # type: ignore[misc]


def layer_count(model: nn.Module) -> int:
    """Number of layers that a call of the model runs through, in all stacks."""
    return sum(len(module.order) for module in model.modules() if isinstance(module, StackModule))
