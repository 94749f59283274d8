"""The recipe of a run as a value, and its construction from a file, a preset and overrides."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from anyformer.core import Amount, Chance, Count, ModelSpec, Positive, Range, Spec
from anyformer.data.preparation.pipeline import DataSpec
from anyformer.errors import SpecError
from anyformer.models import decoder, encoder, encoder_decoder  # noqa: F401  (the three shapes join their family)
from anyformer.objectives.objective import Objective
from anyformer.optim.adamw import AdamW
from anyformer.optim.optimizer import OptimizerSpec, ScheduleSpec
from anyformer.optim.schedules.cosine import Cosine
from anyformer.optim.tunings.tuning_spec import TuningSpec
from anyformer.training.recipes.toml_layers import FORMAT, TomlLayers, decode_layers, read

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
    compile: bool | Literal["auto", "layers"] = "auto"
    """Whether to use torch.compile; auto: if the run is long enough that compiling saves more time than it takes;
    layers: each kind of layer is compiled once, which takes seconds whatever the depth."""
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
    stop: Amount = 5
    """Stop early once the validation loss was more than 1% above its lowest value in this many evaluations in a row;
    0: never. Studies and ladders never stop early."""
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
    """Whether to save a checkpoint whenever the validation loss is lower than ever before, and to keep the last one of
    these: it is the one that every verb uses."""


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


@dataclass(frozen=True, kw_only=True)
class Recipe(Spec):
    """The complete configuration of a run."""

    format: Count = FORMAT
    """Version of the file format."""
    name: str | None = None
    """Name of the run; the file's own name if not given."""
    seed: Amount = 0
    """Seed of weights, data order, dropout and all other random numbers, except the split (data.seed)."""
    init_seed: Amount | None = None
    """Seed of the initial weights; `seed` if not given. Arms of a study share the data order but not this seed."""
    model: ModelSpec
    """The model; its vocabulary is that of the tokenizer unless set."""
    data: DataSpec | None = None
    """The training data; built-in text if not given."""
    objective: Objective | None = None
    """The training objective; the default for the model and the data if not given."""
    optimizer: OptimizerSpec = AdamW()
    """The optimiser."""
    schedule: ScheduleSpec = Cosine()
    """How the learning rate changes over the run."""
    tune: TuningSpec | None = None
    """How much of a pre-trained model learns; a string names the kind. layers: lower layers learn at lower rates or are
    frozen; lora: low-rank updates learn, and all else is frozen. Not given: everything learns at the full rate."""
    train: TrainSpec = TrainSpec()
    """Budget, batch size, precision and device."""
    evaluate: EvaluateSpec = EvaluateSpec()
    """Validation during training."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When checkpoints are saved, and which are kept."""
    log: LogSpec = LogSpec()
    """Logging of metrics."""
    sample: SampleSpec = SampleSpec()
    """Samples generated during training."""
    init_from: str | None = None
    """A run, a Hugging Face folder or a GGUF file whose weights to start from, for all tensors whose names and shapes
    agree. If the target is data and no model is named, the model is that of the weights, with the head that the task
    needs."""

    @property
    def weights_seed(self) -> int:
        """The seed of the initial weights."""
        return self.seed if self.init_seed is None else self.init_seed

    def check(self) -> None:
        if self.train.segments != "carry":
            return
        if self.data is None or not self.data.packing.continues:
            raise SpecError('train.segments=carry needs rows that continue in the next batch: data.packing = "stream".')
        if self.objective is not None and not self.objective.continues_rows:
            raise SpecError(
                f"train.segments=carry is for continuous text, but {self.objective.kind} reads each row separately. "
                f'Use objective.kind = "next_token".'
            )
        if self.train.recompute != "none":
            raise SpecError('train.segments=carry does not support recomputation. Set train.recompute = "none".')


@dataclass(frozen=True)
class Loaded:
    """A recipe with its name and the origin of every value: a file, a preset, the command line, or a default."""

    name: str
    recipe: Recipe
    origins: Mapping[str, str]


def load(target: str | Path, *overrides: str) -> ModelSpec:
    """The model of a preset or a recipe file: `load("gpt2", "model.stack.depth=6")`."""
    return load_recipe(target, overrides).recipe.model


def load_recipe(target: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """A preset's name or a path to a .toml file, with dotted overrides on top; validated once, as a whole."""
    return decode_recipe(read(target, overrides), Path(target).name.removesuffix(".toml"))


def decode_recipe(document: TomlLayers, name: str) -> Loaded:
    """Decodes and validates a recipe; the error lists all problems at once."""
    recipe, origins = decode_layers(Recipe, document)
    return Loaded(recipe.name or name, recipe, origins)
