"""The process group of a run: a single process, or one of several ranks started by torchrun (DDP or FSDP).

Every rank prepares the whole batch and processes its share of the rows; sums are reduced over all ranks. Only rank 0
writes files and prints messages. The other ranks wait for it, or receive its results by broadcast.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from anyformer import training
from anyformer.data.batching.batch import Batch
from anyformer.errors import AnyformerError, Interrupted, SpecError
from anyformer.models.stack import BlockModule, StackModule
from anyformer.objectives.objective import Objective
from anyformer.ops.devices import is_fsdp_unit, is_sharded

Files = Mapping[str, Mapping[str, Tensor]]
"""File name without extension -> tensor name -> tensor."""
WAIT = timedelta(hours=1)
"""Timeout of collectives. It is long because other ranks wait while rank 0 prepares the data."""
LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""Texts in errors of a collective after the rank at the other end has ended."""
T = TypeVar("T")


class OtherRankFailed(AnyformerError):
    """Another rank failed and prints the reason; this rank stops with the same exit code."""

    def __init__(self, exit_code: int = 1, rank: int | None = None):
        super().__init__(f"{'Another rank' if rank is None else f'Rank {rank}'} failed; see its message above.")
        self.exit_code = exit_code


@dataclass(frozen=True)
class World:
    """The device and the rank of this process, and the number of ranks."""

    device: torch.device = torch.device("cpu")
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """True for rank 0, which writes files and prints messages."""
        return self.rank == 0

    def on(self, name: str) -> "World":
        """This world with the device of this rank, of the kind set by `train.device`."""
        there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
        if name != "auto" and not there[name]:
            raise SpecError(f"train.device={name}: there is none on this machine. Use train.device=cpu.")
        device = torch.device(next(kind for kind in there if there[kind]) if name == "auto" else name)
        if self.size > 1 and device.type == "cuda":
            place, gpus = dist.get_node_local_rank(fallback_rank=self.rank), torch.cuda.device_count()
            if place >= gpus:
                raise SpecError(f"more processes than GPUs: there are {gpus}. Use torchrun --nproc-per-node {gpus}.")
            device = torch.device("cuda", place)
            torch.cuda.set_device(device)
        return replace(self, device=device)

    def place(self, batch: Batch) -> Batch:
        """The batch on this device."""
        return batch if batch.tokens.device == self.device else batch.to(self.device)

    def totals(self, sums: Mapping[str, Tensor], names: Sequence[str]) -> Float[Tensor, "2 n"]:
        """Sums over all ranks, and the number of ranks that have each; stays on the device."""
        zero, one = (torch.full((), value, device=self.device) for value in (0.0, 1.0))
        if not names:
            return zero.expand(2, 0)
        values = torch.stack([sums.get(name, zero) for name in names])
        both = torch.stack([values, torch.stack([one if name in sums else zero for name in names])])
        if self.size > 1:
            both = both.double()
            dist.all_reduce(both)
        return both

    def maximum(self, value: float) -> float:
        """The largest value over all ranks."""
        if self.size == 1:
            return value
        maximum = torch.tensor(value, dtype=torch.float64)  # on the host: no synchronisation with the device
        dist.all_reduce(maximum, dist.ReduceOp.MAX)
        return maximum.item()

    def broadcast(self, compute: Callable[[], T]) -> T:
        """The result of `compute` on rank 0, sent to all ranks; if rank 0 fails, all ranks fail."""
        with self.in_turn():
            objects = [compute() if self.leads else None]
        if self.size > 1:
            dist.broadcast_object_list(objects)
        return objects[0]  # type: ignore[return-value]

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Rank 0 runs the block first, then all others; if rank 0 fails, the other ranks do not start."""
        if not self.leads:
            self._outcome(None)
        try:
            yield
        except BaseException as error:
            if self.leads:
                with suppress(RuntimeError):  # the other ranks may have ended already
                    self._outcome(getattr(error, "exit_code", 1))
            raise
        if self.leads:
            self._outcome(0)

    def _outcome(self, exit_code: int | None) -> None:
        """Sends the exit code of rank 0; on other ranks (None), receives it."""
        if self.size > 1:
            code: list[Any] = [exit_code]
            dist.broadcast_object_list(code)
            if exit_code is None and code[0]:
                raise OtherRankFailed(code[0], rank=0)

    def without_sync(self, entry: nn.Module) -> AbstractContextManager[None]:
        """Inside the context, DDP accumulates gradients locally. FSDP reduces them each time: unsharded gradients
        may not fit in memory."""
        return entry.no_sync() if isinstance(entry, DistributedDataParallel) else nullcontext()


ALONE = World()


@contextmanager
def joined() -> Iterator[World]:
    """Joins the process group of torchrun, or yields a single process. An existing group is used and not destroyed."""
    if not dist.is_available() or not (dist.is_initialized() or dist.is_torchelastic_launched()):
        yield ALONE
        return
    created = not dist.is_initialized()
    if created:  # gloo for CPU tensors, so that host values need no synchronisation with a GPU
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=WAIT)
    try:
        yield World(rank=dist.get_rank(), size=dist.get_world_size())
    except RuntimeError as error:
        if any(word in str(error) for word in LOST_CONNECTION):
            raise OtherRankFailed from None
        raise
    except (Interrupted, OtherRankFailed):
        # All ranks stop together here. After other errors, destroying the group could wait for ranks that hang.
        if created:
            dist.destroy_process_group()
        raise
    if created:
        dist.destroy_process_group()


def uses_fsdp(world: World, how: str) -> bool:
    """True if the model is sharded over the ranks (FSDP)."""
    return world.size > 1 and how == "fsdp"


def refuse_cut(objective: Objective, world: World, sharded: bool) -> None:
    """Raises SpecError if the objective cannot be trained on several ranks, or not with sharding."""
    if world.size > 1 and (why := objective.split_refusal):
        raise SpecError(f"{why}: its batches cannot be shared among {world.size} processes. Use one.")
    if sharded and objective.heads_vary:
        raise SpecError('train.parallel=fsdp: with rows = "task" each process would use other heads. Use ddp.')


def wrapped(loss_module: nn.Module, world: World, how: str) -> nn.Module:
    """The module to call with a batch; its gradients are averaged over all ranks (DDP or FSDP)."""
    if world.size == 1:
        return loss_module
    if uses_fsdp(world, how):
        training.divide(loss_module, world.device, world.size)  # imports FSDP, which takes seconds, only now
        return loss_module
    # Which heads a rank uses depends on its rows, so find_unused_parameters is needed. DDP warns if it finds none;
    # this parameter, which is never used, avoids the warning.
    loss_module.register_parameter("unused", nn.Parameter(torch.zeros(1, device=world.device)))
    return DistributedDataParallel(loss_module, find_unused_parameters=True)


@contextmanager
def forward_only(entry: nn.Module) -> Iterator[None]:
    """For forward passes without a backward: FSDP leaves the root's parameters gathered, so later changes of the shards
    would not be seen. Reshards them afterwards."""
    try:
        yield
    finally:
        if is_fsdp_unit(entry):
            entry.reshard()


def blocks(loss_module: nn.Module) -> list[BlockModule]:
    """All blocks of all stacks; a block that runs several times is listed once."""
    stacks = (module for module in loss_module.modules() if isinstance(module, StackModule))
    return list(dict.fromkeys(block for stack in stacks for block in stack.calls()))


def has_shards(files: Files) -> bool:
    return any(is_sharded(tensor) for tensors in files.values() for tensor in tensors.values())


def local_shard(tensor: Tensor) -> Tensor:
    """The shard of a tensor on this rank; a tensor that is not sharded is returned unchanged."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def gathered(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Unsharded tensors in host memory, gathered one by one. All ranks must call this; only those with `keep` store
    the result."""
    gathered = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if is_sharded(tensor) else tensor
        if keep:
            gathered[name] = full.detach().cpu()
    return gathered
