"""Is recurrence needed? One sequence-to-sequence task for recurrence, the same with attention, and attention alone."""

from pathlib import Path

from anyformer.analysis.claim import Figures, TrainedClaim, Verdict
from anyformer.analysis.claim_runs import learn, symbols_right
from anyformer.drawing.figures import Bars, Panel
from anyformer.run import Run

LENGTH, STEPS = 12, 900
DIMS = {"rnn-seq2seq": 64, "rnn-attention": 64, "small-encoder-decoder": 48}
"""Widths that give the presets about equal numbers of parameters."""
NAMES = {
    "recurrence": "rnn-seq2seq",
    "recurrence and attention": "rnn-attention",
    "attention alone": "small-encoder-decoder",
}


class WithoutRecurrence(TrainedClaim):
    ids = ("CLM-29",)
    says = "Attention alone can pass on what a recurrence would: recurrence is not needed."

    def train(self, folder: Path) -> Figures:
        runs = {name: _run(folder, preset) for name, preset in NAMES.items()}
        sizes = {f"parameters: {name}": _size(run) for name, run in runs.items()}
        return {**{name: symbols_right(run) for name, run in runs.items()}, **sizes}

    def judge(self, figures: Figures) -> Verdict:
        right = figures["attention alone"] >= figures["recurrence and attention"] - 0.01
        text = ", ".join(f"{name} {figures[name]:.1%}" for name in NAMES)
        return Verdict(
            "holds" if right else "does not hold",
            f"symbols of {LENGTH} written in reverse order after {STEPS} updates, at about equal parameters: {text}",
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [Bars("Reversal", "share of symbols right", [(name, figures[name]) for name in NAMES])]


def _run(folder: Path, preset: str) -> Run:
    dim = DIMS[preset]
    small = ("model.encoder.stack.depth=1", "model.decoder.stack.depth=1", "model.decoder.init.kind=xavier")
    return learn(
        folder, f"reverse-{preset}", "reverse", f"model.preset={preset}", f"model.encoder.dim={dim}",
        f"model.decoder.dim={dim}", *small, f"data.source.length={LENGTH}", "data.source.count=6000", "data.context=32",
        f"train.steps={STEPS}", "train.batch_tokens=2048", "optimizer.lr=3e-3",
    )  # fmt: skip


def _size(run: Run) -> int:
    return sum(weight.numel() for weight in run.model().parameters())
