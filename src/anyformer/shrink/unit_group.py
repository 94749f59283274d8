"""Units of a model that pruning ranks against each other: the heads of one part, or the layers of one stack.

A gate xi of each unit multiplies its output: 1 changes nothing, 0 gives the output of a model without the unit, and the
gradient of the loss with respect to it is the importance of the unit (arXiv 1905.10650).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.frame import Frame, State
from anyformer.core.module import UNIT_INPUTS, UNIT_OUTPUTS, Linear
from anyformer.core.part import Out, Part
from anyformer.models.stack import BlockModule

Gates = Callable[[int], Tensor]
"""Number of rows of a call -> the gates [rows, units] of that call."""


class UnitGroup(ABC):
    """Units of which pruning keeps the most important ones."""

    def __init__(self, name: str, count: int):
        self.name, self.count = name, count

    @abstractmethod
    def gated(self, gates: Gates) -> Any:
        """A context in which the output of each unit is multiplied by its gate."""

    @abstractmethod
    def weights(self) -> list[list[Tensor]]:
        """For each unit, its weights."""

    def without(self, unit: int) -> Any:
        """A context in which the output of one unit is 0."""
        return self.gated(lambda rows: torch.ones(rows, self.count).index_fill_(1, torch.tensor([unit]), 0.0))


class PartUnits(UnitGroup):
    """The heads or hidden units of one part."""

    def __init__(self, name: str, part: Part, count: int):
        super().__init__(name, count)
        self.matrices = {key: child for key, child in part.named_children() if isinstance(child, Linear)}

    @contextmanager
    def gated(self, gates: Gates) -> Iterator[None]:
        def multiply(_matrix: nn.Module, inputs: tuple[Tensor]) -> Tensor:
            x = inputs[0].unflatten(-1, (self.count, -1))  # [b t u c]
            scaled: Tensor = x * gates(len(x)).to(x)[:, None, :, None]
            return scaled.flatten(2)

        (out,) = (matrix for matrix in self.matrices.values() if _roles(matrix) <= UNIT_INPUTS)
        handle = out.register_forward_pre_hook(multiply)
        try:
            yield
        finally:
            handle.remove()

    def weights(self) -> list[list[Tensor]]:
        units: list[list[Tensor]] = [[] for _ in range(self.count)]
        for matrix in self.matrices.values():
            for unit, weight in enumerate(self._of_units(matrix, matrix.weight.detach())):
                units[unit] += weight
        return units

    def _of_units(self, matrix: Linear, weight: Tensor) -> list[list[Tensor]]:
        """For each unit, its rows of every projection, or its columns."""
        if _roles(matrix) <= UNIT_INPUTS:
            return [[columns] for columns in weight.chunk(self.count, dim=1)]
        projections = [rows.chunk(self.count) for rows in weight.split(matrix.widths)]
        return [list(rows) for rows in zip(*projections, strict=True)]

    def cut(self, keep: Sequence[int]) -> dict[str, Tensor]:
        """The tensors of the part's matrices with these units alone, by name."""
        tensors: dict[str, Tensor] = {}
        for key, matrix in self.matrices.items():
            inputs, bias = _roles(matrix) <= UNIT_INPUTS, matrix.bias
            chosen = self._columns if inputs else partial(self._rows, matrix.widths)
            tensors[f"{key}.weight"] = chosen(keep, matrix.weight.detach())
            if bias is not None:
                tensors[f"{key}.bias"] = bias.detach() if inputs else chosen(keep, bias.detach())
        return tensors

    def _columns(self, keep: Sequence[int], weight: Tensor) -> Tensor:
        return torch.cat([weight.chunk(self.count, dim=1)[unit] for unit in keep], dim=1)

    def _rows(self, widths: Sequence[int], keep: Sequence[int], tensor: Tensor) -> Tensor:
        return torch.cat([rows.chunk(self.count)[unit] for rows in tensor.split(list(widths)) for unit in keep])

    @property
    def can_be_cut(self) -> bool:
        """True if every matrix of the part has heads or hidden units on exactly one side."""
        roles = [_roles(matrix) for matrix in self.matrices.values()]
        return all(each <= UNIT_OUTPUTS or each <= UNIT_INPUTS for each in roles)


class LayerUnits(UnitGroup):
    """The layers of one stack; a gate of 0 passes the stream on unchanged."""

    def __init__(self, name: str, layers: Sequence[BlockModule]):
        super().__init__(name, len(layers))
        self.layers = layers

    @contextmanager
    def gated(self, gates: Gates) -> Iterator[None]:
        def multiply(layer: int, _block: nn.Module, inputs: tuple[Tensor, Frame, State], out: Out) -> Out:
            x = inputs[0]
            gate = gates(len(x))[:, layer].to(x)[:, None, None]
            return out.with_y(x + gate * (out.y - x))

        handles = [
            block.register_forward_hook(lambda *call, layer=layer: multiply(layer, *call))
            for layer, block in enumerate(self.layers)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def weights(self) -> list[list[Tensor]]:
        return [[tensor.detach() for tensor in block.parameters()] for block in self.layers]


def _roles(matrix: Linear) -> set[Any]:
    return {role for role, _ in matrix.roles["weight"]}
