"""The cells of an experiment, such as the seeds of each model, computed in processes at the same time and stored."""

import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeAlias

import torch

from anyformer.child_process import end_with

Cell: TypeAlias = tuple[str | int | float, ...]
"""The arguments of one cell."""


def in_parallel(compute: Callable[..., Any], cells: Sequence[Cell], folder: Path) -> list[Any]:
    """`compute(folder, *cell)` for each cell, in one process for each core with one thread each.

    `compute` is a function of a module, and its results can be written as JSON: each is stored in the folder as soon as
    it is known, so that an interrupted call continues with the cells that are missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{compute.__name__}.jsonl"
    results = _stored(file)
    missing = [cell for cell in cells if json.dumps(cell) not in results]
    if missing:
        file.write_text("".join(map(_line, results, results.values())), encoding="utf-8")  # without an incomplete line
        workers = min(os.cpu_count() or 1, len(missing))
        spawn = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
        with ProcessPoolExecutor(workers, spawn, _start, (os.getpid(),)) as pool:
            futures = {pool.submit(compute, folder, *cell): json.dumps(cell) for cell in missing}
            for future in as_completed(futures):
                name = futures[future]
                results[name] = json.loads(json.dumps(future.result()))
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(_line(name, results[name]))
    return [results[json.dumps(cell)] for cell in cells]


def _start(parent: int) -> None:
    torch.set_num_threads(1)
    end_with(parent)


def _line(cell: str, result: Any) -> str:
    return json.dumps({"cell": json.loads(cell), "result": result}) + "\n"


def _stored(file: Path) -> dict[str, Any]:
    """The results of a file by their cells, written as JSON; an incomplete last line is left out."""
    results = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            break
        results[json.dumps(row["cell"])] = row["result"]
    return results
