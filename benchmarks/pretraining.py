"""Pre-training, three ways: `python -m benchmarks.pretraining --data FOLDER --work FOLDER --out FILE.jsonl`

A decoder learns the next token, an encoder masked words and an encoder-decoder span corruption, with as many FLOPs and
about as many parameters. Each is fine-tuned on two labelled sets and, if it can write, on synopses of packages, beside
the same model with random weights. Learning rates are chosen by as many trials for each, on validation, with a seed
that is not judged. `benchmarks.pretraining_runs` has all settings, `benchmarks.pretraining_page` writes the page.

--data holds descriptions, speeches and sentiment (.jsonl.gz). The runs are computed in `--workers` processes; each line
of FILE is a finished run, which is not computed again; a run that diverged is stored as failed. The weights of the
pre-trainings are kept in --work; if they are missing they are trained again as long as a fine-tuning needs them.
`--tiny` is a trial of some minutes on a CPU, with a --work and a FILE of its own: both are refused if they were made
with other settings.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import product
from pathlib import Path
from typing import Any

import torch

from anyformer.disk import RECIPE
from anyformer.errors import SpecError
from benchmarks.finetuning import read
from benchmarks.pretraining_data import write, write_all
from benchmarks.pretraining_runs import (
    ARMS,
    FINETUNE,
    FULL,
    PLAN,
    PRETRAIN,
    PRETRAINED,
    PRETRAINING_RATES,
    RATES,
    SEEDS,
    SHARED,
    TASKS,
    TINY,
    TRIAL_SEED,
    WAYS,
    Cell,
    Line,
    Scale,
    compute,
    make_plan,
    refuse_other_plan,
    weights,
)

Results = dict[tuple[Any, ...], Line]
"""The line of each run by the key of its cell."""


def results_of(lines: Iterable[Mapping[str, Any]]) -> Results:
    """The runs of a file of results; a later line replaces an earlier one of the same run."""
    cells = [(Cell(**{name: line[name] for name in Cell._fields}), line) for line in lines if line["stage"] != PLAN]
    return {cell.key: dict(line) for cell, line in cells}


def trials(cell: Cell) -> list[Cell]:
    """The runs that choose the learning rate of a run."""
    rates = PRETRAINING_RATES if cell.stage == PRETRAIN else RATES
    return [cell._replace(seed=TRIAL_SEED, rate=rate, trial=True) for rate in rates]


def best_rate(cell: Cell, results: Results) -> float | None:
    """The rate of the trial with the lowest validation loss; None if a trial is missing. A trial that diverged is the
    worst; if all did, the lowest rate."""
    lines = [results.get(trial.key) for trial in trials(cell)]
    losses = [(math.inf if line["valid_loss"] is None else line["valid_loss"], line["rate"]) for line in lines if line]
    return min(losses)[1] if len(losses) == len(lines) else None


def pretrained(folder: Path, way: str, seed: int, results: Results) -> bool:
    """Whether the weights of a pre-training are there, and its line is stored."""
    return _judged(PRETRAIN, way, "", "", seed).key in results and (weights(folder, way, seed) / RECIPE).is_file()


def diverged(way: str, seed: int, results: Results) -> bool:
    """Whether a pre-training diverged: nothing can start with its weights."""
    return "failed" in results.get(_judged(PRETRAIN, way, "", "", seed).key, {})


def _judged(stage: str, way: str, task: str, arm: str, seed: int) -> Cell:
    return Cell(stage, way, task, arm, seed, 0.0, False)


def fine_tunings() -> Iterator[tuple[str, str, str]]:
    """Task, way and arm of all fine-tunings."""
    return ((task, way, arm) for task in TASKS for way, arm in product(TASKS[task].ways(), ARMS))


def missing(folder: Path, results: Results) -> Iterator[Cell]:
    """The runs that have no result yet and can begin, those that others wait for first."""
    judged = [_judged(PRETRAIN, way, "", "", seed) for seed, way in product(SEEDS, WAYS)]
    yield from _trials_then(judged, results, [cell for cell in judged if not _done(folder, cell, results)])
    for task, way, arm in fine_tunings():
        runs = [_judged(FINETUNE, way, task, arm, seed) for seed in SEEDS]
        if arm == PRETRAINED:
            usable = [cell for cell in runs if not diverged(way, cell.seed, results)]
            runs = [cell for cell in usable if pretrained(folder, way, cell.seed, results)]
            if runs[:1] != usable[:1]:  # the trials start with the first weights
                continue
        yield from _trials_then(runs, results, [cell for cell in runs if cell.key not in results])
    if (shared := _judged(SHARED, "", "", "", 0)).key not in results:
        yield shared


def _trials_then(judged: list[Cell], results: Results, without_result: list[Cell]) -> Iterator[Cell]:
    """The trials that are missing, then the runs whose rate is known."""
    if not without_result:
        return
    every = dict.fromkeys(trial for cell in judged for trial in trials(cell))
    yield from (trial for trial in every if trial.key not in results)
    for cell in without_result:
        if (rate := best_rate(cell, results)) is not None:
            yield cell._replace(rate=rate)


def _done(folder: Path, cell: Cell, results: Results) -> bool:
    """Whether a pre-training is finished. Without its weights it is not, if a fine-tuning still needs them; after it
    diverged, none can."""
    needs = [
        _judged(FINETUNE, cell.way, task, arm, cell.seed).key
        for task, way, arm in fine_tunings()
        if (way, arm) == (cell.way, PRETRAINED)
    ]
    used = diverged(cell.way, cell.seed, results) or all(key in results for key in needs)
    return cell.key in results if used else pretrained(folder, cell.way, cell.seed, results)


def run_all(folder: Path, out: Path, scale: Scale, workers: int, minutes: float) -> bool:
    """Computes all runs; returns whether none is missing. After `minutes` no run begins."""
    ends, failed = time.monotonic() + 60 * minutes, set[tuple[Any, ...]]()
    running: dict[Future[Line], Cell] = {}
    results = results_of(read(out))
    spawn = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
    with ProcessPoolExecutor(workers, spawn, torch.set_num_threads, (1,)) as pool:
        while True:
            begun = {cell.key for cell in running.values()} | failed
            for cell in missing(folder, results):
                if cell.key not in begun and len(running) < workers and time.monotonic() < ends:
                    running[pool.submit(compute, folder, cell, scale)] = cell
                    begun.add(cell.key)
            if not running:
                return next(missing(folder, results), None) is None
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                if error := future.exception():
                    failed.add(cell.key)
                    print(f"{cell}: failed\n{''.join(traceback.format_exception(error))}", flush=True)
                    continue
                results[cell.key] = future.result()
                append(out, results[cell.key])


def start(out: Path, plan: Line) -> None:
    """Begins a file of results with the plan, or removes an incomplete last line. Results of another plan are
    refused."""
    stored = read(out)
    if stored:
        refuse_other_plan(out, stored[0], plan)
    write(out, stored or [plan])


def append(out: Path, line: Line) -> None:
    """Stores the line of a finished run."""
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    words = [line[name] for name in ("stage", "way", "task", "arm") if line.get(name)]
    scores = ", ".join(f"{name} {score['value']:.4f}" for name, score in line.get("scores", {}).items())
    loss = f"validation loss {line['valid_loss']:.4f}, {line['seconds']:.0f} s" if line.get("valid_loss") else ""
    loss = f"failed: {line['failed']}" if "failed" in line else loss
    trial = "trial, " if line.get("trial") else ""
    print(f"{', '.join(words)}, seed {line['seed']}, rate {line['rate']:g}: {trial}{loss} {scores}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data")
    parser.add_argument("--work", type=Path, required=True, help="folder of prepared data and pre-trained weights")
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--minutes", type=float, default=1e6, help="no run begins after this time")
    parser.add_argument("--tiny", action="store_true", help="a trial: small models, few updates")
    options = parser.parse_args()
    began, scale = time.monotonic(), TINY if options.tiny else FULL
    options.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_all(options.data, options.work, scale.every)
        start(options.out, make_plan(options.work, scale))
    except SpecError as error:
        sys.exit(str(error))
    left = options.minutes - (time.monotonic() - began) / 60
    complete = run_all(options.work, options.out, scale, options.workers, left)
    state = "complete" if complete else "not complete: the same command continues"
    print(f"{len(read(options.out))} lines, {time.monotonic() - began:.0f} s, {state}")
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
