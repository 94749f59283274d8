"""A local pattern, learned from few and from many texts: the value of a locality bias."""

import json
import random
from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim, curves
from anyformer.analysis.claim_runs import ATTENTION, CONVOLUTION, learn, stack
from anyformer.drawing.figures import Lines, Panel

SIZES, HELD_OUT, LENGTH, STEPS = (100, 1000, 4000), 500, 24, 300
PATTERN, LETTERS = "abc", "abcdef"
MIXERS = {"convolution": CONVOLUTION, "Transformer": ATTENTION}
HEAD = 'model.head={kind="classifier", classes=2, pool={kind="mean"}}'
"""Pools over all places, because the receptive field of a convolution is small."""
RECIPE = ("data.tokenizer.kind=character", "data.context=32", "data.valid=0", "objective.kind=classify",
          f"train.steps={STEPS}", "train.batch_tokens=2048", "optimizer.lr=1e-3")  # fmt: skip


class SmallData(TrainedClaim):
    ids = ("CLM-22",)
    says = "A Transformer has no bias for neighbours, so it overfits where data are few and needs many."

    def find(self, folder: Path) -> Figures:
        accuracies: dict[str, list[float]] = {name: [] for name in MIXERS}
        test = str(_texts(folder / "pattern-test.jsonl", HELD_OUT, 1))
        for size in SIZES:
            data = str(_texts(folder / f"pattern-{size}.jsonl", size, 0))
            for name, mixer in MIXERS.items():
                run = learn(folder, f"pattern-{name}-{size}", data, *RECIPE, *stack(mixer, encoder=True), HEAD)
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


def _texts(file: Path, count: int, seed: int) -> Path:
    """Writes labelled texts, half of them with the pattern at a random place."""
    rng = random.Random(f"{seed} {count}")
    lines: list[str] = []
    while len(lines) < count:
        text = "".join(rng.choices(LETTERS, k=LENGTH))
        positive = len(lines) % 2 == 1
        if positive:
            place = rng.randrange(LENGTH - len(PATTERN))
            text = text[:place] + PATTERN + text[place + len(PATTERN) :]
        if (PATTERN in text) == positive:
            lines.append(json.dumps({"text": text, "label": "yes" if positive else "no"}))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file
