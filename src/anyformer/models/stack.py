"""A stack is a layout of named blocks, cycled to a depth. Same tag, same weights; every call has a state of its own.

A block is a list of residual branches; there are no block classes.

pre: x' = join(x, part(norm(x)))      post: x' = norm(join(x, part(x)))      sandwich: x' = join(x, norm(part(norm(x))))
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anyformer.core.fields import Chance, Range, did_you_mean
from anyformer.core.frame import Frame, Memory, StackPlace, State
from anyformer.core.module import Module, Site, Tap
from anyformer.core.part import EMPTY, JoinSpec, NormSpec, Out, Part, PartSpec, add_losses
from anyformer.core.spec import Spec
from anyformer.errors import SpecError, at
from anyformer.models.halting import Halting, HaltingModule
from anyformer.models.reversible import run_reversible
from anyformer.ops.devices import cast_like
from anyformer.parts.joins.add import Add
from anyformer.parts.norms.rms import RMSNorm


@dataclass(frozen=True, kw_only=True)
class Branch(Spec):
    """One step of the stream: a part, its norm and how they join."""

    part: PartSpec
    """What the branch does."""
    norm: NormSpec = RMSNorm()
    """Normalises the stream."""
    place: Literal["pre", "post", "sandwich", "none"] = "pre"
    """Place of the norm: before the part, after the join, on both sides of the part, or nowhere."""
    join: JoinSpec = Add()
    """How the part's output is combined with its input."""
    dropout: Chance = 0.0
    """Dropout on the part's output."""


@dataclass(frozen=True, kw_only=True)
class Block(Spec):
    """A layer: branches, one after the other."""

    branches: tuple[Branch, ...]
    """The steps of the layer."""
    share: str | None = None
    """Blocks with the same tag have the same weights, each with a state of its own."""
    drop: Chance = 0.0
    """Probability that a training call skips the whole layer (LayerDrop, arXiv 1909.11556); all run in evaluation."""

    def check(self) -> None:
        if not self.branches:
            raise SpecError("a block needs at least one branch.")
        if self.share is not None and (not self.share or "." in self.share):
            raise SpecError(f"share={self.share!r} must be a word without dots.")


def in_turn(
    steps: Sequence[Callable[..., Out]], x: Tensor, frame: Frame, state: State | None, *, keep: bool = False
) -> Out:
    """Runs steps one after the other, each with its own state. `keep`: returns the outputs of all steps."""
    states, losses, changed = [], EMPTY, None
    final: tuple[State, ...] = ()
    layers: tuple[Tensor, ...] = ()
    for index, step in enumerate(steps):
        out = step(x, frame, None if state is None else state[index])
        x, changed = out.y, out.frame or changed
        frame = changed or frame
        states.append(out.state)
        losses = add_losses(losses, out.losses)
        final += out.final
        layers += (out.layers or (out.y,)) if keep else ()
    return Out(x, None if state is None else tuple(states), losses, changed, final, layers)


class BranchModule(Module):
    def __init__(self, spec: Branch, site: Site):
        super().__init__()
        with at("part"):
            self.part = spec.part.place(site)
        with at("norm"):
            self.before = spec.norm.build(site) if spec.place in ("pre", "sandwich") else None
            self.inside = spec.norm.build(site) if spec.place == "sandwich" else None
            self.after = spec.norm.build(site) if spec.place == "post" else None
        with at("join"):
            if self.part.changes_length and spec.join.residual:
                raise SpecError(
                    f"{spec.part.kind} changes the length, so {spec.join.kind} cannot combine output and input. "
                    f'Set join = {{ kind = "replace" }}.'
                )
            self.join = spec.join.build(site)
        self.dropout = spec.dropout

    def change(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        """What the branch computes from the stream, before both are joined."""
        out = self.part(x if self.before is None else self.before(x, frame), frame, state)
        y = out.y if self.inside is None else self.inside(out.y, out.frame or frame)
        return out.with_y(torch.dropout(y, self.dropout, self.training))

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        out = self.change(x, frame, state)
        x = cast_like(x, self.join(x, out.y))
        return out.with_y(x if self.after is None else cast_like(x, self.after(x, out.frame or frame)))

    if TYPE_CHECKING:
        __call__ = forward


class BlockModule(Module):
    def __init__(self, spec: Block, site: Site):
        super().__init__()
        self.branches = nn.ModuleList()
        for index, branch in enumerate(spec.branches):
            with at(f"branches[{index}]"):
                self.branches.append(BranchModule(branch, site))
        self.final_widths = tuple(widths for branch in self.steps() for widths in branch.part.final_widths)
        self.drop = spec.drop
        if self.drop and any(branch.part.changes_length for branch in self.steps()):
            raise SpecError("drop: a layer that changes the length cannot be skipped. Set it to 0.")
        self.stream = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return tuple(branch.part.init_state(batch, max_len, memory) for branch in self.steps())

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        out = in_turn(self.steps(), x, frame, state)
        if self.training and self.drop:
            out = self._dropped(x, out)
        return out.with_y(self.stream(out.y))

    if TYPE_CHECKING:
        __call__ = forward

    def _dropped(self, x: Tensor, out: Out) -> Out:
        """The layer's input in place of its output, with probability `drop`. The layer runs all the same: graphs and
        ranks need the same operations and gradients in every step."""
        applied = torch.rand((), device=x.device) >= self.drop
        losses = {name: loss.where(applied, 0.0) for name, loss in out.losses.items()}
        return Out(torch.where(applied, out.y, x), out.state, losses, out.frame, out.final, out.layers)

    def steps(self) -> "list[BranchModule]":
        """The branches in order."""
        return list(self.branches)  # type: ignore[arg-type]


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
    halting: Halting | None = None
    """Adaptive computation time: each position decides after how many layers it stops."""
    residual: Literal["plain", "reversible"] = "plain"
    """plain: one stream. reversible: two, each changed by a function of the other, so that training stores no
    activations of the layers but reconstructs them, for the time of one more forward pass."""

    def check(self) -> None:
        if not self.blocks:
            raise SpecError("a stack needs at least one block.")
        for name in self.layout:
            if name not in self.blocks:
                raise SpecError(f"layout: no block is called {name!r}.{did_you_mean(name, self.blocks)}")
        for one in self.blocks.values():
            if one.share and any(one.share == other.share and one != other for other in self.blocks.values()):
                raise SpecError(f"share={one.share!r} stands on blocks that differ; blocks of one tag must be equal.")
        if self.residual == "reversible":
            self._check_reversible()

    def _check_reversible(self) -> None:
        if self.halting is not None:
            raise SpecError(
                "halting weighs the outputs of layers, which a reversible stack does not keep. Leave out one."
            )
        if self.numbers_layers:
            raise SpecError("a reversible stack does not number its layers for their parts. Use residual=plain.")
        for name, block in self.blocks.items():
            if block.drop:
                raise SpecError(f"blocks.{name}.drop: a reversible stack cannot skip layers. Set it to 0.")
            for index, branch in enumerate(block.branches):
                where = f"blocks.{name}.branches[{index}]"
                if not branch.join.invertible:
                    raise SpecError(
                        f"{where}: a reversible stack cannot undo join={branch.join.kind}. Use add or rezero."
                    )
                if branch.place == "post":
                    raise SpecError(f"{where}: a reversible stack cannot undo a norm after the join. Use place=pre.")

    @property
    def numbers_layers(self) -> bool:
        """True if a part reads the number of its layer."""
        return any(isinstance(part, PartSpec) and part.needs_layer for _, part in self.walk())

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
    keeps_layers: bool = False
    """True: `Out.layers` has the outputs of all layers. Set by the model that reads them."""

    def __init__(self, spec: Stack, site: Site):
        super().__init__()
        self.layers = nn.ModuleDict()
        self.order: list[str] = []
        self._groups: list[Callable[..., Out]] = []
        self.reversible = spec.residual == "reversible"
        self.residuals = self.sublayers = sum(len(spec.blocks[name].branches) for name in spec.order)
        self.numbers_layers = spec.numbers_layers
        site = replace(site, layers=spec.depth, residuals=self.residuals)
        for layer, name in enumerate(spec.order):
            block = spec.blocks[name]
            key = f"shared/{block.share}" if block.share else str(layer)
            if key not in self.layers:
                with at(f"blocks.{name}"):
                    self.layers[key] = BlockModule(block, replace(site, layer=layer))
            self.order.append(key)
        for layer, each in enumerate(self.calls()):
            each.layer_number = layer  # of a shared block, that of its last call
        self.final_widths = tuple(block.final_widths for block in self.calls())
        with at("halting"):
            if spec.halting and any(isinstance(part, Part) and part.changes_length for part in self.modules()):
                raise SpecError("a layer changes the length, but the outputs of the layers are added. Leave out one.")
        self.halting = HaltingModule(spec.halting, site.dim) if spec.halting else None
        if self.reversible and any(self.final_widths):
            raise SpecError("a reversible stack gives no final states of recurrent parts. Use residual=plain.")

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return tuple(block.init_state(batch, max_len, memory) for block in self.calls())

    def recompute(self, spans: Iterable[tuple[int, int, bool]]) -> None:
        """Activation checkpointing of the layers first..end-1 of a span, if its flag is set: in training they store
        their input alone, and run again in the backward pass."""
        if self.reversible:
            raise SpecError("train.recompute: a reversible stack stores no activations of layers. Set it to none.")
        layers = self.steps()
        if self.halting is not None:  # which adds something up after every layer
            spans = [(layer, layer + 1, again) for first, end, again in spans for layer in range(first, end)]
        groups = [(partial(self._run, layers[first:end]), again) for first, end, again in spans]
        self._groups = [partial(checkpoint, run, use_reentrant=False) if again else run for run, again in groups]

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        if self.reversible:
            return self._forward_in_two_streams(x, frame, state)
        groups = self._groups if state is None and self.training else []
        steps = groups or self.steps()
        return self._run(steps, x, frame, state) if self.halting is None else self.halting(x, frame, state, steps)

    if TYPE_CHECKING:
        __call__ = forward

    def _forward_in_two_streams(self, x: Tensor, frame: Frame, state: State | None) -> Out:
        blocks = [block.steps() for block in self.calls()]
        branches = [branch for steps in blocks for branch in steps]
        states = None if state is None else [inner for block in state for inner in block]
        out = run_reversible(branches, x, frame, states, reconstruct=self.training and state is None)
        if out.state is None:
            return out
        after = iter(out.state)
        return out._replace(state=tuple(tuple(next(after) for _ in steps) for steps in blocks))

    def calls(self) -> list[BlockModule]:
        """The layers in order; a shared one as often as it runs."""
        return [self.layers[key] for key in self.order]  # type: ignore[misc]

    def _run(self, steps: Sequence[Callable[..., Out]], x: Tensor, frame: Frame, state: State | None = None) -> Out:
        return in_turn(steps, x, frame, state, keep=self.keeps_layers)

    def steps(self) -> Sequence[Callable[..., Out]]:
        """The layers in order, each with its number in the frame if a part needs it."""
        if not self.numbers_layers:
            return self.calls()
        return [partial(_at_layer, number, block) for number, block in enumerate(self.calls())]


def _at_layer(number: int, block: BlockModule, x: Tensor, frame: Frame, state: State | None) -> Out:
    place = (frame.place or StackPlace())._replace(layer=number)
    return block(x, replace(frame, place=place), state)


def layer_count(model: nn.Module) -> int:
    """Number of layers that a call of the model runs through, in all stacks."""
    return sum(len(module.order) for module in model.modules() if isinstance(module, StackModule))


def reconstructs(model: nn.Module) -> bool:
    """True if a stack of the model is reversible: its backward pass runs branches again, with their random numbers."""
    return any(module.reversible for module in model.modules() if isinstance(module, StackModule))


RecomputedLayers = str | tuple[int, ...]
"""The values of `train.recompute`: none, blocks, sqrt, or the numbers of some layers."""


def recompute(model: nn.Module, choice: RecomputedLayers) -> None:
    """Turns on activation checkpointing for the chosen layers of every stack: their activations are dropped and
    recomputed in the backward pass.

    For L layers only L inputs are stored (blocks), or the activations of 2 sqrt(L) layers (sqrt), for the time of one
    more forward pass (arXiv 1604.06174). Dropout uses the same random numbers again, so gradients are bit-identical.
    """
    if choice == "none":
        return
    for stack in (module for module in model.modules() if isinstance(module, StackModule)):
        stack.recompute(_spans(len(stack.order), choice))


def _spans(depth: int, choice: RecomputedLayers) -> list[tuple[int, int, bool]]:
    if choice == "sqrt":
        size = math.ceil(math.sqrt(depth))
        return [(start, min(start + size, depth), True) for start in range(0, depth, size)]
    chosen = range(depth) if choice == "blocks" else choice
    wrong = [layer for layer in chosen if isinstance(layer, int) and layer >= depth]
    if wrong:
        raise SpecError(f"train.recompute: there is no layer {wrong[0]}, only 0 to {depth - 1}.")
    return [(layer, layer + 1, layer in chosen) for layer in range(depth)]
