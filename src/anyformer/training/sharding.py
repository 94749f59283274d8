"""FSDP: every rank holds a shard of each parameter; the parameters of a block are gathered while the block runs.

Each block of a stack is one FSDP unit; everything else (embeddings, heads, parameters shared by blocks) belongs to the
root unit. Shards are stored as safetensors files by torch's distributed checkpoints, and any number of ranks can load
them. torch takes seconds to import all this, so only `anyformer.training` refers to this file, which loads it on first
use.
"""

import warnings
from collections.abc import Collection
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
from anyformer.models.stack import reconstructs
from anyformer.training.distributed import Files, blocks


def divide(loss_module: nn.Module, device: torch.device, size: int) -> None:
    """Shards all parameters over `size` ranks, in place."""
    for name, parameter in loss_module.named_parameters():
        if parameter.dim() == 0:
            raise SpecError(f"train.parallel=fsdp: {name} is a scalar, which cannot be sharded. Use ddp.")
    if reconstructs(loss_module):
        raise SpecError(
            "train.parallel=fsdp: gathers weights layer by layer, a reversible stack runs branches. Use ddp."
        )
    mesh = init_device_mesh(device.type, (size,))
    for block in blocks(loss_module):
        fully_shard(block, mesh=mesh, ignored_params=_borrowed(block, loss_module))
    fully_shard(loss_module, mesh=mesh)
    for name, parameter in loss_module.named_parameters():
        if not isinstance(parameter, DTensor):  # its gradients would not be reduced over the ranks
            raise SpecError(
                f"train.parallel=fsdp: {name} is shared by two blocks only, so no FSDP unit owns it. Use ddp."
            )


def write_shards(folder: Path, files: Files) -> None:
    """Writes a sharded checkpoint; every rank writes its own shards."""
    flat = {f"{file}/{name}": tensor.detach() for file, tensors in files.items() for name, tensor in tensors.items()}
    try:
        save(flat, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None  # the cause, not its wrapper


def read_shards(folder: Path, like: Files | None, only: Collection[str] | None) -> dict[str, dict[str, Tensor]]:
    """Tensors sharded like those of the same name in `like`, or unsharded if there are none. With `like`, all ranks
    must call this."""
    metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    flat: dict[str, Tensor] = {}
    for key, stored in cast(dict[str, TensorStorageMetadata], metadata).items():
        file, _, name = key.partition("/")
        if only is None or file in only:
            live, dtype = (like or {}).get(file, {}).get(name), stored.properties.dtype
            if live is not None and (live.shape, live.dtype) == (stored.size, dtype):
                flat[key] = torch.zeros_like(live, requires_grad=False)
            else:
                flat[key] = torch.zeros(stored.size, dtype=dtype)
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


def _borrowed(block: nn.Module, loss_module: nn.Module) -> set[nn.Parameter]:
    """Parameters of a block that modules outside of it use too: they belong to the root unit."""
    others = set(loss_module.modules()) - set(block.modules())
    return set(block.parameters()) & {parameter for other in others for parameter in other.parameters(recurse=False)}
