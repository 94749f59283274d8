"""A local pattern, learned from few and from many texts: the value of a locality bias."""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim, curves
from anyformer.analysis.claim_runs import (
    ATTENTION,
    CONVOLUTION,
    PATTERN_HEAD,
    PATTERN_RECIPE,
    learn,
    pattern_texts,
    stack,
)
from anyformer.drawing.figures import Lines, Panel

SIZES, HELD_OUT = (100, 1000, 4000), 500
MIXERS = {"convolution": CONVOLUTION, "Transformer": ATTENTION}


class SmallData(TrainedClaim):
    ids = ("CLM-22",)
    says = "A Transformer has no bias for neighbours, so it overfits where data are few and needs many."

    def find(self, folder: Path) -> Figures:
        accuracies: dict[str, list[float]] = {name: [] for name in MIXERS}
        test = str(pattern_texts(folder / "pattern-test.jsonl", HELD_OUT, 1))
        for size in SIZES:
            data = str(pattern_texts(folder / f"pattern-{size}.jsonl", size, 0))
            for name, mixer in MIXERS.items():
                run = learn(
                    folder, f"pattern-{name}-{size}", data, *PATTERN_RECIPE, *stack(mixer, encoder=True), PATTERN_HEAD
                )
                accuracies[name].append(run.evaluate(test, ("accuracy",))["accuracy"].value)
        return {"sizes": SIZES, **accuracies}

    def decide(self, figures: Figures) -> Decision:
        gaps = [one - other for one, other in zip(figures["convolution"], figures["Transformer"], strict=True)]
        right = max(gaps) > 0.05 and gaps[-1] < max(gaps) / 2
        text = ", ".join(f"{gap:+.0%} at {size}" for size, gap in zip(figures["sizes"], gaps, strict=True))
        return right, f"the convolution is ahead by {text} texts"

    def picture(self, figures: Figures) -> list[Panel]:
        lines = curves(figures, "sizes", MIXERS)
        return [Lines("Is there 'abc' in the text?", "texts to learn from", "accuracy on others", lines, log_x=True)]
