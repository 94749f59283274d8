"""Tensors that FSDP shards over ranks (DTensor), recognised without an import of torch.distributed.tensor.

That import takes more than a second. In a process that has not made it, no tensor is sharded.
"""

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether a tensor is sharded over ranks."""
    return _is_a(tensor, "torch.distributed.tensor", "DTensor")


def is_fsdp_unit(module: nn.Module) -> "TypeGuard[FSDPModule]":
    """Whether FSDP gathers the parameters of a module while it runs."""
    return _is_a(module, "torch.distributed.fsdp", "FSDPModule")


def shard_like(source: Tensor, target: Tensor) -> Tensor:
    """The source, sharded like the target if only the target is sharded."""
    if not is_sharded(target) or is_sharded(source):
        return source
    tensors: Any = sys.modules["torch.distributed.tensor"]
    sharded: Tensor = tensors.distribute_tensor(source.to(target.device), target.device_mesh, target.placements)
    return sharded


def _is_a(value: object, module: str, name: str) -> bool:
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], name))
