"""Copying texts of growing length through one fixed-size state, and with attention to all source tokens."""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim, curves
from anyformer.analysis.claim_runs import learn, symbols_right
from anyformer.drawing.figures import Lines, Panel
from anyformer.run import Run

LENGTHS, DIM, STEPS = (8, 40), 64, 1600
LAYER = "stack.blocks.layer.branches"
READS = '{part={kind="bidirectional", part={kind="lstm"}}, place="none", join={kind="replace"}}'
WRITES = '{part={kind="init_from_encoder", part={kind="lstm"}}, place="none", join={kind="replace"}}'
LOOKS = '{part={kind="cross", part={kind="luong_attention"}}, place="none", join={kind="replace"}}'
DECODERS = {"without attention": f"[{WRITES}]", "with attention": f"[{WRITES}, {LOOKS}]"}


class Bottleneck(TrainedClaim):
    ids = ("CLM-05",)
    says = "The one state between encoder and decoder is a bottleneck; attention goes around it."

    def find(self, folder: Path) -> Figures:
        right = {name: [symbols_right(_run(folder, name, length)) for length in LENGTHS] for name in DECODERS}
        return {"lengths": LENGTHS, **right}

    def decide(self, figures: Figures) -> Decision:
        without, with_ = (figures[name] for name in DECODERS)
        right = without[-1] < 0.6 < without[0] and with_[-1] > 0.99
        copied_without, copied_with = (", ".join(f"{value:.0%}" for value in values) for values in (without, with_))
        return right, (
            f"of texts of {', '.join(map(str, figures['lengths']))} symbols, {copied_without} are copied right through "
            f"a state of {DIM} and {copied_with} with attention, after {STEPS} updates each"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = curves(figures, "lengths", DECODERS)
        return [Lines("Copying", "symbols", "share copied right", lines, log_x=True)]


def _run(folder: Path, name: str, length: int) -> Run:
    size = [f"model.{half}.{key}" for half in ("encoder", "decoder") for key in (f"dim={DIM}", "stack.depth=1")]
    return learn(
        folder, f"copy {name} {length}".replace(" ", "-"), "copy", "model.preset=rnn-seq2seq", *size,
        f"model.encoder.{LAYER}=[{READS}]", f"model.decoder.{LAYER}={DECODERS[name]}", f"data.source.length={length}",
        "data.context=64", f"train.steps={STEPS}", "train.batch_tokens=1024", "optimizer.lr=5e-3",
    )  # fmt: skip
