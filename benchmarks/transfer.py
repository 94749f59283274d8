"""Whether wide models learn best at the rate of narrow ones: `python -m benchmarks.transfer FILE --out OUT`

Small models of each architecture and width are trained at each rate, with muP (`optimizer.transfer`, `model.init`) and
without; everything else is the same. One line of JSON for each run; `--table OUT` prints the best rates.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from anyformer.data.preparation.pipeline import prepared_for
from anyformer.study.study import read_study
from anyformer.training import Trainer
from anyformer.training.distributed import World
from anyformer.training.observers import validate
from anyformer.training.recipes.resolve import data_of, settle

ARMS, WIDTHS = ("transformer", "lstm", "mamba"), (128, 256, 512, 1024)
RATES = tuple(2.0**power for power in range(-12, -4))
HEAD = 32
"""Channels of an attention head: a wider model has more heads, not wider ones."""
BOTH = ("model.head.kind=untied", "optimizer.kind=adamw", "schedule.kind=cosine", "schedule.warmup=0.1")
MUP = ("model.init.kind=mup", "optimizer.transfer.kind=mup")
RULES = {"both": (True, False), "mup": (True,), "without": (False,)}
Line = dict[str, Any]


def trainer_of(options: argparse.Namespace, arm: str, width: int, rate: float, more: Sequence[str]) -> Trainer:
    """A trainer of one architecture."""
    words = [
        f"study.arms=[{arm!r}, 'cnn']", "data.tokenizer.kind=bpe", "data.tokenizer.size=4096", "data.context=128",
        "data.packing=rows", f"model.dim={width}", f"model.stack.depth={options.depth}", "model.max_len=128",
        f"train.steps={options.steps}", f"train.batch_tokens={options.tokens}", f"optimizer.lr={rate}", *BOTH, *more,
    ]  # fmt: skip
    document = read_study(options.data, words).arms[arm]
    if arm == "transformer":
        document = document.with_value("model.stack.blocks.layer.branches.0.part.heads", width // HEAD)
    prepared = prepared_for(data_of(document), options.cache)
    return Trainer(settle(document, prepared, arm).recipe, prepared, World(torch.device(options.device)))


def runs(options: argparse.Namespace) -> Iterator[Line]:
    """The validation loss after training, for every architecture, width and rate."""
    for mup, arm, width, rate in product(RULES[options.rule], options.arms, options.widths, RATES):
        trainer = trainer_of(options, arm, width, rate, MUP if mup else ())
        worst = max(step.loss for step in trainer.steps())
        terms = validate(trainer, options.batches)
        loss = math.fsum((terms or {"": math.nan}).values())
        yield {"arm": arm, "width": width, "rate": rate, "mup": mup, "loss": loss, "worst": worst}


def table(lines: Sequence[Line]) -> Iterator[str]:
    """For every width the best rate and its loss, and how far apart the best rates are."""
    widths = sorted({line["width"] for line in lines})
    yield f"| | | {' | '.join(f'width {width:,}' for width in widths)} | largest / smallest rate |"
    yield f"|---|---|{'---|' * (len(widths) + 1)}"
    for arm, mup in product(dict.fromkeys(line["arm"] for line in lines), (True, False)):
        mine = [line for line in lines if line["arm"] == arm and line["mup"] == mup and math.isfinite(line["loss"])]
        best = [min((one for one in mine if one["width"] == width), key=lambda one: one["loss"]) for width in widths]
        rates = [one["rate"] for one in best]
        highest = {width: max(one["rate"] for one in mine if one["width"] == width) for width in widths}
        cells = [
            f"{one['rate']:.2g} ({one['loss']:.3f}){' †' if one['rate'] == highest[one['width']] else ''}"
            for one in best
        ]
        rule = "muP" if mup else "without"
        yield f"| {arm} | {rule} | {' | '.join(cells)} | {max(rates) / min(rates):.3g} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="text to train on")
    parser.add_argument("--arms", nargs="+", default=ARMS)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument(
        "--rule", choices=[*RULES], default="both", help="with muP, without, or first with and then without"
    )
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of an update")
    parser.add_argument("--batches", type=int, default=10, help="batches of validation")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/anyformer/data").expanduser())
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the best rates of a file of results")
    options = parser.parse_args()
    if options.table:
        lines = [json.loads(line) for line in options.table.read_text(encoding="utf-8").splitlines()]
        print("\n".join(table(lines)))
        return
    for line in runs(options):
        print(json.dumps(line), flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
