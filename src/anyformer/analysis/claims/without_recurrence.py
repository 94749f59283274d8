"""Is recurrence needed? One sequence-to-sequence task for recurrence, the same with attention, and attention alone."""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim
from anyformer.analysis.claim_runs import learn, symbols_right
from anyformer.drawing.figures import Bars, Panel
from anyformer.run import Run

LENGTH, STEPS = 12, 900
PRESETS = {
    "recurrence": ("rnn-seq2seq", 64),
    "recurrence and attention": ("rnn-attention", 64),
    "attention alone": ("small-encoder-decoder", 48),
}
"""Presets, with widths that give them about equal numbers of parameters."""


class WithoutRecurrence(TrainedClaim):
    ids = ("CLM-29",)
    says = "Attention alone can pass on what a recurrence would: recurrence is not needed."

    def find(self, folder: Path) -> Figures:
        runs = {name: _run(folder, *preset) for name, preset in PRESETS.items()}
        right = {name: symbols_right(run) for name, run in runs.items()}
        sizes = {name: sum(weight.numel() for weight in run.model().parameters()) for name, run in runs.items()}
        return {**right, **{f"parameters: {name}": size for name, size in sizes.items()}}

    def decide(self, figures: Figures) -> Decision:
        right = figures["attention alone"] >= figures["recurrence and attention"] - 0.01
        text = ", ".join(f"{name} {figures[name]:.1%}" for name in PRESETS)
        return (
            right,
            f"symbols of {LENGTH} written in reverse order after {STEPS} updates, at about equal parameters: {text}",
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [Bars("Reversal", "share of symbols right", [(name, figures[name]) for name in PRESETS])]


def _run(folder: Path, preset: str, dim: int) -> Run:
    small = ("model.encoder.stack.depth=1", "model.decoder.stack.depth=1", "model.decoder.init.kind=xavier")
    return learn(
        folder, f"reverse-{preset}", "reverse", f"model.preset={preset}", f"model.encoder.dim={dim}",
        f"model.decoder.dim={dim}", *small, f"data.source.length={LENGTH}", "data.source.count=6000", "data.context=32",
        f"train.steps={STEPS}", "train.batch_tokens=2048", "optimizer.lr=3e-3",
    )  # fmt: skip
