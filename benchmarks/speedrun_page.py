"""Writes docs/time-to-quality.md and its picture from stored runs: `python -m benchmarks.speedrun_page`"""

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks import leave_one_out, transfer
from benchmarks.pictures import SETTINGS

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, PICTURE = DOCS / "time-to-quality.md", DOCS / "time-to-quality.svg"
SPEEDRUN, LEAVE_ONE_OUT, TRANSFER = (f"{name}.jsonl" for name in ("speedrun", "leave-one-out", "transfer"))
ARMS = {"ours": "anyformer", "plain": "nanoGPT's recipe"}
COLOURS = {"ours": "C0", "plain": "C1"}
Run = dict[str, Any]
INTRODUCTION = """\
# Time to quality

Written by `python -m benchmarks.speedrun_page` from the runs in `docs/results`; do not edit.

Two decoders of the same shape learn the same text: `recipes/speedrun-10m.toml` and `recipes/speedrun-35m.toml` by
`anyformer train`, and nanoGPT's recipe (AdamW, cosine, its best of the rates that were tried) in a plain loop that
`torch.compile` compiles. 144M characters of the prose of [corpus.md](corpus.md), 8,192 pieces, windows of 512 tokens;
both are judged on the same 655,360 tokens of the validation split. One H200, torch 2.11, one run at a time. Seconds
count from the start of the process: imports, compilation with empty caches, and validation are part of them.

    python -m benchmarks.speedrun prose.jsonl.gz --arm plain --size 10m --rate 4e-3 --seed 0 --out speedrun.jsonl
    python -m benchmarks.speedrun prose.jsonl.gz --arm ours --size 10m --seed 0 --out speedrun.jsonl

![Validation loss against seconds](time-to-quality.svg)
"""


CHOICES = """
## What each choice is worth

`recipes/speedrun-10m.toml` but for one choice, on the same text: a piece of the recipe is left out, or one that it
lacks is added. Several runs shared the GPU, so losses count here and seconds do not. The intervals hold together
(Bonferroni); arms far away, whose seeds differ more, do not enter their variance.

    python -m benchmarks.leave_one_out prose.jsonl.gz --together 6 --out leave-one-out.jsonl
"""
RATES = """
## Rates that transfer

Decoders of four layers and 128 to 1,024 channels (`speeches`, 4,096 pieces, 300 updates of 8,192 tokens with AdamW),
each at rates that are a factor of two apart, from 2.4e-4 on, with muP (`optimizer.transfer`, `model.init`) and without:
the best rate, and the validation loss at it. A dagger: no higher rate was run. One seed.

    python -m benchmarks.transfer speeches.jsonl.gz --out transfer.jsonl
"""
AFTERWARDS = """
With muP one rate serves all widths within a factor of two. But at 512 and 1,024 channels the loss at the best rate is
*higher* with muP than without, in all three architectures (why is open; 300 updates are few). So muP serves to find a
rate on a small model, and is no default.
"""


def read(name: str) -> list[Run]:
    """The stored runs of a benchmark."""
    return [json.loads(line) for line in (DOCS / "results" / name).read_text(encoding="utf-8").splitlines()]


def page() -> str:
    runs = read(SPEEDRUN)
    choices, rates = leave_one_out.table(read(LEAVE_ONE_OUT)), transfer.table(read(TRANSFER))
    return "\n".join(
        [INTRODUCTION, *_table(runs), "", *_sentences(runs), CHOICES, *choices, RATES, *rates, AFTERWARDS.rstrip(), ""]
    )


def _table(runs: Sequence[Run]) -> Iterator[str]:
    yield "| size | recipe | seed | updates | best loss | seconds until then |"
    yield "|---|---|---|---|---|---|"
    for run in sorted(runs, key=lambda run: (run["size"], run["arm"], run["seed"])):
        step, seconds, loss = _best(run)
        yield f"| {run['size']} | {ARMS[run['arm']]} | {run['seed']} | {step:,} | {loss:.3f} | {seconds:.1f} |"


def _sentences(runs: Sequence[Run]) -> Iterator[str]:
    for size in sorted({run["size"] for run in runs}):
        ours, plain = ([_best(run) for run in runs if (run["size"], run["arm"]) == (size, arm)] for arm in ARMS)
        (mine_s, mine), (their_s, theirs) = (
            (mean(seconds for _, seconds, _ in points), mean(loss for *_, loss in points)) for points in (ours, plain)
        )
        yield (
            f"- {size}: {mine:.3f} after {mine_s:.1f} s ({len(ours)} runs), where nanoGPT's recipe has {theirs:.3f} "
            f"after {their_s:.1f} s ({len(plain)}): {mine_s / their_s:.2f} of the time."
        )


def _best(run: Run) -> tuple[int, float, float]:
    """Step, seconds and loss of the best validation."""
    step, seconds, loss = min(run["points"], key=lambda point: point[2])
    return step, seconds, loss


def picture(runs: Sequence[Run]) -> str:
    """Loss against seconds, one panel for each size."""
    sizes = sorted({run["size"] for run in runs})
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": "speedrun"}):
        figure = Figure(figsize=(8.0, 3.2), layout="constrained")
        for axes, size in zip(figure.subplots(1, len(sizes)), sizes, strict=True):
            axes.set(
                title=f"{size} parameters", xlabel="seconds since the start", ylabel="validation loss", ylim=(2.3, 4.0)
            )
            for run in (run for run in runs if run["size"] == size):
                _, seconds, losses = zip(*run["points"], strict=True)
                label = ARMS[run["arm"]] if run["seed"] == 0 else None
                axes.plot(
                    seconds, losses, color=COLOURS[run["arm"]], label=label, linewidth=1.2, marker="o", markersize=2
                )
            axes.legend()
        stream = io.StringIO()
        FigureCanvasSVG(figure).print_svg(stream, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return stream.getvalue()


def main() -> None:
    runs = read(SPEEDRUN)
    PAGE.write_text(page(), encoding="utf-8")
    PICTURE.write_text(picture(runs), encoding="utf-8")
    print(f"wrote {PAGE.name} and {PICTURE.name}: {len(runs)} runs")


if __name__ == "__main__":
    main()
