"""What pre-trained weights gain on labelled texts: `python -m benchmarks.finetuning MODEL DATA... --out FILE.jsonl`

MODEL is a Hugging Face folder or a run. Each DATA has labels and a test split; keys that it needs stand behind it in
the same word: "unicode_names data.test=0.05". Three arms are trained on every DATA with every seed:

- fine-tuned: `anyformer train DATA init_from=MODEL`
- random weights: the same model, tokenizer, batches and number of updates, but weights that are drawn at random, and
  the rate `--rate`, since that of fine-tuning is too low for them
- default: `anyformer train DATA`, whose model and budget follow the rules of docs/defaults.md

Each run is a process of its own, `--workers` of them at once. Its scores on the test split are added to FILE as soon as
it ends, and a run that FILE has already is not trained again. Then the gains are printed; `--table` prints them alone.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from anyformer.data.preparation.pipeline import prepared_for
from anyformer.run import Run, train
from anyformer.statistics.intervals import Interval, difference
from anyformer.statistics.paired import t_interval
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.recipes.resolve import data_of, draft, settle

TUNED, RANDOM, DEFAULT = ARMS = ("fine-tuned", "random weights", "default")
METRICS = ("accuracy", "loss")
TINY = ("train.steps=2", "evaluate.every=2", "evaluate.batches=1", "train.batch_tokens=256", "data.context=24")
TINY_TEXTS = 40
"""Test texts of a trial."""
Line = dict[str, Any]


def one_run(options: argparse.Namespace) -> Line:
    """Trains the only arm and seed of the options on their only data, and scores the test split."""
    (data,), (arm,), (seed,) = options.data, options.arms, options.seeds
    target, *keys = shlex.split(data)
    keys += [f"seed={seed}", *(TINY if options.tiny else ()), *options.more]
    with tempfile.TemporaryDirectory() as folder:
        out, began = Path(folder) / "run", time.perf_counter()
        if arm == RANDOM:
            recipe = without_weights(target, keys, options.model, options.rate, options.cache)
            run = train(recipe, out=out, cache=options.cache)
        else:
            weights = [f"init_from={options.model}"] if arm == TUNED else []
            run = train(target, *keys, *weights, out=out, cache=options.cache)
        seconds = time.perf_counter() - began
        scores = run.evaluate(split="test", limit=TINY_TEXTS if options.tiny else None)
        return {**identity(options, data, arm, seed), **facts(run), "seconds": round(seconds, 1)} | {
            name: {
                "value": score.value,
                "texts": score.units,
                "resampled": [round(value, 5) for value in (() if score.resampled is None else score.resampled)],
            }
            for name, score in scores.items()
            if name in METRICS
        }


def without_weights(target: str, keys: Sequence[str], model: str, rate: float, cache: Path) -> Recipe:
    """The recipe of fine-tuning, for weights that are drawn at random and learn at this rate."""
    document = draft(target, [*keys, f"init_from={model}", f"optimizer.lr={rate}"])
    return replace(settle(document, prepared_for(data_of(document), cache), "random").recipe, init_from=None)


def facts(run: Run) -> Line:
    """The size of the model, the updates that were made, and the update whose weights are used."""
    params = sum(parameter.numel() for parameter in run.recipe.model.build(device="meta").parameters())
    return {"params": params, "steps": int(run.state["progress"]["step"]), "best_step": run.best_step}


def identity(options: argparse.Namespace, data: str, arm: str, seed: int) -> Line:
    """What a run is known by: a line with the same values is not trained again."""
    target, *keys = shlex.split(data)
    data, model = shlex.join([Path(target).name, *keys]), "" if arm == DEFAULT else Path(options.model).name
    extra = [*options.more, *([f"rate={options.rate:g}"] if arm == RANDOM else []), *(["tiny"] if options.tiny else [])]
    return {"data": data, "arm": arm, "seed": seed, "model": model, "more": extra}


def train_missing(options: argparse.Namespace) -> bool:
    """Trains every run that the file does not have, each in a process of its own; returns whether all have ended well.
    All arms of a seed come before the next seed, so that an unfinished file has pairs."""
    stored = [{key: line[key] for key in ("data", "arm", "seed", "model", "more")} for line in read(options.out)]
    runs = product(options.seeds, options.data, options.arms)
    missing = [run for run in runs if identity(options, run[1], run[2], run[0]) not in stored]
    threads, lock = max(1, (os.cpu_count() or 1) // options.workers), Lock()

    def go(run: tuple[int, str, str]) -> bool:
        seed, data, arm = run
        words = [options.model, data, "--one", "--arms", arm, "--seeds", str(seed), "--rate", str(options.rate)]
        words += ["--cache", str(options.cache), *(["--tiny"] if options.tiny else []), *options.more]
        command = [sys.executable, "-m", "benchmarks.finetuning", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        with lock:
            if done.returncode:
                print(f"{data}, {arm}, seed {seed}: failed\n{done.stderr[-2000:]}", file=sys.stderr, flush=True)
                return False
            line = json.loads(done.stdout.splitlines()[-1])
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            scores = ", ".join(f"{name} {line[name]['value']:.4f}" for name in METRICS)
            print(
                f"{data}, {arm}, seed {seed}: {scores}, {line['steps']} updates in {line['seconds']:.0f} s", flush=True
            )
            return True

    with ThreadPoolExecutor(options.workers) as pool:
        return all(list(pool.map(go, missing)))


def read(file: Path) -> list[Line]:
    """The lines of a file of results; a last line that was cut off is left out."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def table(lines: Sequence[Line]) -> Iterator[str]:
    """The gain of fine-tuning over each other arm, and the cost of every arm.

    A gain is the mean of the differences of runs with the same seed. Its first interval (Student's) covers the choice
    of the seed, the second one (the same resamples of the test texts for both arms) the choice of the test texts.
    """
    yield "| data | compared with | test score | fine-tuned | other | gain | 95% over seeds | 95% over test texts |"
    yield "|---|---|---|---|---|---|---|---|"
    names = dict.fromkeys(line["data"] for line in lines)
    for data, other, metric in product(names, (RANDOM, DEFAULT), METRICS):
        ours, theirs = (_by_seed(lines, data, arm, metric) for arm in (TUNED, other))
        if seeds := sorted(ours.keys() & theirs.keys()):
            one, two = ([scores[seed] for seed in seeds] for scores in (ours, theirs))
            seeds_apart = t_interval([a["value"] - b["value"] for a, b in zip(one, two, strict=True)])
            texts_apart = difference(_mean(one), _mean(two))
            values = f"{_mean(one).value:.3f} | {_mean(two).value:.3f} | {seeds_apart.value:+.3f}"
            yield f"| {data} | {other} | {metric} | {values} | {_ends(seeds_apart)} | {_ends(texts_apart)} |"
    yield ""
    yield "| data | arm | seeds | test texts | parameters | updates | best update | seconds |"
    yield "|---|---|---|---|---|---|---|---|"
    for data, arm in product(names, ARMS):
        if runs := [line for line in lines if (line["data"], line["arm"]) == (data, arm)]:
            spans = (_span([run[key] for run in runs]) for key in ("steps", "best_step", "seconds"))
            texts, params = runs[0]["accuracy"]["texts"], runs[0]["params"]
            yield f"| {data} | {arm} | {len(runs)} | {texts:,} | {params:,} | {' | '.join(spans)} |"


def _by_seed(lines: Sequence[Line], data: str, arm: str, metric: str) -> dict[int, Line]:
    return {line["seed"]: line[metric] for line in lines if (line["data"], line["arm"]) == (data, arm)}


def _mean(scores: Sequence[Line]) -> Interval:
    """The mean score of several runs, which share the resamples of the test texts."""
    resampled = [np.array(score["resampled"]) for score in scores]
    alike = len(resampled[0]) > 0 and len({(score["texts"], len(score["resampled"])) for score in scores}) == 1
    value = float(np.mean([score["value"] for score in scores]))
    return Interval(value, resampled=np.mean(resampled, axis=0) if alike else None)


def _ends(interval: Interval) -> str:
    return "none" if interval.low is None else f"{interval.low:+.3f} to {interval.high:+.3f}"


def _span(values: Sequence[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    return f"{known[0]:,.0f}" if known[0] == known[-1] else f"{known[0]:,.0f} to {known[-1]:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="Hugging Face folder or run to start from")
    parser.add_argument("data", nargs="*", help="labelled data with a test split; key=value: for every run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate of random weights")
    parser.add_argument("--workers", type=int, default=1, help="runs at once")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/anyformer/data").expanduser())
    parser.add_argument("--out", type=Path, default=Path("build/finetuning.jsonl"))
    parser.add_argument("--tiny", action="store_true", help="a trial: two updates, few test texts")
    parser.add_argument("--one", action="store_true", help="train the only run here, and print its line")
    parser.add_argument("--table", action="store_true", help="print the gains of the stored runs, and train nothing")
    options = parser.parse_intermixed_args()
    is_key = [("=" in word.split()[0]) for word in options.data]
    options.more = [word for word, key in zip(options.data, is_key, strict=True) if key]
    options.data = [word for word, key in zip(options.data, is_key, strict=True) if not key]
    if options.one:
        print(json.dumps(one_run(options)))
        return
    complete = True
    if not options.table:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        complete = train_missing(options)
    print("\n".join(table(read(options.out))))
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
