"""The sections of a recipe that configure a run: `train`, `evaluate`, `checkpoint`, `log`, `sample`."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from anyformer.core import Amount, Chance, Count, Positive, Range, Spec
from anyformer.errors import SpecError

BUDGETS = ("steps", "tokens", "flops", "minutes")
USUAL_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class TrainSpec(Spec):
    """Budget, batch size, precision and device of a run."""

    steps: Count | None = None
    """Budget: updates. One of the four budgets; 1000 steps if none is given."""
    tokens: Count | None = None
    """Budget: tokens, padding included; rounded up to whole steps."""
    flops: float | None = None
    """Budget: FLOPs of forward and backward passes, estimated from the model."""
    minutes: Positive | None = None
    """Budget: minutes in the training loop. The schedule follows the clock, so two such runs differ."""
    batch_tokens: Annotated[int, Range(low=1, high=2**30, why="one update would read more than a billion tokens")] = (
        4096
    )
    """Tokens of one update, padding included, over all devices."""
    micro_batch: Count | Literal["auto"] = "auto"
    """Tokens of a micro-batch, which is processed at once; auto: as many as fit in memory."""
    clip: Annotated[float, Range(low=0.0)] = 1.0
    """Maximum gradient norm; larger gradients are clipped. 0: no clipping."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of matrix products; weights stay fp32. auto: bf16 on a GPU that supports it, fp32 otherwise."""
    compile: bool | Literal["auto"] = "auto"
    """Whether to use torch.compile; auto: on a GPU, and on a CPU if the run is long enough to pay off."""
    recompute: Literal["none", "blocks", "sqrt"] | tuple[Amount, ...] = "none"
    """Activation checkpointing. blocks: every layer; sqrt: groups of sqrt(depth) layers; or a list of layer numbers."""
    ema: Chance = 0.0
    """Decay of an exponential moving average of the weights, used for evaluation; 0: no average."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to train on; auto: a GPU if there is one."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several processes (torchrun): replicate the model (ddp) or shard it (fsdp)."""
    workers: Amount = 0
    """Worker processes that build batches in advance; the order of the data does not depend on it."""
    segments: Literal["apart", "carry"] = "apart"
    """carry: rows continue the previous batch with its final state (needs data.packing = "stream")."""
    patience: Count = 3
    """Consecutive steps with a non-finite loss or gradient after which the run fails."""

    def check(self) -> None:
        budgets = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(budgets) > 1:
            raise SpecError(f"{' and '.join(budgets)} are set, but a run has one budget. Keep one of them.")
        if self.flops is not None and not (math.isfinite(self.flops) and self.flops > 0):
            raise SpecError(f"flops must be above 0, got {self.flops:g}.")


@dataclass(frozen=True, kw_only=True)
class EvaluateSpec(Spec):
    """Validation during training."""

    every: Amount = 200
    """Steps between two evaluations; the last step is always evaluated. 0: only the last step."""
    batches: Count = 20
    """Number of validation batches, the same ones each time."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSpec(Spec):
    """When checkpoints are saved, and which are kept."""

    every: Amount = 200
    """Steps between two checkpoints; one is always saved at the end and at an interruption."""
    keep: Count = 2
    """Number of newest checkpoints that are kept."""
    keep_every: Amount = 0
    """Checkpoints at multiples of this many steps are never removed; 0: none."""
    keep_best: bool = True
    """Whether to keep the checkpoint with the lowest validation loss."""


@dataclass(frozen=True, kw_only=True)
class LogSpec(Spec):
    """Logging of metrics."""

    every: Count = 10
    """Steps between two lines of metrics.jsonl and of the screen."""
    sinks: tuple[Literal["tensorboard"], ...] = ()
    """Additional destinations of metrics; a sink that fails does not stop the run."""


@dataclass(frozen=True, kw_only=True)
class SampleSpec(Spec):
    """Samples generated during training."""

    every: Amount = 0
    """Steps between two rounds of samples; 0: only at the end."""
    prompts: tuple[str, ...] = ("",)
    """Prompts to continue, translate or answer."""
    tokens: Count = 100
    """Maximum number of new tokens of each sample."""
