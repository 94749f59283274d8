"""Labels that depend on a later word: accuracy with and without a causal mask."""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim
from anyformer.analysis.claim_runs import LAYER, accuracy, learn, stack
from anyformer.data.synthetic.future_label import FutureLabel
from anyformer.drawing.figures import Bars, Panel

POSITIONED = '{kind="attention", heads=4, position={kind="rope"}}'
RECIPE = ("data.source.count=4000", "data.context=64", "train.steps=250", "train.batch_tokens=2048",
          "optimizer.lr=3e-3")  # fmt: skip
CAUSAL = f'{LAYER}.0.part.mask={{kind="causal"}}'


class FromTheFuture(TrainedClaim):
    ids = ("CLM-24",)
    says = "A Transformer without a mask is a more general function than a recurrence: y_t depends on all of x."

    def find(self, folder: Path) -> Figures:
        shape = (*RECIPE, *stack(POSITIONED, encoder=True))
        unmasked = learn(folder, "future-unmasked", "future_label", *shape)
        causal = learn(folder, "future-causal", "future_label", *shape, CAUSAL)
        return {"chance": FutureLabel().chance, "unmasked": accuracy(unmasked), "causal": accuracy(causal)}

    def decide(self, figures: Figures) -> Decision:
        right = figures["unmasked"] > 0.99 and abs(figures["causal"] - figures["chance"]) < 0.03
        return right, (
            f"a label that stands five places ahead is named in {figures['unmasked']:.1%} of all places without a "
            f"mask, in {figures['causal']:.1%} with one; guessing gives {figures['chance']:.1%}"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [Bars("A label five places ahead", "accuracy", list(figures.items()))]
