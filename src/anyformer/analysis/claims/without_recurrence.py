"""Is recurrence needed? Number words translated by a recurrence, the same with attention, and attention alone."""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim
from anyformer.analysis.claim_runs import learn
from anyformer.analysis.parallel_cells import in_parallel
from anyformer.drawing.figures import Bars, Panel

STEPS, SEEDS = 2000, (0, 1, 2)
PRESETS = {
    "recurrence": ("rnn-seq2seq", 82),
    "recurrence and attention": ("rnn-attention", 80),
    "attention alone": ("small-encoder-decoder", 64),
}
"""Presets, with widths that give them about equal numbers of parameters."""


class WithoutRecurrence(TrainedClaim):
    ids = ("CLM-29",)
    says = "Attention alone can pass on what a recurrence would: recurrence is not needed."

    def find(self, folder: Path) -> Figures:
        cells = [(name, seed) for name in PRESETS for seed in SEEDS]
        results = dict(zip(cells, in_parallel(translated, cells, folder), strict=True))
        shares = {name: [results[name, seed]["right"] for seed in SEEDS] for name in PRESETS}
        return {**shares, **{f"parameters: {name}": results[name, 0]["parameters"] for name in PRESETS}}

    def decide(self, figures: Figures) -> Decision:
        right = min(figures["attention alone"]) >= max(figures["recurrence and attention"]) - 0.01
        text = ", ".join(f"{name} {min(figures[name]):.1%} to {max(figures[name]):.1%}" for name in PRESETS)
        sizes = [figures[f"parameters: {name}"] for name in PRESETS]
        return right and max(sizes) < 1.03 * min(sizes), (
            f"numbers translated from English to German to the letter after {STEPS} updates, with {min(sizes):,} to "
            f"{max(sizes):,} parameters, least and most of {len(figures['recurrence'])} seeds: {text}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        means = [(name, sum(figures[name]) / len(figures[name])) for name in PRESETS]
        return [Bars("Number words into German", "share right", means)]


def translated(folder: Path, name: str, seed: int) -> dict[str, float]:
    """The share of numbers that are translated to the letter, and the size of the model."""
    preset, dim = PRESETS[name]
    small = ("model.encoder.stack.depth=1", "model.decoder.stack.depth=1", "model.decoder.init.kind=xavier")
    run = learn(
        folder, f"numbers-{preset}-{seed}", "number_words", f"model.preset={preset}", f"model.encoder.dim={dim}",
        f"model.decoder.dim={dim}", *small, "data.source.source=english", "data.source.target=german",
        "data.context=64", f"train.steps={STEPS}", "train.batch_tokens=4096",
        "optimizer.lr=3e-3", f"seed={seed}",
    )  # fmt: skip
    right = run.evaluate(metrics=("exact_match",), limit=200)["exact_match"].value
    return {"right": right, "parameters": sum(weight.numel() for weight in run.model().parameters())}
