"""How much context a recurrent language model uses: its loss when it reads only the last tokens."""

from pathlib import Path
from typing import Any

from anyformer.analysis.claim import Decision, Figures, TrainedClaim, seed_curves
from anyformer.analysis.claim_runs import LSTM, learn, stack
from anyformer.analysis.parallel_cells import in_parallel
from anyformer.drawing.figures import Lines, Panel

STEPS, SEEDS = 600, (0, 1, 2)
RECIPE = ("data.tokenizer.kind=byte", "data.context=256", f"train.steps={STEPS}", "train.batch_tokens=2048",
          "optimizer.lr=3e-3", "objective.kind=next_token")  # fmt: skip


class EffectiveContext(TrainedClaim):
    ids = ("CLM-19",)
    says = "In practice a recurrent network uses a context of about 100 to 200 tokens."

    def find(self, folder: Path) -> Figures:
        results = in_parallel(loss_by_context, [(seed,) for seed in SEEDS], folder)
        figures = {name: [result[name] for result in results] for name in ("LSTM", "used")}
        return {"pasts": results[0]["pasts"], **figures}

    def decide(self, figures: Figures) -> Decision:
        used = figures["used"]
        return "holds" if min(used) >= 64 and max(used) <= 256 else "depends", (
            f"an LSTM over bytes comes within 1% of its best loss with the last {min(used):g} to {max(used):g} tokens "
            f"of {figures['pasts'][-1]}, least and most of {len(used)} seeds after {STEPS} updates; the number depends "
            "on model, data and training"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = seed_curves(figures, "pasts", ("LSTM",))
        return [Lines("Loss with a shorter past", "tokens of past", "nats", lines, log_x=True)]


def loss_by_context(folder: Path, seed: int) -> dict[str, Any]:
    """The loss of a trained model that reads only the last tokens, and the tokens that it makes use of."""
    run = learn(folder, f"context-lstm-{seed}", "docstrings", *RECIPE, *stack(LSTM, dim=96, depth=1), f"seed={seed}")
    scores = dict(run.evaluate(metrics=("by_context",), limit=40))
    used = scores.pop("context_used").value
    pasts = [int(name.removeprefix("loss_with_context_")) for name in scores]
    return {"pasts": pasts, "LSTM": [score.value for score in scores.values()], "used": used}
