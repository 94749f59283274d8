"""A local pattern, learned from few texts by a Transformer, with and without a bias for neighbours that is built in."""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim
from anyformer.analysis.claim_runs import (
    ATTENTION,
    CONVOLUTION,
    PATTERN_HEAD,
    PATTERN_RECIPE,
    learn,
    pattern_texts,
    stack,
)
from anyformer.drawing.figures import Bars, Panel
from anyformer.statistics.paired import simultaneous

SIZE, HELD_OUT, SEEDS = 100, 500, (2, 3, 4, 5, 6)
"""Each seed draws other texts to learn from and other weights; all models of a seed share the texts."""
PLAIN = "everywhere"
BIASES = {
    "in a window": '{kind="attention", heads=4, position={kind="rope"}, mask={kind="window", size=3}}',
    "behind a convolution": f'{{kind="chain", steps=[{{part={CONVOLUTION}}}, {{part={ATTENTION}}}]}}',
}
"""The mixer of each layer: attention with a bias for neighbours."""


class LocalBias(TrainedClaim):
    ids = ("XF-13",)
    says = "A bias for neighbours that is built into a Transformer makes it generalise better from few samples."

    def find(self, folder: Path) -> Figures:
        mixers = {PLAIN: ATTENTION, **BIASES}
        accuracies: dict[str, list[float]] = {name: [] for name in mixers}
        test = str(pattern_texts(folder / "pattern-test.jsonl", HELD_OUT, 1))
        for seed in SEEDS:
            data = str(pattern_texts(folder / f"few-{seed}.jsonl", SIZE, seed))
            for name, mixer in mixers.items():
                model = (*stack(mixer, encoder=True), PATTERN_HEAD)
                run = learn(folder, f"few-{name}-{seed}", data, *PATTERN_RECIPE, *model, f"seed={seed}")
                accuracies[name].append(run.evaluate(test, ("accuracy",))["accuracy"].value)
        return {"seeds": SEEDS, **accuracies}

    def decide(self, figures: Figures) -> Decision:
        gains = [[b - a for a, b in zip(figures[PLAIN], figures[name], strict=True)] for name in BIASES]
        better, texts = [], []
        for name, gain in zip(BIASES, simultaneous(gains), strict=True):
            assert gain.low is not None and gain.high is not None
            better.append(gain.low > 0)
            texts.append(f"{gain.value:+.1%} ({gain.low:+.1%} to {gain.high:+.1%}) if attention is {name}")
        because = f"accuracy after {SIZE} texts, 95% intervals over {len(figures['seeds'])} seeds: {', '.join(texts)}"
        return all(better) or ("depends" if any(better) else False), because

    def picture(self, figures: Figures) -> list[Panel]:
        bars = [(name, sum(figures[name]) / len(figures[name])) for name in (PLAIN, *BIASES)]
        return [Bars(f"Is there 'abc' in the text? {SIZE} texts to learn from", "accuracy on others", bars)]
