"""The cost of training, C = 6 N D, for the largest model in the lectures."""

from anyformer.analysis.claim import Decision, Figures, Measured
from anyformer.drawing.figures import Bars, Panel
from anyformer.statistics.laws import SUSTAINED, spent_flops, training_flops

GPT3_PARAMS, GPT3_TOKENS, GPT3_FLOPS = 175e9, 300e9, 3.14e23
BASE_HOURS, BASE_DEVICES, BASE_FLOPS = 12, 8, 3.3e18


class TrainingCost(Measured):
    ids = ("CLM-28", "WMT-08")
    says = "Transformers are expensive: GPT-3 took 3.14e23 operations, the base Transformer of 2017 3.3e18."

    def measure(self) -> Figures:
        return {
            "GPT-3, 6 N D": training_flops(GPT3_PARAMS, GPT3_TOKENS),
            "base, time x devices x rate": spent_flops(3600 * BASE_HOURS, BASE_DEVICES, SUSTAINED["P100"]),
        }

    def decide(self, figures: Figures) -> Decision:
        large, base = figures["GPT-3, 6 N D"], figures["base, time x devices x rate"]
        right = abs(large / GPT3_FLOPS - 1) < 0.01 and abs(base / BASE_FLOPS - 1) < 0.05
        return right, (
            f"6 N D gives {large:.3g} for GPT-3; 12 hours on 8 P100 at 9.5 TFLOP/s give {base:.3g}: the larger one "
            f"cost {large / base:,.0f} times as much"
        )

    def picture(self, figures: Figures) -> list[Panel]:
        return [Bars("Operations of a training", "FLOP", list(figures.items()), log_y=True)]
