"""Copying texts of growing length through one fixed-size state, and with attention to all source tokens."""

from pathlib import Path

from anyformer.analysis.claim import Decision, Figures, TrainedClaim, seed_curves
from anyformer.analysis.claim_runs import learn, symbols_right
from anyformer.analysis.parallel_cells import in_parallel
from anyformer.drawing.figures import Lines, Panel

LENGTHS, DIM, WIDE, STEPS, SEEDS = (10, 20, 40, 50), 64, 256, 2500, (0, 1, 2)
HARD = 40
"""The length at which a wider state is tried."""
LAYER = "stack.blocks.layer.branches"
READS = '{part={kind="bidirectional", part={kind="lstm"}}, place="none", join={kind="replace"}}'
WRITES = '{part={kind="init_from_encoder", part={kind="lstm"}}, place="none", join={kind="replace"}}'
LOOKS = '{part={kind="cross", part={kind="luong_attention"}}, place="none", join={kind="replace"}}'
DECODERS = {"without attention": f"[{WRITES}]", "with attention": f"[{WRITES}, {LOOKS}]"}
WIDER = f"without attention, width {WIDE}"


class Bottleneck(TrainedClaim):
    ids = ("CLM-05",)
    says = "The one state between encoder and decoder is a bottleneck; attention goes around it."

    def find(self, folder: Path) -> Figures:
        cells = [
            (name, DIM, length, seed) for name in reversed(DECODERS) for seed in SEEDS for length in reversed(LENGTHS)
        ]
        wide = [("without attention", WIDE, HARD, seed) for seed in SEEDS]
        shares = dict(zip([*cells, *wide], in_parallel(copied, [*cells, *wide], folder), strict=True))
        curves = {
            name: [[shares[name, DIM, length, seed] for length in LENGTHS] for seed in SEEDS] for name in DECODERS
        }
        return {"lengths": LENGTHS, **curves, WIDER: [shares[cell] for cell in wide]}

    def decide(self, figures: Figures) -> Decision:
        place = figures["lengths"].index(HARD)
        without, with_ = (list(zip(*figures[name], strict=True)) for name in DECODERS)  # [length][seed]
        right = max(without[place]) < 0.6 and max(without[-1]) < 0.6 and min(without[0]) > 0.99
        right &= min(map(min, with_)) > 0.99
        shown = ", ".join(f"{min(shares):.0%} to {max(shares):.0%}" for shares in without)
        return right and min(figures[WIDER]) > max(without[place]), (
            f"of texts of {', '.join(map(str, figures['lengths']))} symbols, {shown} (least and most of "
            f"{len(figures[WIDER])} seeds) are copied right through a state of {DIM}, and at least "
            f"{min(map(min, with_)):.1%} with attention, after {STEPS} updates each; a state of {WIDE} copies "
            f"{min(figures[WIDER]):.0%} to {max(figures[WIDER]):.0%} of {HARD} symbols"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        lines = seed_curves(figures, "lengths", DECODERS)
        return [Lines("Copying", "symbols", "share copied right", lines, log_x=True)]


def copied(folder: Path, name: str, dim: int, length: int, seed: int) -> float:
    """The share of the symbols that a trained model copies right."""
    size = [f"model.{half}.{key}" for half in ("encoder", "decoder") for key in (f"dim={dim}", "stack.depth=1")]
    run = learn(
        folder, f"copy {name} {dim} {length} {seed}".replace(" ", "-"), "copy", "model.preset=rnn-seq2seq", *size,
        f"model.encoder.{LAYER}=[{READS}]", f"model.decoder.{LAYER}={DECODERS[name]}", f"data.source.length={length}",
        "data.source.count=50_000", "data.context=64", f"train.steps={STEPS}", "train.batch_tokens=4096",
        "optimizer.lr=5e-3", f"seed={seed}",
    )  # fmt: skip
    return symbols_right(run)
