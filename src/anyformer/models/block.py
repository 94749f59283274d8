"""A block is a list of residual branches; there are no block classes.

pre: x' = join(x, part(norm(x)))      post: x' = norm(join(x, part(x)))      sandwich: x' = join(x, norm(part(norm(x))))
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from anyformer.core.fields import Chance
from anyformer.core.frame import Frame, Memory, State
from anyformer.core.module import Module, Site, Tap
from anyformer.core.part import EMPTY, JoinSpec, NormSpec, Out, PartSpec, add_losses
from anyformer.core.spec import Spec
from anyformer.errors import SpecError, at
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

    def check(self) -> None:
        if not self.branches:
            raise SpecError("a block needs at least one branch.")
        if self.share is not None and (not self.share or "." in self.share):
            raise SpecError(f"share={self.share!r} must be a word without dots.")


def in_turn(steps: Sequence[Callable[..., Out]], x: Tensor, frame: Frame, state: State | None) -> Out:
    """Runs steps one after the other, each with its own state."""
    states, losses, changed = [], EMPTY, None
    final: tuple[State, ...] = ()
    for index, step in enumerate(steps):
        out = step(x, frame, None if state is None else state[index])
        x, changed = out.y, out.frame or changed
        frame = changed or frame
        states.append(out.state)
        losses = add_losses(losses, out.losses)
        final += out.final
    return Out(x, None if state is None else tuple(states), losses, changed, final)


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
            if self.part.lengthens and spec.join.residual:
                raise SpecError(
                    f"{spec.part.kind} changes the length, so {spec.join.kind} cannot combine output and input. "
                    f'Set join = {{ kind = "replace" }}.'
                )
            self.join = spec.join.build(site)
        self.dropout = spec.dropout

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        out = self.part(x if self.before is None else self.before(x, frame), frame, state)
        frame = out.frame or frame
        y = out.y if self.inside is None else self.inside(out.y, frame)
        x = cast_like(x, self.join(x, torch.dropout(y, self.dropout, self.training)))
        return out.with_y(x if self.after is None else cast_like(x, self.after(x, frame)))

    if TYPE_CHECKING:
        __call__ = forward


class BlockModule(Module):
    def __init__(self, spec: Block, site: Site):
        super().__init__()
        self.branches = nn.ModuleList()
        for index, branch in enumerate(spec.branches):
            with at(f"branches[{index}]"):
                self.branches.append(BranchModule(branch, site))
        self.final_widths = tuple(widths for branch in self._branches() for widths in branch.part.final_widths)
        self.stream = Tap()

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> State:
        return tuple(branch.part.init_state(batch, max_len, memory) for branch in self._branches())

    def forward(self, x: Tensor, frame: Frame, state: State | None = None) -> Out:
        out = in_turn(self._branches(), x, frame, state)
        return out.with_y(self.stream(out.y))

    if TYPE_CHECKING:
        __call__ = forward

    def _branches(self) -> "list[BranchModule]":
        return list(self.branches)  # type: ignore[arg-type]
