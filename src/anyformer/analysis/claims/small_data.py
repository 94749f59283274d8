"""A local pattern, learned from few and from many texts: the value of a bias for neighbours and for order."""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim, mean_curve, seed_curves
from anyformer.analysis.claim_runs import (
    ATTENTION,
    CONVOLUTION,
    LSTM,
    PATTERN_HEAD,
    PATTERN_RECIPE,
    learn,
    pattern_texts,
    stack,
)
from anyformer.analysis.parallel_cells import in_parallel
from anyformer.drawing.figures import Lines, Panel

SIZES, HELD_OUT, SEEDS = (100, 1000, 10_000), 500, (0, 1, 2)
BIASED = {"convolution": CONVOLUTION, "LSTM": f'{{kind="bidirectional", part={LSTM}}}'}
"""Mixers that see neighbours first: by a short kernel, or by the order of reading."""
MIXERS = {**BIASED, "Transformer": ATTENTION}


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
        transformer = figures["Transformer"]
        gaps = {
            name: [one - other for one, other in zip(mean_curve(figures[name]), mean_curve(transformer), strict=True)]
            for name in BIASED
        }
        shrinking = gaps["convolution"]
        right = (
            shrinking[0] > 0.05 and shrinking == sorted(shrinking, reverse=True) and shrinking[-1] < shrinking[0] / 2
        )
        right &= all(
            one[0] > other[0] for name in BIASED for one, other in zip(figures[name], transformer, strict=True)
        )
        texts = (
            f"the {name} is ahead by "
            + ", ".join(f"{gap:+.1%} at {size}" for size, gap in zip(figures["sizes"], gaps[name], strict=True))
            for name in BIASED
        )
        return right, f"{'; '.join(texts)} texts (means of {len(transformer)} seeds)"

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
