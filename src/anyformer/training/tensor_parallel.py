"""Tensor parallelism: every rank has the same tokens and a share of the heads and hidden units of each layer.

y = sum over ranks r of phi(x W_1[r]) W_2[r]          (Megatron-LM, arXiv 1909.08053, section 3)
W_1 is split by columns, so that x is needed on every rank and nothing is sent; W_2 is split by rows, so that one
all-reduce adds up the outputs. In the backward pass one all-reduce adds up the gradients of x. A projection that is
fused of several (query, key and value; gate and value) is split in each of them, by heads.

The parameters of split matrices are DTensors, which optimisers of torch update; all others are whole and equal on all
ranks. Every rank must draw the same random numbers, since dropout outside of split parts has to be equal. torch takes
seconds to import all this, so only `anyformer.training` refers to this file, which loads it on first use.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.placement_types import Placement

from anyformer.core.module import UNIT_INPUTS, UNIT_OUTPUTS, Linear
from anyformer.core.part import Norm, Part, Position
from anyformer.errors import SpecError, at


def split_layers(model: nn.Module, mesh: DeviceMesh) -> list[str]:
    """Splits the parts of a built model over the ranks of a mesh of one dimension, in place; returns their names.

    The weights must be equal on all ranks. Parts that cannot be divided (recurrences, norms, embeddings) stay whole:
    every rank computes them. Raises SpecError if no part can be divided, or one cannot be divided by this number."""
    names = []
    for name, part in model.named_modules():
        with at(name):
            if isinstance(part, Part) and part.divided is not None:
                names.append(name)
                _divide(part, part.divided, mesh)
    if not names:
        raise SpecError("tensor parallelism divides attention, mlp and glu, and the model has none of them.")
    return names


def gather(
    model: nn.Module, read: Callable[[nn.Parameter], Tensor | None] = torch.Tensor.detach
) -> dict[str, Tensor | None]:
    """Parameters by name, whole and in the order of a model that was not split. All ranks must call this. `read`: what
    to gather of a parameter, such as its gradient."""
    rows = dict(_row_orders(model))
    gathered: dict[str, Tensor | None] = {}
    for name, parameter in model.named_parameters():
        value = read(parameter)
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        gathered[name] = whole if whole is None or name not in rows else whole[rows[name].argsort().to(whole.device)]
    return gathered


def _divide(part: Part, counts: Sequence[str], mesh: DeviceMesh) -> None:
    """Makes a part compute the share of its heads or hidden units that this rank has."""
    for child in part.children():
        if isinstance(child, Norm) or (isinstance(child, Position) and child.acts_inside() and child.per_head):
            raise SpecError(
                "a rank has only some of the heads, but qk_norm or the position scheme learns or depends on all of "
                "them. Leave out qk_norm; use rope, or positions before the stack."
            )
        if not isinstance(child, Linear) and any(isinstance(module, Linear) for module in child.modules()):
            raise SpecError(
                "tensor parallelism splits plain matrices, not those with a low-rank update (lora). Merge the updates "
                "first (anyformer merge RUN), or use ddp or fsdp."
            )
    for name in counts:
        setattr(part, name, _share(getattr(part, name), mesh))
    for matrix in (child for child in part.children() if isinstance(child, Linear)):
        _split(matrix, mesh)


def _share(count: int, mesh: DeviceMesh) -> int:
    if count % mesh.size():
        raise SpecError(f"heads or hidden units: {count} cannot be divided by {mesh.size()} ranks.")
    return count // mesh.size()


def _split(matrix: Linear, mesh: DeviceMesh) -> None:
    roles = {role for role, _ in matrix.roles["weight"]}
    if roles <= UNIT_OUTPUTS:
        distribute_module(matrix, mesh, _split_columns, _from_whole, _to_local)
    elif roles <= UNIT_INPUTS:
        distribute_module(matrix, mesh, _split_rows, _from_share, _add_up)
    else:
        raise SpecError(f"a matrix with the roles {', '.join(sorted(roles))} cannot be split.")


def _split_columns(_name: str, matrix: nn.Module, mesh: DeviceMesh) -> None:
    assert isinstance(matrix, Linear)
    for width in matrix.widths:
        _share(width, mesh)
    rows = _rows_by_rank(matrix, mesh.size())[mesh.get_local_rank()].to(matrix.weight.device)
    _replace(matrix, "weight", matrix.weight.detach()[rows], mesh, Shard(0))
    if matrix.bias is not None:
        _replace(matrix, "bias", matrix.bias.detach()[rows], mesh, Shard(0))


def _split_rows(_name: str, matrix: nn.Module, mesh: DeviceMesh) -> None:
    assert isinstance(matrix, Linear)
    share = matrix.weight.detach().chunk(mesh.size(), dim=1)[mesh.get_local_rank()]
    _replace(matrix, "weight", share.clone(), mesh, Shard(1))
    if matrix.bias is not None:
        _replace(matrix, "bias", matrix.bias.detach(), mesh, Replicate())


def _replace(matrix: Linear, name: str, local: Tensor, mesh: DeviceMesh, placement: Placement) -> None:
    matrix.register_parameter(name, nn.Parameter(DTensor.from_local(local, mesh, [placement], run_check=False)))


def _rows_by_rank(matrix: Linear, ranks: int) -> list[Tensor]:
    """For each rank, the rows of the stored matrix [out, in] that it has: a share of every fused projection."""
    projections = torch.arange(sum(matrix.widths)).split(matrix.widths)
    return [torch.cat(shares) for shares in zip(*(rows.chunk(ranks) for rows in projections), strict=True)]


def _row_orders(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and order of the rows of parameters that are split by columns, one rank after the other."""
    for path, module in model.named_modules():
        if (
            isinstance(module, Linear)
            and isinstance(module.weight, DTensor)
            and module.weight.placements == (Shard(0),)
        ):
            order = torch.cat(_rows_by_rank(module, module.weight.device_mesh.size()))
            yield f"{path}.weight", order
            if module.bias is not None:
                yield f"{path}.bias", order


# torch annotates these hooks as returning nothing, although it uses what they return.
def _from_whole(_matrix: nn.Module, inputs: tuple[Tensor], mesh: DeviceMesh) -> Any:
    """The backward pass adds up the gradients of all ranks."""
    return DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False)


def _to_local(_matrix: nn.Module, output: DTensor, _mesh: DeviceMesh) -> Any:
    return output.to_local()


def _from_share(_matrix: nn.Module, inputs: tuple[Tensor], mesh: DeviceMesh) -> Any:
    return DTensor.from_local(inputs[0], mesh, [Shard(-1)], run_check=False)


def _add_up(_matrix: nn.Module, output: DTensor, mesh: DeviceMesh) -> Any:
    return output.redistribute(mesh, [Replicate()]).to_local()
