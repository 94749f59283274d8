"""What each choice of a speedrun recipe is worth: `python -m benchmarks.leave_one_out prose.jsonl.gz --out FILE.jsonl`

Each arm is recipes/speedrun-10m.toml but for one choice: a piece of the recipe is left out, or a piece that it lacks is
added. Every arm is trained with every seed, some runs at once, so that losses count and seconds do not.
`--table FILE.jsonl` prints the differences to the recipe.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy.stats import t

BRANCH = "model.stack.blocks.layer.branches"
ATTENTION = 'kind="attention",heads=5,head_dim=64,position={kind="rope"}'
RECIPE = "the recipe"
ARMS: dict[str, tuple[str, ...]] = {
    RECIPE: (),
    "AdamW (rate 4e-3) in place of Muon": ('optimizer={kind="adamw",lr=4e-3}',),
    "AdamW (rate 2e-3) in place of Muon": ('optimizer={kind="adamw",lr=2e-3}',),
    "AdamW (rate 1e-3) in place of Muon": ('optimizer={kind="adamw",lr=1e-3}',),
    "AdamW (rate 5e-4) in place of Muon": ('optimizer={kind="adamw",lr=5e-4}',),
    "without normalised queries and keys": (f"{BRANCH}.0.part={{{ATTENTION}}}",),
    "without soft-capped logits": ('model.head={kind="tied"}',),
    "without a norm behind the embeddings": ("model.entry_norm=null",),
    "momentum 0.95 in place of 0.9": ("optimizer.momentum=0.95",),
    "rate of the embeddings 6e-3 in place of 1.2e-2": ("optimizer.rest.lr=6e-3",),
    "cosine in place of constant, then linear to zero": ('schedule={kind="cosine",warmup=0.02}',),
    "with squared ReLU": (f"{BRANCH}.1.part.activation=relu2",),
    "with SwiGLU": (f"{BRANCH}.1.part.kind=glu",),
    "with outputs that start at zero": ("model.init.kind=normal", "model.init.out=zero"),
    "with windows of 128 tokens": (f'{BRANCH}.0.part.mask={{kind="window",size=128}}',),
}
FAR = 0.1
"""Nats to the recipe from which an arm, whose seeds differ more, does not enter the common variance."""
Run = dict[str, Any]


def train_all(options: argparse.Namespace) -> None:
    """Trains every arm with every seed, each run in a process of its own; all arms of a seed before the next seed."""

    def train(run: tuple[int, str]) -> None:
        seed, arm = run
        words = [options.data, "--seed", str(seed), "--name", arm, "--out", str(options.out), *ARMS[arm], *options.more]
        command = [sys.executable, "-m", "benchmarks.speedrun", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "2"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        print(f"seed {seed}, {arm}: {(done.stdout or done.stderr)[-200:].strip()}", flush=True)

    with ThreadPoolExecutor(options.together) as pool:
        list(
            pool.map(train, product(options.seeds, (arm for arm in ARMS if any(word in arm for word in options.arms))))
        )


def table(runs: Sequence[Run]) -> Iterator[str]:
    """A row for each arm: mean loss, and the difference to the recipe with an interval.

    The intervals hold together (Bonferroni). They rest on one variance of all arms near the recipe: what is left of
    their losses without the mean of their arm and of their seed.
    """
    losses = {(run["name"], run["seed"]): float(run["best"]) for run in runs}
    seeds = sorted({seed for _, seed in losses if all((arm, seed) in losses for arm in ARMS)})
    means = {arm: fmean(losses[arm, seed] for seed in seeds) for arm in ARMS}
    half = _half_width({arm: [losses[arm, seed] for seed in seeds] for arm in ARMS if means[arm] - means[RECIPE] < FAR})
    yield f"| {len(seeds)} seeds each | validation loss | difference | 95% interval | |"
    yield "|---|---|---|---|---|"
    for arm, loss in means.items():
        change = loss - means[RECIPE]
        verdict = "no evidence" if abs(change) <= half else "worse" if change > 0 else "better"
        interval = f"{change - half:+.3f} to {change + half:+.3f}" if change < FAR else ""
        rest = ("", "", "") if arm == RECIPE else (f"{change:+.3f}", interval, verdict)
        yield f"| {arm} | {loss:.3f} | {' | '.join(rest)} |"


def _half_width(near: dict[str, list[float]]) -> float:
    """Half of the width of the interval of a difference to the recipe, from the losses of every arm by seed."""
    by_seed = [fmean(losses) for losses in zip(*near.values(), strict=True)]
    whole, seeds = fmean(by_seed), len(by_seed)
    rest = [
        loss - fmean(losses) - by_seed[index] + whole for losses in near.values() for index, loss in enumerate(losses)
    ]
    freedom = (len(near) - 1) * (seeds - 1)
    error = math.sqrt(math.fsum(each * each for each in rest) / freedom * 2 / seeds)
    return float(t.ppf(1 - 0.025 / (len(ARMS) - 1), freedom)) * error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="text to train on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=[""], help="words in the names of the arms to train")
    parser.add_argument("--together", type=int, default=1, help="runs at once")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the differences of stored runs")
    parser.add_argument("more", nargs="*", help="--key value for benchmarks.speedrun, or key=value for every arm")
    options, more = parser.parse_known_args()
    options.more += more
    if options.table:
        print("\n".join(table([json.loads(line) for line in options.table.read_text(encoding="utf-8").splitlines()])))
    else:
        train_all(options)


if __name__ == "__main__":
    main()
