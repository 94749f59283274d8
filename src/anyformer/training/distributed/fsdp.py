"""FSDP2: every process holds a share of each tensor; a block is put together while it runs.

Each block that the stacks own is divided on its own, the rest (tables, heads, what blocks share) as one. Shares are
stored by torch's distributed checkpoints as safetensors files, and can be read back by any number of processes.
"""

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from anyformer.errors import CheckpointError, SpecError
from anyformer.models.block import BlockModule
from anyformer.models.stack import StackModule

Files = Mapping[str, Mapping[str, Tensor]]
"""File name without ending -> name -> tensor."""


def blocks(scored: nn.Module) -> list[BlockModule]:
    """Every block once, however often it runs."""
    stacks = (module for module in scored.modules() if isinstance(module, StackModule))
    return list(dict.fromkeys(block for stack in stacks for block in stack.calls()))


def divide(scored: nn.Module, device: torch.device, size: int) -> None:
    """Divides all parameters among `size` processes, in place."""
    _refuse_numbers(scored)
    mesh, owned = init_device_mesh(device.type, (size,)), blocks(scored)
    for block in owned:
        fully_shard(block, mesh=mesh, ignored_params=_borrowed(block, scored))
    fully_shard(scored, mesh=mesh)
    for name, parameter in scored.named_parameters():
        if not isinstance(parameter, DTensor):  # nobody would add up its gradients
            raise SpecError(f"train.parallel=fsdp: {name} belongs to two blocks and to nobody else. Use ddp.")


def is_divided(files: Files) -> bool:
    return any(isinstance(tensor, DTensor) for tensors in files.values() for tensor in tensors.values())


def share(tensor: Tensor) -> Tensor:
    """What this process holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def together(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Whole tensors in the memory of the host, one after the other; processes that do not keep them only help."""
    gathered = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if keep:
            gathered[name] = full.detach().cpu()
    return gathered


def write(folder: Path, files: Files) -> None:
    """Every process writes what it holds."""
    flat = {f"{file}/{name}": tensor.detach() for file, tensors in files.items() for name, tensor in tensors.items()}
    try:
        save(flat, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None  # what went wrong, and not that something did


def read(folder: Path, like: Files | None, only: Collection[str] | None) -> dict[str, dict[str, Tensor]]:
    """Tensors divided as those of the same name in `like`; whole where there are none. With `like`, all take part."""
    reader = HuggingFaceStorageReader(str(folder))
    stored = cast(dict[str, TensorStorageMetadata], reader.read_metadata().state_dict_metadata)
    selected = {key: metadata for key, metadata in stored.items() if only is None or key.partition("/")[0] in only}
    flat = {key: _blank(metadata, _named(key, like)) for key, metadata in selected.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that one process is enough is known
            load(flat, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=like is None)
    except CheckpointException as error:
        raise CheckpointError(f"{folder}: cannot be read ({next(iter(error.failures.values()))[0]}).") from None
    files: dict[str, dict[str, Tensor]] = {}
    for key, tensor in flat.items():
        file, _, name = key.partition("/")
        files.setdefault(file, {})[name] = tensor
    return files


def _blank(stored: TensorStorageMetadata, like: Tensor | None) -> Tensor:
    if like is None or like.shape != stored.size or like.dtype != stored.properties.dtype:
        return torch.zeros(stored.size, dtype=stored.properties.dtype)
    return torch.zeros_like(like, requires_grad=False)


def _named(key: str, files: Files | None) -> Tensor | None:
    file, _, name = key.partition("/")
    return None if files is None else files.get(file, {}).get(name)


def _borrowed(block: nn.Module, scored: nn.Module) -> set[nn.Parameter]:
    """Parameters that are also used under a name outside the block: the whole owns those."""
    inside = set(block.modules())
    outside = {parameter for module in scored.modules() if module not in inside for parameter in _own(module)}
    return {parameter for parameter in block.parameters() if parameter in outside}


def _own(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))


def _refuse_numbers(scored: nn.Module) -> None:
    for name, parameter in scored.named_parameters():
        if parameter.dim() == 0:
            raise SpecError(f"train.parallel=fsdp: {name} is a single number, which cannot be divided. Use ddp.")
