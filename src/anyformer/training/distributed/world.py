"""Where a run happens: one device, or one of several processes that share the work (torchrun).

Every process knows the whole batch and takes its rows of it; sums are added up over all. The first alone writes and
speaks: the others do what it has done before them, or hear what it found.
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
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from anyformer.data.batching.batch import Batch
from anyformer.errors import AnyformerError, Interrupted, SpecError
from anyformer.objectives.objective import Objective
from anyformer.training.distributed import fsdp as sharding

WAIT = timedelta(hours=1)
"""Longest wait for another process: data that are not prepared yet take a while."""
T = TypeVar("T")


class Elsewhere(AnyformerError):
    """Another process knows what is wrong, and says it."""

    def __init__(self, exit_code: int = 1):
        super().__init__("another process of this run has failed, and says why.")
        self.exit_code = exit_code


@dataclass(frozen=True)
class World:
    """This process among all of them."""

    device: torch.device = torch.device("cpu")
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """True for the one process that writes and speaks."""
        return self.rank == 0

    def on(self, wanted: str) -> "World":
        """With a device of its own, of the kind that `train.device` asks for."""
        device = resolve_device(wanted)
        if self.size > 1 and device.type == "cuda":
            place, there = dist.get_node_local_rank(fallback_rank=self.rank), torch.cuda.device_count()
            if place >= there:
                raise SpecError(f"more processes than GPUs: there are {there}. Use torchrun --nproc-per-node {there}.")
            device = torch.device("cuda", place)
            torch.cuda.set_device(device)
        return replace(self, device=device)

    def place(self, batch: Batch) -> Batch:
        """The batch on this device."""
        return batch if self.device.type == "cpu" else batch.to(self.device)

    def totals(self, sums: Mapping[str, Tensor], names: Sequence[str]) -> Float[Tensor, "2 n"]:
        """Sums over all processes, and how many have each; on the device, nobody waits."""
        zero, one = (torch.full((), value, device=self.device) for value in (0.0, 1.0))
        if not names:
            return zero.expand(2, 0)
        found = torch.stack([sums.get(name, zero) for name in names])
        both = torch.stack([found, torch.stack([one if name in sums else zero for name in names])])
        if self.size > 1:
            both = both.double()
            dist.all_reduce(both)
        return both

    def most(self, value: float) -> float:
        """The largest that any process has."""
        if self.size == 1:
            return value
        found = torch.tensor(value, dtype=torch.float64)  # on the host, where nobody waits for a device
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.item()

    def told(self, find: Callable[[], T]) -> T:
        """What the first process finds, for all of them; where it fails, all do."""
        with self.in_turn():
            found = [find() if self.leads else None]
        if self.size > 1:
            dist.broadcast_object_list(found)
        return found[0]  # type: ignore[return-value]

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first process goes through alone, then all others; where it fails, nobody else begins."""
        if not self.leads:
            self._outcome(None)
        try:
            yield
        except BaseException as error:
            if self.leads:
                with suppress(RuntimeError):  # those who are gone need not be told
                    self._outcome(getattr(error, "exit_code", 1))
            raise
        if self.leads:
            self._outcome(0)

    def _outcome(self, mine: int | None) -> None:
        """Tells the first process' exit code, or hears it."""
        if self.size > 1:
            code: list[Any] = [mine]
            dist.broadcast_object_list(code)
            if mine is None and code[0]:
                raise Elsewhere(code[0])

    def without_sync(self, entry: nn.Module) -> AbstractContextManager[None]:
        """Inside, copies only add gradients up here. Shares are sent on each time: whole gradients have no room."""
        return entry.no_sync() if isinstance(entry, DistributedDataParallel) else nullcontext()


ALONE = World()


@contextmanager
def joined() -> Iterator[World]:
    """All processes that torchrun started, or this one alone. A group that is there already is used, and stays."""
    if not dist.is_available() or not (dist.is_initialized() or dist.is_torchelastic_launched()):
        yield ALONE
        return
    own = not dist.is_initialized()
    if own:  # with both, what is on the host never waits for a GPU
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=WAIT)
    try:
        yield World(rank=dist.get_rank(), size=dist.get_world_size())
    except RuntimeError as error:
        if _is_about_others(error):
            raise Elsewhere from None
        raise
    except (Interrupted, Elsewhere):  # all stop together; after other failures, waiting for each other would be in vain
        if own:
            dist.destroy_process_group()
        raise
    if own:
        dist.destroy_process_group()


def resolve_device(wanted: str) -> torch.device:
    """What `train.device` means here."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if there[kind]))
    if not there[wanted]:
        raise SpecError(f"train.device={wanted}: there is none on this machine. Use train.device=cpu.")
    return torch.device(wanted)


def divides(world: World, how: str) -> bool:
    """True: every process holds a share of the model only."""
    return world.size > 1 and how == "fsdp"


def refuse_cut(objective: Objective, world: World, divided: bool) -> None:
    """Says what cannot be asked of several processes."""
    if world.size > 1 and (why := objective.split_refusal):
        raise SpecError(f"{why}: its batches cannot be shared among {world.size} processes. Use one.")
    if divided and objective.heads_vary:
        raise SpecError('train.parallel=fsdp: with rows = "task" each process would use other heads. Use ddp.')


def wrapped(scored: nn.Module, world: World, how: str) -> nn.Module:
    """What is called with a batch: gradients come out of it averaged over all processes."""
    if world.size == 1:
        return scored
    if divides(world, how):
        sharding.divide(scored, world.device, world.size)
        return scored
    # which heads a process uses depends on its rows; torch complains of being asked to look where it finds nothing
    scored.register_parameter("unused", nn.Parameter(torch.zeros(1, device=world.device)))
    return DistributedDataParallel(scored, find_unused_parameters=True)


@contextmanager
def looking(entry: nn.Module) -> Iterator[None]:
    """For passes without a backward: one leaves tables and heads gathered, blind to changes of their shares."""
    try:
        yield
    finally:
        if isinstance(entry, FSDPModule):
            entry.reshard()


def _is_about_others(error: RuntimeError) -> bool:
    """A connection that broke: whoever was at its other end is gone."""
    return any(word in str(error) for word in ("Connection closed by peer", "Connection reset by peer", "Broken pipe"))
