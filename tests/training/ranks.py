"""Several processes on one machine, forked from this warm one, as torchrun would start them."""

import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch._inductor.config as inductor
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.multiprocessing as mp
from tests.training.small import LAYER

from anyformer.run import Run

HALF, STEPS = 2, 4
SHARED = f'{LAYER}.0.part.position={{kind="t5_bias"}}'
"""A table that all layers use and none owns."""
CALM = (
    f"{LAYER}.0.dropout=0.0", SHARED, "data.packing=bucket", f"train.steps={STEPS}", "train.micro_batch=64",
    "train.recompute=blocks", f"checkpoint.every={HALF}", f"evaluate.every={HALF}", "evaluate.batches=1",
    "train.ema=0.9",
)  # fmt: skip
"""Unequal token counts, accumulation, layers computed twice; no dropout, which each process draws for itself."""


def together(work: Callable[[int], None], size: int = 2) -> None:
    """Does the same in several processes, each of which is told its number; raises what any of them raises."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_enter, (size, f"{folder}/meeting", work), nprocs=size, start_method="fork")


def _enter(rank: int, size: int, meeting: str, work: Callable[[int], None]) -> None:
    torch.set_num_threads(1)
    inductor.compile_threads = 1  # those of a compiler that this process used before were not forked along
    store = dist.FileStore(meeting, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    work(rank)
    dist.destroy_process_group()


def cut_off(run: Path, name: str, step: int = HALF) -> Path:
    """A copy of a run, as if it had ended right after a checkpoint."""
    copy = run.with_name(name)
    shutil.copytree(run, copy)
    for path in Run.open(copy).checkpoints:
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)
    (copy / "LATEST").write_text(f"step-{step:06d}\n")
    return copy
