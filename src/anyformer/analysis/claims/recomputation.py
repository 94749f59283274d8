"""Activation checkpointing: the layers that run again in the backward pass, and the time that they take.

A step is one forward pass and a backward pass of two: one more forward pass makes it 4 / 3 as long. (arXiv 1604.06174)
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anyformer.analysis.claim import Decision, Figures, TimedClaim, curves
from anyformer.analysis.complexity import SECONDS, TIMED, timed
from anyformer.analysis.families import ATTENTION, FEED_FORWARD, function, residual
from anyformer.drawing.figures import Bars, Lines, Panel
from anyformer.models.stack import RecomputedLayers, StackModule, recompute

DEPTH, DIM, TIMED_DIM = 8, 16, 128
CHOICES: dict[str, RecomputedLayers] = {"none": "none", "blocks": "blocks", "sqrt": "sqrt", "layers 0 and 2": (0, 2)}
TIMES = ("none", "blocks", "sqrt")
LEAST, MOST = 1.2, 4 / 3
"""Operations of a step with recomputation, in multiples of one without: torch stops the extra forward pass of a block
at its last stored activation, so that it is a little shorter than a whole one."""


class Recomputation(TimedClaim):
    ids = ("OPT-07",)
    says = (
        "Recomputing activations in the backward pass saves memory and costs one more forward pass, a third more time."
    )
    sizes = (256, 512, 1024)

    def count(self) -> Figures:
        again = {f"layers run again, {name}": layers_run_again(choice) for name, choice in CHOICES.items()}
        return {**again, **{f"operations, {name}": _operations(CHOICES[name]) for name in TIMES}}

    def clock(self, sizes: Sequence[int]) -> Figures:
        steps = {name: partial(_step, _stack(CHOICES[name], TIMED_DIM)) for name in TIMES}
        return timed(steps, [_input(length, TIMED_DIM) for length in sizes])

    def decide(self, figures: Figures) -> Decision:
        work = {name: figures[f"operations, {name}"] / figures["operations, none"] for name in TIMES[1:]}
        ran = {name: figures[f"layers run again, {name}"] for name in CHOICES}
        right = list(ran.values()) == [0, DEPTH, DEPTH, 2]
        time = {name: f"{ratio:.2f}" for name, ratio in longer(figures).items()}
        return right and all(LEAST < ratio <= MOST for ratio in work.values()), (
            f"layers of {DEPTH} that run again in the backward pass: "
            f"{', '.join(f'{count} ({name})' for name, count in ran.items())}; a step takes "
            f"{work['blocks']:.2f} (blocks) and {work['sqrt']:.2f} (sqrt) times the operations, and here "
            f"{time['blocks']} and {time['sqrt']} times as long over {figures[TIMED][-1]} tokens"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        ran = [(name, figures[f"layers run again, {name}"]) for name in CHOICES]
        times = curves(figures, TIMED, TIMES, SECONDS)
        return [
            Bars("Layers that run again in the backward pass", "layers", ran),
            Lines(f"A step of {DEPTH} layers, d = {TIMED_DIM}", "tokens T", "seconds", times, log_x=True, log_y=True),
        ]


def longer(figures: Figures) -> dict[str, float]:
    """The time of a step with recomputation, in multiples of a step without, at the longest length."""
    return {name: figures[SECONDS + name][-1] / figures[SECONDS + "none"][-1] for name in TIMES[1:]}


def layers_run_again(choice: RecomputedLayers) -> int:
    """Number of layers that run in the backward pass of one step."""
    stack, calls = _stack(choice, DIM), 0

    def count(_layer: object, _inputs: object) -> None:
        nonlocal calls
        calls += 1

    y = function(stack)(_input(16, DIM))
    for layer in stack.calls():
        layer.register_forward_pre_hook(count)
    y.sum().backward()
    return calls


def _operations(choice: RecomputedLayers) -> int:
    with FlopCounterMode(display=False) as counter:
        _step(_stack(choice, DIM), _input(16, DIM))
    return int(counter.get_total_flops())


def _step(stack: StackModule, x: Tensor) -> None:
    function(stack)(x).sum().backward()


def _stack(choice: RecomputedLayers, dim: int) -> StackModule:
    stack = residual(ATTENTION, FEED_FORWARD, depth=DEPTH, dim=dim).train()
    recompute(stack, choice)
    return stack


def _input(length: int, dim: int) -> Tensor:
    return torch.randn(1, length, dim, generator=torch.Generator().manual_seed(0), requires_grad=True)
