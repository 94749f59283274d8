"""A second look at span corruption: `python -m benchmarks.pretraining_check --data FOLDER --work FOLDER --out FILE`

In the study (`benchmarks.pretraining`) the encoder-decoder gained little from its pre-training. Here it is pre-trained
with four times as many updates and fine-tuned on the two tasks where the others gained; one seed, rates fixed
beforehand. Each line of FILE is a run; that of the pre-training also has its validation losses by update.
"""

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from anyformer.run import Run
from benchmarks.pretraining_data import write_all
from benchmarks.pretraining_runs import FINETUNE, FULL, PRETRAIN, PRETRAINED, Cell, Line, compute, make_plan, weights

WAY, SEED, RATE, TIMES = "span corruption", 0, 0.002, 4
FINE_TUNINGS = (("sections", 3e-4), ("sections", 1e-3), ("synopses", 1e-3), ("synopses", 3e-3))
LONGER = replace(FULL, steps=TIMES * FULL.steps)


def pretrained(folder: Path) -> Line:
    """The pre-training, with its validation losses."""
    line = compute(folder, Cell(PRETRAIN, WAY, "", "", SEED, RATE, False), LONGER)
    metrics = Run.open(weights(folder, WAY, SEED)).metrics()
    curve = [[one["step"], round(one["valid_loss"], 3)] for one in metrics if "valid_loss" in one]
    return {**line, "curve": curve}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data")
    parser.add_argument("--work", type=Path, required=True, help="a folder of its own for prepared data and weights")
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    options = parser.parse_args()
    write_all(options.data, options.work, LONGER.every)
    make_plan(options.work, LONGER)
    cells = [Cell(FINETUNE, WAY, task, PRETRAINED, SEED, rate, False) for task, rate in FINE_TUNINGS]
    lines = [pretrained(options.work)]
    with ProcessPoolExecutor(len(cells), multiprocessing.get_context("spawn")) as pool:
        lines += pool.map(partial(compute, options.work, scale=LONGER), cells)
    options.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
