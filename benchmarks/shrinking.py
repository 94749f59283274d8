"""Smaller models with several seeds: `python -m benchmarks.shrinking --data FOLDER --out FILE.jsonl`

An encoder that names the section of a package and a translator are trained with each seed, then pruned to half of their
heads and neurons (by Taylor importance and at random), distilled to a third of their parameters (with and without the
teacher) and quantised, all by `anyformer shrink`. Each result is stored at once; a second call goes on where the first
ended. `--table FILE.jsonl` prints means over seeds, and the differences that matter with their intervals. FOLDER holds
descriptions.jsonl.gz and en-de.tsv.gz; `--tiny` is a trial of some minutes on a CPU.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t

Row = dict[str, Any]
PRUNE = ("--prune", "heads=0.5", "--prune", "neurons=0.5", "--by", "taylor")


@dataclass(frozen=True)
class Task:
    """One model and its data."""

    file: str
    words: tuple[str, ...]
    """The recipe, as words of `anyformer train`."""
    student: tuple[str, ...]
    """What makes the student smaller than its teacher."""
    tiny: tuple[str, ...]
    """What makes a trial small."""
    score: str
    """The score that is compared, beside the loss."""


TASKS = {
    "encoder": Task(
        "descriptions.jsonl.gz",
        ("model.preset=small-encoder", "data.source.text=description", "data.source.label=section",
         "data.source.split=split", "data.tokenizer.size=4096", "data.context=128", "train.batch_tokens=16384"),
        ("model.dim=192", "model.stack.depth=2"),
        ("model.dim=32", "model.stack.depth=2", "train.batch_tokens=512"),
        "accuracy",
    ),
    "translator": Task(
        "en-de.tsv.gz",
        ("model.preset=small-encoder-decoder", "data.tokenizer.size=8192", "data.context=64",
         "train.batch_tokens=16384"),
        ("model.encoder.dim=128", "model.decoder.dim=128"),
        ("model.encoder.dim=64", "model.decoder.dim=64", "model.encoder.stack.depth=2", "model.decoder.stack.depth=2",
         "train.batch_tokens=512"),
        "bleu",
    ),
}  # fmt: skip
COMPARED = {
    "half, Taylor - random, before training": ("prune", "taylor, pruned", "random, pruned"),
    "half, Taylor - random, trained": ("prune", "taylor, trained", "random, trained"),
    "half, Taylor, trained - before": ("prune", "taylor, trained", "before"),
    "student - student alone": ("distil", "student", "student alone"),
    "int8 - before": ("quantise", "quantised", "before"),
}
"""Differences by name: the way, and the columns of its table."""


def commands(options: argparse.Namespace, name: str, seed: int, folder: Path) -> dict[str, list[str]]:
    """The command of each way, after that of the training; all of one task and seed."""
    task, run = TASKS[name], str(folder / f"{name}-{seed}")
    steps, again = ("2", "2") if options.tiny else (str(options.steps), str(options.steps // 5))
    small = task.tiny if options.tiny else ()
    student = (
        [word.replace("192", "16").replace("128", "32") for word in task.student] if options.tiny else task.student
    )
    limit = ["--limit", "5" if options.tiny else "500", "--json"]
    shrink = ["shrink", run]
    return {
        "train": ["train", str(options.data / task.file), *task.words, *small, f"train.steps={steps}",
                  f"seed={seed}", "--out", run, "--quiet"],
        "quantise": [*shrink, "--quantise", "int8", "--out", f"{run}-int8", *limit],
        "prune": [*shrink, *PRUNE, "--steps", again, "--seed", str(seed), "--out", f"{run}-half", *limit],
        "distil": [*shrink, "--distil", "same", *student, "--out", f"{run}-student", *limit],
    }  # fmt: skip


def run_all(options: argparse.Namespace) -> None:
    """Every task with every seed, some at once; the ways of one model one after the other."""
    stored = {(row["task"], row["seed"], row["way"]) for row in rows_of(options.out)}

    def chain(name: str, seed: int) -> None:
        for way, words in commands(options, name, seed, options.runs).items():
            out = Path(words[words.index("--out") + 1])
            if (name, seed, way) in stored or (way == "train" and out.exists()):
                continue
            for leftover in out.parent.glob(f"{out.name}*"):  # of a call that was stopped
                shutil.rmtree(leftover)
            environment = {**os.environ, "OMP_NUM_THREADS": "2"}
            command = [sys.executable, "-m", "anyformer", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            print(f"{name}, seed {seed}, {way}: {'done' if done.returncode == 0 else done.stderr[-600:]}", flush=True)
            if done.returncode:
                return
            if way != "train":
                store(options.out, {"task": name, "seed": seed, "way": way, "table": json.loads(done.stdout)["table"]})

    with ThreadPoolExecutor(options.together) as pool:
        list(pool.map(lambda pair: chain(*pair), product(options.tasks, options.seeds)))


def store(path: Path, row: Row) -> None:
    """Adds a row, without the folders of the machine that made it."""
    for facts in row["table"].values():
        facts.pop("run", None)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def rows_of(path: Path) -> list[Row]:
    """The stored rows."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Sizes and scores of every model, means over seeds; then the paired differences."""
    by_way = {(row["task"], row["way"], row["seed"]): row["table"] for row in rows}
    for name, task in TASKS.items():
        seeds = sorted({seed for task_name, way, seed in by_way if task_name == name and way == "distil"})
        if not seeds:
            continue
        yield f"| {name}, {len(seeds)} seeds | parameters | file, bytes | FLOPs per token | loss | {task.score} |"
        yield "|---|---|---|---|---|---|"
        for way, column in columns(by_way, name, seeds[0]):
            yield size_row(column, [by_way[name, way, seed][column] for seed in seeds], task.score)
        yield from ("", "| difference | loss | 95% | " + task.score + " | 95% |", "|---|---|---|---|---|")
        for label, (way, ours, theirs) in COMPARED.items():
            tables = [by_way[name, way, seed] for seed in seeds]
            cells = [paired(tables, ours, theirs, score) for score in ("loss", task.score)]
            yield f"| {label} | {' | '.join(cells)} |"
        yield ""


def columns(by_way: Mapping[tuple[str, str, int], Any], task: str, seed: int) -> list[tuple[str, str]]:
    """The ways and the columns of their tables; the model before is named once."""
    listed = [(way, column) for way in ("prune", "distil", "quantise") for column in by_way[task, way, seed]]
    return [(way, column) for way, column in listed if column not in ("before", "teacher") or way == "prune"]


def size_row(label: str, tables: Sequence[Mapping[str, Any]], score: str) -> str:
    sizes = [f"{fmean(table[key] for table in tables):,.0f}" for key in ("params", "file_bytes", "flops_per_token")]
    loss, value = (fmean(table["scores"][name]["value"] for table in tables) for name in ("loss", score))
    return f"| {label} | {' | '.join(sizes)} | {loss:.3f} | {value:.3f} |"


def paired(tables: Sequence[Mapping[str, Any]], ours: str, theirs: str, score: str) -> str:
    """The mean of the differences over seeds, and its interval by Student's t."""
    changes = [each[ours]["scores"][score]["value"] - each[theirs]["scores"][score]["value"] for each in tables]
    mean = fmean(changes)
    if len(changes) < 2:
        return f"{mean:+.3f} | "
    half = float(t.ppf(0.975, len(changes) - 1)) * stdev(changes) / math.sqrt(len(changes))
    return f"{mean:+.3f} | {mean - half:+.3f} to {mean + half:+.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1500, help="updates of a model; a pruned one gets a fifth more")
    parser.add_argument("--together", type=int, default=1, help="models at once")
    parser.add_argument("--runs", type=Path, default=Path("runs/shrinking"))
    parser.add_argument("--out", type=Path, help="file of the results")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--table", type=Path, help="print the tables of stored results")
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(rows_of(options.table))))
    elif options.data and options.out:
        run_all(options)
    else:
        parser.error("--data and --out, or --table")


if __name__ == "__main__":
    main()
