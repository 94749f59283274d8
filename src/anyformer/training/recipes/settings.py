"""The sections of a recipe that say how a run goes: `train`, `evaluate`, `checkpoint`, `log`, `sample`."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from anyformer.core import Amount, Chance, Count, Positive, Range, Spec
from anyformer.errors import SpecError

BUDGETS = ("steps", "tokens", "flops", "minutes")
USUAL_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class TrainSpec(Spec):
    """How long, how much at a time, and in which numbers."""

    steps: Count | None = None
    """Budget: updates. One of the four budgets; 1000 steps if none is given."""
    tokens: Count | None = None
    """Budget: tokens, padding included; a whole number of steps."""
    flops: float | None = None
    """Budget: floating-point operations of forward and backward passes by the cost card."""
    minutes: Positive | None = None
    """Budget: time in the loop. The schedule follows the clock, so two such runs differ."""
    batch_tokens: Annotated[int, Range(low=1, high=2**30, why="one update would read more than a billion tokens")] = (
        4096
    )
    """Tokens of one update, padding included, over all devices."""
    micro_batch: Count | Literal["auto"] = "auto"
    """Tokens that go through the model at once; auto: as many as memory holds."""
    clip: Annotated[float, Range(low=0.0)] = 1.0
    """Longest gradient; a longer one is shortened to it. 0: no limit."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Numbers of the matrix products; weights stay fp32. auto: bf16 on a GPU that has it, fp32 on a CPU."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the model; auto: on a GPU, and on a CPU where the run is long enough to pay for it."""
    recompute: Literal["none", "blocks", "sqrt"] | tuple[Amount, ...] = "none"
    """Layers whose inside is forgotten and computed again in the backward pass: all, or by number; sqrt: in groups."""
    ema: Chance = 0.0
    """Decay of a running average of the weights, which is what gets evaluated; 0: none."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train; auto: a GPU if there is one."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several processes (torchrun): a copy of the model in each, or a share of it."""
    workers: Amount = 0
    """Processes that build batches ahead; the order of the data does not depend on it."""
    segments: Literal["apart", "carry"] = "apart"
    """carry: rows go on where the last batch ended, with the state that it left (needs data.packing = "stream")."""
    patience: Count = 3
    """Steps in a row with a loss or gradient that is no number, before the run gives up."""

    def check(self) -> None:
        budgets = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(budgets) > 1:
            raise SpecError(f"{' and '.join(budgets)} are two budgets. Keep one.")
        if self.flops is not None and not (math.isfinite(self.flops) and self.flops > 0):
            raise SpecError(f"flops must be above 0, got {self.flops:g}.")


@dataclass(frozen=True, kw_only=True)
class EvaluateSpec(Spec):
    """When the model meets text that it does not learn from."""

    every: Amount = 200
    """Steps between two evaluations; there is one at the end in any case. 0: only then."""
    batches: Count = 20
    """Batches of the validation split, the same ones each time."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSpec(Spec):
    """When the run is saved, and what is kept of it."""

    every: Amount = 200
    """Steps between two checkpoints; there is one at the end and at an interruption in any case."""
    keep: Count = 2
    """Newest checkpoints that stay."""
    keep_every: Amount = 0
    """Checkpoints at multiples of this many steps stay for good; 0: none."""
    keep_best: bool = True
    """The checkpoint with the lowest validation loss stays too."""


@dataclass(frozen=True, kw_only=True)
class LogSpec(Spec):
    """What is written down on the way."""

    every: Count = 10
    """Steps between two lines of metrics.jsonl and of the screen."""
    sinks: tuple[Literal["tensorboard"], ...] = ()
    """Where else metrics go; a sink that fails never stops a run."""


@dataclass(frozen=True, kw_only=True)
class SampleSpec(Spec):
    """What the model says on the way."""

    every: Amount = 0
    """Steps between two rounds of samples; 0: only at the end."""
    prompts: tuple[str, ...] = ("",)
    """What it is asked to continue, translate or answer."""
    tokens: Count = 100
    """Length of each sample at most."""
