"""The facts of a run for its report: measured values, predicted cost, and a summary sentence."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anyformer.core import decode
from anyformer.core.plain_data import with_nulls
from anyformer.core.readable_numbers import clock, counted, human
from anyformer.errors import AnyformerError, CheckpointError
from anyformer.objectives.words import WORDS
from anyformer.reporting.run_files import Facts, RunFiles, dig, finite
from anyformer.training.loop.budget import PredictedCost
from anyformer.training.loop.loss_module import Precision
from anyformer.training.recipes.recipe import Recipe
from anyformer.training.runs.checkpoint import refuse_other_folder

FORMAT = 1
MEASURED = ("loss", "lr", "gradient_norm", "tokens_per_s", "peak_bytes")


class RunPoint(NamedTuple):
    """A point of a training run, measured in steps, tokens, FLOPs and seconds."""

    step: int
    tokens: float
    flops: float | None
    wall_s: float


@dataclass(frozen=True)
class RunFacts:
    """The facts of a run, derived from the files in its folder."""

    files: RunFiles

    @classmethod
    def of(cls, folder: str | Path) -> "RunFacts":
        files = RunFiles(Path(folder))
        if not files.recipe:
            raise CheckpointError(f"{folder}: is not a run folder: it has no readable recipe.toml. See: anyformer runs")
        refuse_other_folder(files.folder)
        return cls(files)

    @property
    def name(self) -> str:
        return self.files.folder.resolve().name

    @cached_property
    def recipe(self) -> Recipe | None:
        """The decoded recipe; None if it uses kinds that are not installed or an older format."""
        try:
            return decode(Recipe, dict(self.files.recipe))
        except AnyformerError:
            return None

    @cached_property
    def prediction(self) -> PredictedCost | None:
        recipe = self.recipe
        if recipe is None or recipe.data is None:
            return None
        context, micro_batch = recipe.data.context, self.files.progress.get("micro_batch")
        try:
            return PredictedCost.of(recipe.model, recipe.train, context, micro_batch, self.precision)
        except (AnyformerError, RuntimeError):
            return None

    @property
    def precision(self) -> Precision:
        """The data type of matrix products; auto is resolved by the device of the run."""
        precision = self.recipe.train.precision if self.recipe else "fp32"
        if precision != "auto":
            return precision
        return "bf16" if self.files.environment.get("device") == "cuda" else "fp32"

    @cached_property
    def trained(self) -> list[Facts]:
        """Lines of metrics.jsonl for optimizer steps."""
        return [line for line in self.files.metrics if "loss" in line and finite(line.get("step")) is not None]

    @cached_property
    def validated(self) -> list[Facts]:
        """Lines of metrics.jsonl with a finite validation loss."""
        return [line for line in self.files.metrics if finite(line.get("valid_loss")) is not None]

    @property
    def skipped(self) -> list[Facts]:
        """Lines of metrics.jsonl for optimizer steps that were not applied."""
        return [line for line in self.trained if line.get("status", "applied") != "applied"]

    @property
    def last(self) -> Facts:
        return self.trained[-1] if self.trained else {}

    @property
    def step(self) -> int:
        # A run that stops early ends at an evaluation, which may come after the last logged step.
        return max(int(finite(facts.get("step")) or 0) for facts in (self.last, self.files.progress))

    @property
    def best(self) -> Facts:
        """The line with the lowest validation loss."""
        return min(self.validated, key=lambda line: float(line["valid_loss"]), default={})

    @property
    def perplexity(self) -> float | None:
        """exp(lowest validation loss), if the loss is the plain next-token cross-entropy of a decoder."""
        if not self.validated or self.recipe is None or not self.recipe.model.decodes:
            return None
        terms, objective = self.best.get("valid_terms"), self.files.recipe.get("objective", {})
        bare = not objective.get("smoothing") and not objective.get("z")
        loss = finite(terms.get(WORDS)) if isinstance(terms, Mapping) and list(terms) == [WORDS] else None
        return math.exp(loss) if bare and loss is not None and loss < 700 else None

    @property
    def flops_per_s(self) -> float | None:
        """Measured FLOP/s, from the predicted FLOPs of full batches; excludes the first logged line as warm-up."""
        if self.prediction is None or not self.last.get("wall_s"):
            return None
        first = self.trained[0] if len(self.trained) > 1 else {"step": 0, "wall_s": 0.0}
        steps, seconds = self.last["step"] - first["step"], self.last["wall_s"] - first["wall_s"]
        return steps * self.prediction.step_flops / seconds if seconds > 0 else None

    def points(self, lines: Sequence[Facts]) -> list[RunPoint]:
        """The points of metrics lines; tokens and seconds are interpolated for lines that contain only their step."""
        known = [line for line in self.trained if None not in (finite(line.get("tokens")), finite(line.get("wall_s")))]
        steps = [0.0, *(float(line["step"]) for line in known)]
        tokens, walls = ([0.0, *(float(line[key]) for line in known)] for key in ("tokens", "wall_s"))
        flops = self.prediction.step_flops if self.prediction else None
        at = [int(line["step"]) for line in lines]
        seen, seconds = (np.interp(at, steps, values).tolist() for values in (tokens, walls))
        return [
            RunPoint(step, count, None if flops is None else float(flops * step), wall)
            for step, count, wall in zip(at, seen, seconds, strict=True)
        ]

    @property
    def sentence(self) -> str:
        """A summary of the run in one sentence."""
        what = " ".join(filter(None, (dig(self.files.recipe, "model", "kind"), "on", self.source)))
        budget = self.files.steps or 0
        did = f"{what}: {counted(self.step, 'steps')}" + (f" of {budget:,}" if self.step < budget else "")
        did += ", stopped early" if self.step < budget and self.files.state == "complete" else ""
        if tokens := self.last.get("tokens"):
            did += f", {human(tokens)} tokens in {clock(self.last.get('wall_s') or 0.0)}"
        if not self.validated:
            loss = finite(self.last.get("loss"))
            return f"{did}; training loss {loss:.4f}." if loss is not None else f"{did}; no loss was logged yet."
        final, best = self.validated[-1], self.best
        perplexity = f" (perplexity {self.perplexity:,.1f})" if self.perplexity is not None else ""
        place = f" at step {best['step']:,}, {final['valid_loss']:.4f} at the end" if best is not final else ""
        return f"{did}; best validation loss {best['valid_loss']:.4f}{perplexity}{place}."

    @property
    def source(self) -> str:
        """The source of the training data: kind and path or name."""
        source = dig(self.files.recipe, "data", "source") or {}
        return " ".join(str(source[key]) for key in ("kind", "path", "name") if key in source) or "unknown data"

    @property
    def parameters(self) -> int | None:
        return self.prediction.params if self.prediction else self.files.params

    def to_dict(self) -> dict[str, Any]:
        """The output of `report --json`."""
        files, best = self.files, self.best
        facts: dict[str, Any] = {
            "format": FORMAT,
            "run": str(files.folder),
            "name": self.name,
            "state": files.state,
            "summary": self.sentence,
            "step": self.step,
            "steps": self.files.steps,
            "tokens": self.last.get("tokens"),
            "wall_s": self.last.get("wall_s"),
            "train_loss": self.last.get("loss"),
            "valid_loss": self.validated[-1]["valid_loss"] if self.validated else None,
            "best_valid_loss": best.get("valid_loss"),
            "best_step": best.get("step"),
            "perplexity": self.perplexity,
            "params": self.parameters,
            "predicted": asdict(self.prediction) if self.prediction else None,
            "measured": {
                "peak_bytes": self.last.get("peak_bytes"),
                "flops_per_s": self.flops_per_s,
                "skipped": [{"step": line["step"], "status": line.get("status")} for line in self.skipped],
            },
            "curves": {"train": self._curve(self.trained, MEASURED), "valid": self._curve(self.validated)},
            "evaluations": files.evaluations,
            "shrunk": dict(files.shrunk) or None,
            "samples": [{"step": round.step, "texts": list(round.texts)} for round in files.samples],
            "events": [{"time": event.time, "event": event.what, **event.facts} for event in files.events],
            "environment": dict(files.environment),
            "recipe": dict(files.recipe),
            "origins": dict(files.sources),
        }
        return {key: with_nulls(value) for key, value in facts.items()}

    def _curve(self, lines: Sequence[Facts], names: Sequence[str] = ()) -> list[dict[str, Any]]:
        values = [{name: line.get(name) for name in names} or {"loss": line.get("valid_loss")} for line in lines]
        return [{**point._asdict(), **more} for point, more in zip(self.points(lines), values, strict=True)]
