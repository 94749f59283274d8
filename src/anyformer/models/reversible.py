"""Reversible layers: two streams, of which each branch changes one by a function of the other.

y1 = x1 + F(x2) ;  y2 = x2 + G(y1)          inverse: x2 = y2 - G(y1) ;  x1 = y1 - F(x2)          (arXiv 1707.04585)
Both streams begin as the input of the stack, and their mean is its output. In training only the last two streams are
stored: the backward pass reconstructs the inputs of each branch from its outputs, and computes the branch again for its
gradients. Streams are kept in at least float32, because every reconstruction rounds.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.frame import Frame, State
from anyformer.core.part import EMPTY, Out, add_losses
from anyformer.ops.devices import at_least_float32, is_empty, on_gpu

if TYPE_CHECKING:
    from anyformer.models.stack import BranchModule

Streams = tuple[Tensor, Tensor]


class ReversibleCall:
    """Branches that are called in turn on two streams, with the frame of the call."""

    def __init__(self, branches: "Sequence[BranchModule]", x: Tensor, frame: Frame):
        self.branches, self.frame, self.dtype, self.device = branches, frame, x.dtype, x.device
        self.losses: Mapping[str, Tensor] = EMPTY
        self.states: tuple[State, ...] = ()
        self.seeds: list[list[Tensor]] = []
        """State of the random number generators before each branch."""
        self.autocast: torch.dtype | None = None

    def forward(self, streams: Streams, states: Sequence[State] | None = None, *, reconstruct: bool = False) -> Streams:
        """The streams after all branches. `reconstruct`: notes the precision and the random numbers for `backward`."""
        if reconstruct and torch.is_autocast_enabled(self.device.type):
            self.autocast = torch.get_autocast_dtype(self.device.type)
        turn, other = streams
        for index, branch in enumerate(self.branches):
            if reconstruct:
                self.seeds.append([torch.get_rng_state(), *self._device_state()])
            out = branch.change(other.to(self.dtype), self.frame, None if states is None else states[index])
            turn, other = other, branch.join(turn, out.y.to(turn.dtype))
            self.losses = add_losses(self.losses, out.losses)
            self.states += (out.state,)
        return self._in_order(turn, other)

    def invert(self, streams: Streams) -> Streams:
        """The streams before all branches, from those after them."""
        turn, other = self._in_order(*streams)
        for branch in reversed(self.branches):
            out = branch.change(turn.to(self.dtype), self.frame, None)
            turn, other = branch.join.undo(other, out.y.to(other.dtype)), turn
        return turn, other

    def backward(
        self, streams: Streams, grads: Streams, losses: Mapping[str, Tensor], parameters: Sequence[Tensor]
    ) -> tuple[Streams, list[Tensor | None]]:
        """Gradients of both streams before all branches, and of the parameters."""
        turn, other = self._in_order(*streams)
        turn_grad, other_grad = self._in_order(*grads)
        sums: list[Tensor | None] = [None] * len(parameters)
        for branch, seeds in zip(reversed(self.branches), reversed(self.seeds), strict=True):
            read = turn.detach().requires_grad_()
            with self._as_before(seeds), torch.enable_grad():
                out = branch.change(read.to(self.dtype), self.frame, None)
                with torch.no_grad():
                    before = branch.join.undo(other, out.y.to(other.dtype))
                before.requires_grad_()
                joined = branch.join(before, out.y.to(before.dtype))
            kept = [(value, losses[name]) for name, value in out.losses.items() if value.requires_grad]
            results, result_grads = [joined, *(value for value, _ in kept)], [other_grad, *(grad for _, grad in kept)]
            inputs = (before, read, *parameters)
            before_grad, read_grad, *more = torch.autograd.grad(results, inputs, result_grads, allow_unused=True)
            sums = [_sum(old, new) for old, new in zip(sums, more, strict=True)]
            turn, other = before.detach(), turn
            turn_grad, other_grad = before_grad, turn_grad + read_grad
        return (turn_grad, other_grad), sums

    def _in_order(self, first: Tensor, second: Tensor) -> Streams:
        """After an odd number of branches the streams have changed places; twice that is the identity."""
        return (first, second) if len(self.branches) % 2 == 0 else (second, first)

    def _device_state(self) -> list[Tensor]:
        return [torch.cuda.get_rng_state(self.device)] if on_gpu(self.device) else []

    def _as_before(self, seeds: list[Tensor]) -> ExitStack:
        """The random numbers and the precision of the forward pass."""
        contexts = ExitStack()
        contexts.enter_context(torch.random.fork_rng([self.device] if on_gpu(self.device) else []))
        torch.set_rng_state(seeds[0])
        if on_gpu(self.device):
            torch.cuda.set_rng_state(seeds[1], self.device)
        contexts.enter_context(
            torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None, cache_enabled=False)
        )
        return contexts


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second


class Reconstruct(torch.autograd.Function):
    """Runs a reversible call and stores its last streams alone."""

    @staticmethod
    def forward(ctx: Any, call: ReversibleCall, first: Tensor, second: Tensor, *parameters: Tensor) -> Any:
        first, second = call.forward((first, second), reconstruct=True)
        ctx.call, ctx.parameters = call, parameters
        ctx.save_for_backward(first, second)
        return first, second, *call.losses.values()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        first, second, *losses = grads
        by_name = dict(zip(ctx.call.losses, losses, strict=True))
        streams, sums = ctx.call.backward(ctx.saved_tensors, (first, second), by_name, ctx.parameters)
        return None, *streams, *sums


def run_reversible(
    branches: "Sequence[BranchModule]", x: Tensor, frame: Frame, states: Sequence[State] | None, reconstruct: bool
) -> Out:
    """The output of a stack of these branches; `reconstruct`: store no activations for the backward pass."""
    wide, call = x.to(at_least_float32(x)), ReversibleCall(branches, x, frame)
    # Gradients of an encoder's output, compiled graphs and the count of operations need the ordinary way.
    others_learn = frame.place is not None or (frame.memory is not None and frame.memory.x.requires_grad)
    ordinary = others_learn or torch.compiler.is_compiling() or is_empty(x) or not torch.is_grad_enabled()
    if reconstruct and not ordinary:
        parameters = list(dict.fromkeys(p for branch in branches for p in branch.parameters() if p.requires_grad))
        first, second, *losses = Reconstruct.apply(call, wide, wide, *parameters)  # type: ignore[no-untyped-call]
        named = dict(zip(call.losses, losses, strict=True))
        return Out(((first + second) / 2).to(x.dtype), losses=named)
    first, second = call.forward((wide, wide), states)
    return Out(((first + second) / 2).to(x.dtype), None if states is None else call.states, call.losses)
