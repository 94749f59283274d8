"""A local pattern, learned from few and from many texts: the value of a locality bias."""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim, mean_curve, seed_curves
from anyformer.analysis.claim_runs import (
    ATTENTION,
    CONVOLUTION,
    PATTERN_HEAD,
    PATTERN_RECIPE,
    learn,
    pattern_texts,
    stack,
)
from anyformer.analysis.parallel_cells import in_parallel
from anyformer.drawing.figures import Lines, Panel

SIZES, HELD_OUT, SEEDS = (100, 1000, 10_000), 500, (0, 1, 2)
MIXERS = {"convolution": CONVOLUTION, "Transformer": ATTENTION}


class SmallData(TrainedClaim):
    ids = ("CLM-22",)
    says = "A Transformer has no bias for neighbours, so it overfits where data are few and needs many."

    def find(self, folder: Path) -> Figures:
        cells = [(name, size, seed) for name in MIXERS for seed in SEEDS for size in SIZES]
        shares = dict(zip(cells, in_parallel(recognised, cells, folder), strict=True))
        return {
            "sizes": SIZES,
            **{name: [[shares[name, size, seed] for size in SIZES] for seed in SEEDS] for name in MIXERS},
        }

    def decide(self, figures: Figures) -> Decision:
        convolution, transformer = (mean_curve(figures[name]) for name in MIXERS)
        gaps = [one - other for one, other in zip(convolution, transformer, strict=True)]
        right = gaps[0] > 0.05 and gaps == sorted(gaps, reverse=True) and gaps[-1] < gaps[0] / 2
        right &= all(one[0] > other[0] for one, other in zip(*map(figures.get, MIXERS), strict=True))
        text = ", ".join(f"{gap:+.1%} at {size}" for size, gap in zip(figures["sizes"], gaps, strict=True))
        return right, f"the convolution is ahead by {text} texts (means of {len(figures['convolution'])} seeds)"

    def picture(self, figures: Figures) -> list[Panel]:
        lines = seed_curves(figures, "sizes", MIXERS)
        return [Lines("Is there 'abc' in the text?", "texts to learn from", "accuracy on others", lines, log_x=True)]


def recognised(folder: Path, name: str, size: int, seed: int) -> float:
    """The accuracy on other texts after training on so many, drawn anew for each seed."""
    data = str(pattern_texts(folder / f"pattern-{name}-{size}-{seed}.jsonl", size, seed))
    test = str(pattern_texts(folder / f"pattern-{name}-{size}-{seed}-test.jsonl", HELD_OUT, len(SEEDS) + seed))
    model = (*stack(MIXERS[name], encoder=True), PATTERN_HEAD, f"seed={seed}")
    run = learn(folder, f"pattern-{name}-{size}-{seed}", data, *PATTERN_RECIPE, *model)
    return run.evaluate(test, ("accuracy",))["accuracy"].value
