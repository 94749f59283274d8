"""One of two processes that share every tensor, and what its optimisers do to them."""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from tests.optim.moving import noise, parameters
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from anyformer.optim import SGD, Adafactor, AdamW, Ema, LearnedTensor, Lion, OptimizerSpec, clip

SPECS: tuple[OptimizerSpec, ...] = (AdamW(lr=0.01), SGD(weight_decay=0.1), Lion(lr=0.01), Adafactor(factored_from=8))
STEPS, LIMIT = 4, 3.0


def run(
    spec: OptimizerSpec, moved: list[LearnedTensor], steps: range, state: dict[str, Tensor] | None
) -> dict[str, Tensor]:
    """The state of the optimiser, the averages and the norms after some clipped steps."""
    optimizer, ema, norms = spec.build(moved), Ema({one.name: one.tensor for one in moved}, 0.9), []
    if state is not None:
        optimizer.load_state_dict({name: value for name, value in state.items() if "/" in name})
        ema.load_state_dict({name.removeprefix("ema "): value for name, value in state.items() if "/" not in name})
    for step in steps:
        for seed, one in enumerate(moved):
            one.tensor.grad = like(one.tensor, noise(tuple(one.tensor.shape), 100 * (step + 1) + seed))
        norms.append(clip([one.tensor for one in moved], LIMIT))
        for refused in (0.0, 1.0):
            optimizer.step(1.0, unless=torch.tensor(refused))
        ema.update()
    averages = {f"ema {name}": value for name, value in ema.state_dict().items()}
    return {**optimizer.state_dict(), **averages, "norms": torch.stack(norms)}


def like(target: Tensor, value: Tensor) -> Tensor:
    return distribute_tensor(value, target.device_mesh, target.placements) if isinstance(target, DTensor) else value


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def work(rank: int, meeting: str, out: str) -> None:
    """Entry of each process: all specs, on shards; the first process writes down what comes out."""
    os.environ.pop("OMP_NUM_THREADS", None)
    torch.set_num_threads(1)
    store = dist.FileStore(meeting, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (2,))
    found: dict[str, Tensor] = {}
    for spec in SPECS:
        moved = [
            one._replace(tensor=nn.Parameter(distribute_tensor(one.tensor.detach(), mesh, [Shard(0)])))
            for one in parameters()
        ]
        half = run(spec, moved, range(STEPS // 2), None)
        stored = {name: whole(value) for name, value in half.items() if name != "norms"}
        end = run(spec, moved, range(STEPS // 2, STEPS), stored)
        end |= {one.name: one.tensor for one in moved}
        found |= {f"{spec.kind}:{name}": whole(value) for name, value in end.items()}
    if rank == 0:
        torch.save(found, Path(out))
    dist.destroy_process_group()
