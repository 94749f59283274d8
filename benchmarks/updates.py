"""Milliseconds of an update for each way to execute it: `python -m benchmarks.updates RECIPE --ways captured,eager`

The first updates, which compile and capture, are timed apart. One line of JSON for each way.
"""

import argparse
import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import torch

from anyformer.training import Trainer
from anyformer.training.distributed import World
from anyformer.training.loop.loss_module import Execution
from benchmarks.trainers import trainer_of

FIRST, TIMED = 6, 150
"""Updates that compile and capture, and updates that are timed."""


def timed(trainer: Trainer) -> dict[str, Any]:
    steps = trainer.steps()
    began = time.perf_counter()
    _run(steps, FIRST)
    ready = time.perf_counter()
    _run(steps, TIMED)
    update_s = (time.perf_counter() - ready) / TIMED
    tokens_per_s = trainer.recipe.train.batch_tokens / update_s
    return {
        "way": trainer.execution, "first_s": ready - began, "update_ms": 1000 * update_s, "tokens_per_s": tokens_per_s
    }  # fmt: skip


def _run(steps: Iterator[Any], number: int) -> None:
    for _ in islice(steps, number):  # each reads its loss, so that the device has finished
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--ways", default="captured", help=f"some of {', '.join(get_args(Execution))}")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/anyformer/data").expanduser())
    parser.add_argument("more", nargs="*", help="key=value for the recipe")
    options = parser.parse_intermixed_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    base = trainer_of(options.recipe, options.more, options.cache, device)
    for way in options.ways.split(","):
        print(json.dumps(timed(Trainer(base.recipe, base.prepared, World(device), way))), flush=True)


if __name__ == "__main__":
    main()
