"""Several objectives for one model, each with a head of its own.

L = sum_i w_i L_i, or w_i L_i / log(n_i) with n_i classes: w_i at a blind guess          (MUPPET, arXiv 2101.11038)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from anyformer.core import HeadSpec, HeadView, Model, ModelSpec, Positive, Spec, kind_of
from anyformer.data.batching.batch import Batch
from anyformer.data.tokenizers.vocabulary import Vocabulary
from anyformer.errors import DataError, SpecError, at
from anyformer.objectives.objective import Loss, Objective
from anyformer.objectives.words import PARTS, parts_together
from anyformer.parts.heads.several import Several

M = TypeVar("M")


@dataclass(frozen=True, kw_only=True)
class MixtureTask(Spec):
    """One objective of a mixture."""

    objective: Objective
    """The objective of the task."""
    weight: Positive = 1.0
    """Weight of its terms."""
    scale: Literal["one", "log_classes"] = "one"
    """log_classes: divides by the logarithm of its number of classes, the loss of a blind guess."""

    head: str | None = None
    """Tasks that name the same one share a head, such as the words of two corruptions; else each has its own."""

    def check(self) -> None:
        if self.scale == "log_classes" and (self.objective.outcomes or 1) < 2:
            raise SpecError(
                f'scale: {self.objective.kind} has no fixed number of classes. Set scale = "one" and give it a weight.'
            )

    @property
    def factor(self) -> float:
        """Factor of its sums."""
        return self.weight / math.log(self.objective.outcomes or 1) if self.scale == "log_classes" else self.weight


@dataclass(frozen=True, kw_only=True)
class Mixture(Objective, kind="mixture"):
    """Several objectives for one model, each with a head of its own."""

    tasks: dict[str, MixtureTask]
    """The objectives by name, in the order of the numbers in `RowLabels.task`."""
    rows: Literal["all", "task"] = "all"
    """all: every task sees every row; task: each row belongs to the task of `RowLabels.task`."""

    @classmethod
    def examples(cls) -> "tuple[Mixture, ...]":
        tasks = {
            kind: MixtureTask(objective=kind_of(Objective, kind).examples()[0]) for kind in ("classify", "token_labels")
        }
        return (cls(tasks=tasks),)

    def check(self) -> None:
        if not self.tasks:
            raise SpecError("tasks: a mixture needs at least one.")
        if bad := [name for name in (*self.tasks, *self._heads().values()) if not name or "." in name]:
            raise SpecError(f"tasks: {bad[0]!r} must be a word without dots.")

    def adapt(self, model: ModelSpec) -> ModelSpec:
        head, heads, names = model.output_stack.head, dict[str, HeadSpec](), self._heads()
        known = set(head.views) == set(names.values())
        for task, name in names.items():
            with at(f"tasks.{task}"):
                model = self.tasks[task].objective.adapt(model.with_head(head.named(name) if known else head))
                if heads.setdefault(name, model.output_stack.head) != model.output_stack.head:
                    raise SpecError(f"head={name!r} is shared with a task that needs another. Give it its own.")
        return model.with_head(Several(heads=heads, main=next(iter(heads))))

    def companions(self, model: ModelSpec) -> Mapping[str, ModelSpec]:
        return {
            f"{name}.{companion}": spec
            for name, task in self.tasks.items()
            for companion, spec in task.objective.companions(model).items()
        }

    def tie(self, models: Mapping[str, Model]) -> None:
        for name, task in self.tasks.items():
            task.objective.tie({**_of_task(name, models), "model": models["model"]})

    @property
    def pretrained(self) -> Mapping[str, str]:
        return {
            f"{name}.{model}": folder
            for name, task in self.tasks.items()
            for model, folder in task.objective.pretrained.items()
        }

    def check_pretrained(self, name: str, theirs: ModelSpec, model: ModelSpec) -> None:
        task, _, inner = name.partition(".")
        self.tasks[task].objective.check_pretrained(inner, theirs, model)

    def projections(self, model: ModelSpec, theirs: Mapping[str, ModelSpec]) -> Mapping[str, Model]:
        return {
            f"{name}.{inner}": projection
            for name, task in self.tasks.items()
            for inner, projection in task.objective.projections(model, _of_task(name, theirs)).items()
        }

    @property
    def reads_taps(self) -> bool:
        return any(task.objective.reads_taps for task in self.tasks.values())

    @property
    def heads_vary(self) -> bool:
        return self.rows == "task" or any(task.objective.heads_vary for task in self.tasks.values())

    @property
    def parts(self) -> tuple[Objective, ...]:
        return tuple(part for task in self.tasks.values() for part in task.objective.parts)

    def views(self, model: Model) -> list[tuple[Objective, Model]]:
        return [view for name, task in self.tasks.items() for view in task.objective.views(self._view(name, model))]

    @property
    def relays(self) -> bool:
        return self.rows == "task" or any(task.objective.relays for task in self.tasks.values())

    def prepare(self, batch: Batch, words: Vocabulary, rng: torch.Generator) -> Batch:
        """The rows of each task, prepared; `row` is the row of the batch that each came from, for micro-batches."""
        parts = {}
        for name, rows in self._rows(batch).items():
            ready = self.tasks[name].objective.prepare(batch.take(rows), words, rng)
            size = len(ready.tokens)  # an objective may lay texts out in more or fewer rows
            parts[name] = replace(ready, row=rows[torch.arange(size) * len(rows) // size])
        return replace(batch, row=torch.arange(len(batch.tokens)), parts=parts)

    def counts(self, batch: Batch) -> Mapping[str, Tensor]:
        every = {name: dict(self.tasks[name].objective.counts(part)) for name, part in batch.parts.items()}
        parts = [counts.pop(PARTS) for counts in every.values()]
        mine = {f"{name}.{term}": weight for name, counts in every.items() for term, weight in counts.items()}
        return {**mine, PARTS: torch.stack(parts).sum()} if parts else mine

    def loss(self, models: Mapping[str, Model], batch: Batch, rng: torch.Generator) -> Loss:
        every = {}
        for name, part in batch.parts.items():
            seen = {**_of_task(name, models), "model": self._view(name, models["model"])}
            every[name] = self.tasks[name].objective.loss(seen, part, rng)
        terms = {
            f"{name}.{term_name}": term.scaled(self.tasks[name].factor)
            for name, loss in every.items()
            for term_name, term in loss.items()
            if term_name != PARTS
        }
        return {**terms, **parts_together(every.values())}

    def _heads(self) -> dict[str, str]:
        """The name of each task's head."""
        return {name: task.head or name for name, task in self.tasks.items()}

    def _view(self, task: str, model: Model) -> HeadView:
        """The model with the head of a task."""
        return HeadView(model, model.output_head().named(self._heads()[task]))

    def _rows(self, batch: Batch) -> dict[str, Tensor]:
        """The rows of each task that has any."""
        if self.rows == "all":
            return {name: torch.arange(len(batch.tokens)) for name in self.tasks}
        task = batch.labels.task
        if task is None or ((task < 0) | (task >= len(self.tasks))).any():
            raise DataError(f'mixture: rows = "task" needs a task from 0 to {len(self.tasks) - 1} in every row.')
        rows = {name: (task == number).nonzero()[:, 0] for number, name in enumerate(self.tasks)}
        return {name: places for name, places in rows.items() if len(places)}


def _of_task(task: str, models: Mapping[str, M]) -> dict[str, M]:
    """The companions of a task, by their names within it."""
    prefix = f"{task}."
    return {name.removeprefix(prefix): model for name, model in models.items() if name.startswith(prefix)}
