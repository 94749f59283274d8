"""The table of defaults: `python -m benchmarks.defaults --data FOLDER [--out FILE.jsonl]`

`anyformer train PATH seed=N` with nothing else, then `anyformer evaluate RUN --split test`, for every data set and
seed: one line of JSON with the scores, the paired differences from the simple methods on the same test texts, the
seconds and the announced time. Results that FILE (docs/results/defaults.jsonl) already has are not repeated; `--table`
prints them. FOLDER holds sentiment, spam, descriptions and speeches as .jsonl.gz, and en-de.tsv.gz.
"""

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any

import torch

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "defaults.jsonl"


@dataclass(frozen=True)
class DataSet:
    """What a user would name behind `anyformer train`."""

    name: str
    words: Callable[[Path, Path], list[str]]
    """(folder of the data, folder for files that are made from them) -> the words behind `train`."""
    split: str = "test"
    """The split to evaluate; a single text has no test split unless one is asked for."""


def _file(name: str) -> Callable[[Path, Path], list[str]]:
    return lambda data, made: [str(data / name)]


def _records(data: Path, name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(data / name, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _written(path: Path, records: Iterable[dict[str, Any]]) -> list[str]:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return [str(path)]


def _sections(data: Path, made: Path) -> list[str]:
    """Synopsis and description of a Debian package, labelled by its section."""
    packages = _records(data, "descriptions.jsonl.gz")
    return _written(
        made / "sections.jsonl",
        (
            {"split": one["split"], "text": f"{one['synopsis']}\n{one['description']}", "label": one["section"]}
            for one in packages
        ),
    )


def _synopses(data: Path, made: Path) -> list[str]:
    """Few short texts in many classes: 4,000 synopses of packages in the 20 largest sections."""
    packages = list(_records(data, "descriptions.jsonl.gz"))
    sizes = Counter(one["section"] for one in packages if one["split"] == "train")
    largest = {section for section, _ in sizes.most_common(20)}
    chosen = [one for one in packages if one["section"] in largest]
    training = [one for one in chosen if one["split"] == "train"]
    few = training[:: len(training) // 4000][:4000] + [one for one in chosen if one["split"] != "train"]
    return _written(
        made / "synopses.jsonl",
        ({"split": one["split"], "text": one["synopsis"], "label": one["section"]} for one in few),
    )


def _ratings(data: Path, made: Path) -> list[str]:
    """Short texts with their rating from -4 to 4."""
    rated = _records(data, "sentiment.jsonl.gz")
    return _written(
        made / "ratings.jsonl", ({"split": one["split"], "text": one["text"], "label": one["score"]} for one in rated)
    )


def _beginning(size: int) -> Callable[[Path, Path], list[str]]:
    """The first characters of all speeches, one after the other."""

    def write(data: Path, made: Path) -> list[str]:
        text = "\n\n".join(record["text"] for record in _records(data, "speeches.jsonl.gz"))
        path = made / f"text-{size}.txt"
        path.write_text(text[:size], encoding="utf-8")
        return [str(path)]

    return write


DATA_SETS = {
    one.name: one
    for one in (
        DataSet("sentiment", _file("sentiment.jsonl.gz")),
        DataSet("spam", _file("spam.jsonl.gz")),
        DataSet("sections", _sections),
        DataSet("synopses", _synopses),
        DataSet("unicode_names", lambda data, made: ["unicode_names", "data.test=0.05"]),
        DataSet("ratings", _ratings),
        DataSet("text-90kb", _beginning(90_000), "valid"),
        DataSet("text-1mb", _beginning(1_000_000), "valid"),
        DataSet("speeches", _file("speeches.jsonl.gz")),
        DataSet("en-de", _file("en-de.tsv.gz")),
    )
}


def measure(one: DataSet, seed: int, words: list[str], device: str, cache: Path | None) -> dict[str, Any]:
    """Train with one seed from a cold process, and evaluate its best checkpoint."""
    command = [sys.executable, "-m", "anyformer"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache or folder)} | (
            {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        )
        run = str(Path(folder) / "run")
        began = time.perf_counter()
        output = _run([*command, "train", *words, f"seed={seed}", "--out", run], environment)
        seconds = time.perf_counter() - began
        _run([*command, "evaluate", run, "--split", one.split], environment)
        result = json.loads((Path(run) / "evaluations" / f"{one.split}.json").read_text(encoding="utf-8"))
        lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    announced = re.search(r"predicted about ([\d:]+)", output)
    losses = [line["valid_loss"] for line in lines if "valid_loss" in line]
    return {
        "data": one.name, "seed": seed, "device": device, "split": one.split, "seconds": round(seconds, 1),
        "announced": announced and announced[1], "checkpoint": result["checkpoint"], "best_valid_loss": min(losses),
        "scores": {name: _interval(score) for name, score in result["scores"].items()},
        "yardsticks": [
            {name: each[name] for name in ("yardstick", "score", "difference")} | _interval(each)
            for each in result["yardsticks"]
        ],
    }  # fmt: skip


def _interval(score: dict[str, Any]) -> dict[str, Any]:
    return {name: score[name] for name in ("value", "low", "high")}


def _run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout + done.stderr


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each data set, device, score and simple method: means of the seeds, lowest and highest."""
    yield "| data | on | seeds | score | mean | simple method | difference | lowest and highest | seconds | announced |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    place = {name: number for number, name in enumerate(DATA_SETS)}
    ordered = sorted(rows, key=lambda row: (place[row["data"]], row["device"]))
    for (name, device), group in groupby(ordered, key=lambda row: (row["data"], row["device"])):
        runs = list(group)
        head = f"| {name} | {device} | {len(runs)}"
        seconds = [run["seconds"] for run in runs]
        tail = f"{min(seconds):.0f} to {max(seconds):.0f} | {runs[0]['announced']} |"
        for score in runs[0]["scores"]:
            ours = mean(run["scores"][score]["value"] for run in runs)
            compared = [each for each in runs[0]["yardsticks"] if each["score"] == score]
            if not compared:
                yield f"{head} | {score} | {ours:.4g} | | | | {tail}"
            for each in compared:
                values = [
                    other["difference"]["value"]
                    for run in runs
                    for other in run["yardsticks"]
                    if (other["yardstick"], other["score"]) == (each["yardstick"], score) and other["difference"]
                ]
                spread = f"{mean(values):+.4f} | {min(values):+.4f} to {max(values):+.4f}" if values else "|"
                yield f"{head} | {score} | {ours:.4g} | {each['yardstick']} | {spread} | {tail}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--items", nargs="+", choices=DATA_SETS, default=[*DATA_SETS], help="data sets; all if left out"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once; times are then those of a busy machine")
    parser.add_argument("--cache", type=Path, help="kept from run to run; empty for each if left out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print the table of what was measured")
    options = parser.parse_args()
    known = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    rows = [json.loads(line) for line in known]
    if options.table:
        print("\n".join(table(rows)))
        return
    if options.data is None:
        parser.error("--data FOLDER is missing")
    done = {(row["data"], row["seed"], row["device"]) for row in rows}
    wanted = [(name, seed) for name in options.items for seed in options.seeds]
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(options.jobs) as pool:
        words = {name: DATA_SETS[name].words(options.data, Path(made)) for name in options.items}

        def one(name: str, seed: int) -> None:
            row = measure(DATA_SETS[name], seed, words[name], options.device, options.cache) | {"at_once": options.jobs}
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{name}, seed {seed}: {row['seconds']} s", flush=True)

        waiting = [pool.submit(one, *each) for each in wanted if (*each, options.device) not in done]
        for each in waiting:
            each.result()


if __name__ == "__main__":
    main()
