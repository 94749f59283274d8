"""The loss on a plane through the weights, spanned by two random directions with their norms (Li et al. 2018)."""

from collections.abc import Sequence
from statistics import mean

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from anyformer.analysis.claim import Decision, Figures, Measured, Word
from anyformer.analysis.families import FEED_FORWARD
from anyformer.core import Frame, JoinSpec, PartSpec, Site, decode, initialise
from anyformer.drawing.figures import Grid, Panel
from anyformer.models import Block, Branch, Stack
from anyformer.models.stack import StackModule
from anyformer.parts.inits.xavier import Xavier
from anyformer.parts.joins.add import Add
from anyformer.parts.joins.replace import Replace

DIM, DEPTH, SIDE, RADIUS, SEEDS = 16, 24, 9, 1.0, 3
ARMS = {"neither": (False, False), "residual": (True, False), "norm": (False, True), "both": (True, True)}
"""Name -> with a residual connection, with a norm before each layer."""


class Landscape(Measured):
    ids = ("CLM-27",)
    says = "Residual connections make the loss landscape of a deep network smooth."

    def measure(self) -> Figures:
        """For every arm and seed: the mean size of second differences, and the range of the loss. And the losses of the
        first seed."""
        slices = {name: [_slice(*arm, seed) for seed in range(SEEDS)] for name, arm in ARMS.items()}
        return {
            **{name: losses[0].tolist() for name, losses in slices.items()},
            "bend": {name: [_bend(each) for each in losses] for name, losses in slices.items()},
            "range": {name: [float(each.max() - each.min()) for each in losses] for name, losses in slices.items()},
        }

    def decide(self, figures: Figures) -> Decision:
        bend, spread = figures["bend"], figures["range"]
        relative = {name: [b / r for b, r in zip(bend[name], spread[name], strict=True)] for name in ARMS}
        lower = {
            "with norms": _all_lower(bend["both"], bend["norm"]),
            "without norms": _all_lower(bend["residual"], bend["neither"]),
            "of the range": _all_lower(relative["both"], relative["norm"]),
        }
        word: Word = "holds" if all(lower.values()) else "depends" if any(lower.values()) else "does not hold"
        return word, (
            f"in {DEPTH} layers with untrained weights, means of {SEEDS} seeds: with norms the loss bends by "
            f"{mean(bend['both']):.2f} from point to point with residual connections and by {mean(bend['norm']):.2f} "
            f"without; as a share of its range, which residual connections widen, by {mean(relative['both']):.3f} and "
            f"{mean(relative['norm']):.3f}. Without norms the loss explodes either way, by "
            f"{mean(bend['residual']):.0e} with and {mean(bend['neither']):.0e} without: it is the norm that tames it"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        panels: list[Panel] = []
        for name in ARMS:
            heights = torch.tensor(figures[name]).log()
            rows = (heights - heights.min()).tolist()
            panels.append(Grid(f"{name}: log of the loss above its least", "one direction", "another", rows,
                               written=False))  # fmt: skip
        return panels


def _all_lower(these: Sequence[float], others: Sequence[float]) -> bool:
    """True if each is lower than the other of its seed."""
    return all(one < other for one, other in zip(these, others, strict=True))


def _bend(losses: Tensor) -> float:
    """The mean size of second differences along both axes."""
    return float(sum(losses.diff(n=2, dim=dim).abs().mean() for dim in (0, 1)) / 2)


def _stack(residual: bool, norm: bool, seed: int) -> StackModule:
    join: JoinSpec = Add() if residual else Replace()
    branch = Branch(part=decode(PartSpec, FEED_FORWARD), place="pre" if norm else "none", join=join)
    stack = Stack(blocks={"layer": Block(branches=(branch,))}, depth=DEPTH).build(Site(dim=DIM, causal=True))
    initialise(stack, Xavier(), seed)
    return stack


@torch.no_grad()
def _slice(residual: bool, norm: bool, seed: int) -> Tensor:
    """The loss on a square grid; the directions have the norm of the weights in each row of a matrix."""
    stack, rng = _stack(residual, norm, seed), torch.Generator().manual_seed(seed)
    x, target = (torch.randn(32, 2, DIM, generator=rng) for _ in range(2))
    base = {name: weight.detach() for name, weight in stack.named_parameters() if weight.dim() > 1}
    across, along = ({name: _direction(weight, rng) for name, weight in base.items()} for _ in range(2))

    def loss(a: Tensor, b: Tensor) -> Tensor:
        moved = {name: weight + a * across[name] + b * along[name] for name, weight in base.items()}
        y: Tensor = functional_call(stack, moved, (x, Frame())).y
        return (y - target).square().mean()

    places = torch.linspace(-RADIUS, RADIUS, SIDE)
    a, b = torch.meshgrid(places, places, indexing="ij")
    losses: Tensor = vmap(loss)(a.flatten(), b.flatten())
    return losses.view(SIDE, SIDE)


def _direction(weight: Tensor, rng: torch.Generator) -> Tensor:
    drawn = torch.randn(weight.shape, generator=rng)
    ratio: Tensor = weight.norm(dim=1, keepdim=True) / drawn.norm(dim=1, keepdim=True)
    return drawn * ratio
