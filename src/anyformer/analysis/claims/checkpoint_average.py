"""Averaging checkpoints: a toy translation with the weights of the last checkpoint, and with the mean of the last k.

mean = (w_1 + ... + w_k) / k          (arXiv 1706.03762, section 6.1: the last 5 or 20 checkpoints)
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean

from anyformer.analysis.claim import Decision, Figures, TrainedClaim
from anyformer.analysis.claim_runs import learn
from anyformer.drawing.figures import Bars, Panel
from anyformer.evaluation.evaluating import evaluate
from anyformer.evaluation.metrics.metric import Job
from anyformer.run import Run

SEEDS, STEPS, EVERY, TEXTS, DIM = (0, 1, 2), 600, 10, 200, 64
AVERAGED = (1, 5, 20)
"""Numbers of checkpoints; the mean of one is the last one itself."""


class CheckpointAverage(TrainedClaim):
    ids = ("OPT-03",)
    says = "The mean of the weights of the last checkpoints translates at least as well as the last of them."

    def find(self, folder: Path) -> Figures:
        runs = [_run(folder, seed) for seed in SEEDS]
        return {"seeds": SEEDS, **{_name(last): [_right(run, last) for run in runs] for last in AVERAGED}}

    def decide(self, figures: Figures) -> Decision:
        last, *means = (figures[_name(count)] for count in AVERAGED)
        holds = all(fmean(mean) >= fmean(last) for mean in means)
        text = "; ".join(_text(count, figures[_name(count)]) for count in AVERAGED)
        return holds, (
            f"numbers translated right from English to German, with {len(figures['seeds'])} seeds of {STEPS} updates "
            f"and a checkpoint each {EVERY}: {text}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        bars = [(_name(count), fmean(figures[_name(count)])) for count in AVERAGED]
        return [Bars("Numbers in words, English to German", "share translated right", bars)]


def _name(last: int) -> str:
    return "the last checkpoint" if last == 1 else f"mean of the last {last}"


def _text(last: int, shares: Sequence[float]) -> str:
    return f"{_name(last)} {fmean(shares):.1%} ({', '.join(f'{share:.1%}' for share in shares)})"


def _right(run: Run, last: int) -> float:
    """Share of the validation texts that are translated right with the mean of the last checkpoints."""
    job = Job(predictor=run.averaged(last, "cpu"), records=list(islice(run.records(), TEXTS)))
    return evaluate(job, ("exact_match",)).scores["exact_match"].value


def _run(folder: Path, seed: int) -> Run:
    small = [f"model.{half}.{key}" for half in ("encoder", "decoder") for key in (f"dim={DIM}", "stack.depth=1")]
    return learn(
        folder, f"numbers-{seed}", "number_words", "model.preset=small-encoder-decoder", *small,
        "model.decoder.init.kind=xavier", "data.source.below=10000", "data.source.count=4000", "data.context=48",
        f"train.steps={STEPS}", "train.batch_tokens=1024", f"seed={seed}", "optimizer.lr=3e-3",
        "schedule.kind=inverse_square_root", "schedule.warmup=100", "schedule.hold=100", f"checkpoint.every={EVERY}",
        f"checkpoint.keep={max(AVERAGED)}", "checkpoint.keep_best=false",
    )  # fmt: skip
