"""How much context a recurrent language model uses: its loss when it reads only the last tokens."""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim
from anyformer.analysis.claim_runs import LSTM, learn, stack
from anyformer.drawing.figures import Line, Lines, Panel

RECIPE = ("data.tokenizer.kind=byte", "data.context=256", "train.steps=250", "train.batch_tokens=2048",
          "optimizer.lr=3e-3", "objective.kind=next_token")  # fmt: skip


class EffectiveContext(TrainedClaim):
    ids = ("CLM-19",)
    says = "In practice a recurrent network uses a context of about 100 to 200 tokens."

    def find(self, folder: Path) -> Figures:
        run = learn(folder, "context-lstm", "python_topics", *RECIPE, *stack(LSTM, dim=96, depth=1))
        scores = dict(run.evaluate(metrics=("by_context",), limit=40))
        used = scores.pop("context_used").value
        pasts = [int(name.removeprefix("loss_with_context_")) for name in scores]
        return {"pasts": pasts, "loss": [score.value for score in scores.values()], "used": used}

    def decide(self, figures: Figures) -> Decision:
        return "holds" if 64 <= figures["used"] <= 256 else "depends", (
            "an LSTM over bytes, trained for a few minutes, is within 1% of its best loss with the last "
            f"{figures['used']:g} tokens of {figures['pasts'][-1]}; the number depends on model, data and training"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        line = Line("LSTM", figures["pasts"], figures["loss"])
        return [Lines("Loss with a shorter past", "tokens of past", "nats", [line], log_x=True)]
