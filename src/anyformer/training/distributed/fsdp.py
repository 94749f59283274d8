"""FSDP2: every rank holds a shard of each parameter; the parameters of a block are gathered while the block runs.

Each block of a stack is one FSDP unit; everything else (embeddings, heads, parameters shared by blocks) belongs to the
root unit. Shards are stored by torch's distributed checkpoints as safetensors files, and any number of ranks can load
them.
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
"""File name without extension -> tensor name -> tensor."""


def blocks(scored: nn.Module) -> list[BlockModule]:
    """All blocks of all stacks; a block that runs several times is listed once."""
    stacks = (module for module in scored.modules() if isinstance(module, StackModule))
    return list(dict.fromkeys(block for stack in stacks for block in stack.calls()))


def divide(scored: nn.Module, device: torch.device, size: int) -> None:
    """Shards all parameters over `size` ranks, in place."""
    _refuse_numbers(scored)
    mesh, owned = init_device_mesh(device.type, (size,)), blocks(scored)
    for block in owned:
        fully_shard(block, mesh=mesh, ignored_params=_borrowed(block, scored))
    fully_shard(scored, mesh=mesh)
    for name, parameter in scored.named_parameters():
        if not isinstance(parameter, DTensor):  # its gradients would not be reduced over the ranks
            raise SpecError(
                f"train.parallel=fsdp: {name} is shared by two blocks only, so no FSDP unit owns it. Use ddp."
            )


def is_divided(files: Files) -> bool:
    return any(isinstance(tensor, DTensor) for tensors in files.values() for tensor in tensors.values())


def share(tensor: Tensor) -> Tensor:
    """The shard of a tensor on this rank; a tensor that is not sharded is returned unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def together(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Unsharded tensors in host memory, gathered one by one. All ranks must call this; only those with `keep` store
    the result."""
    gathered = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if keep:
            gathered[name] = full.detach().cpu()
    return gathered


def write(folder: Path, files: Files) -> None:
    """Writes a sharded checkpoint; every rank writes its own shards."""
    flat = {f"{file}/{name}": tensor.detach() for file, tensors in files.items() for name, tensor in tensors.items()}
    try:
        save(flat, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None  # the cause, not its wrapper


def read(folder: Path, like: Files | None, only: Collection[str] | None) -> dict[str, dict[str, Tensor]]:
    """Tensors sharded like those of the same name in `like`, or unsharded if there are none. With `like`, all ranks
    must call this."""
    reader = HuggingFaceStorageReader(str(folder))
    stored = cast(dict[str, TensorStorageMetadata], reader.read_metadata().state_dict_metadata)
    selected = {key: metadata for key, metadata in stored.items() if only is None or key.partition("/")[0] in only}
    flat = {key: _blank(metadata, _named(key, like)) for key, metadata in selected.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns that no process group is used
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
    """Parameters of a block that modules outside of it use too: they belong to the root unit."""
    inside = set(block.modules())
    outside = {
        parameter
        for module in scored.modules()
        if module not in inside
        for parameter in module.parameters(recurse=False)
    }
    return {parameter for parameter in block.parameters() if parameter in outside}


def _refuse_numbers(scored: nn.Module) -> None:
    for name, parameter in scored.named_parameters():
        if parameter.dim() == 0:
            raise SpecError(f"train.parallel=fsdp: {name} is a scalar, which cannot be sharded. Use ddp.")
