"""The loss by which a finished run of a study or a ladder is judged, measured once in a pass over a whole split.

The test split is read with the checkpoint of the lowest validation loss. Without a test split the validation split is
read, and with the last checkpoint: the best one was chosen there, so its loss would be too low.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from anyformer.core.readable_numbers import counted
from anyformer.data.preparation.pipeline import prepared_for
from anyformer.data.preparation.shards import Prepared
from anyformer.data.sources.named_source import relocated
from anyformer.errors import DataError
from anyformer.run import Run
from anyformer.training import Session, Watcher
from anyformer.training.loop.trainer import Trainer
from anyformer.training.observers import restore, tensors_of, validate
from anyformer.training.runs import checkpoint
from anyformer.training.runs.run_folder import RunFolder, finite

Split = Literal["test", "valid"]
Metric = Literal["auto", "test_loss", "valid_loss"]
BATCH_TOKENS = 4096
JUDGED = "judged"
"""Key of the line of metrics.jsonl that holds the result."""


@dataclass(frozen=True)
class Judgement:
    """The loss of a finished run on a whole split."""

    split: Split
    loss: float | None
    """None if it is not finite."""
    terms: Mapping[str, float | None]
    texts: int
    """Number of documents in the split."""
    tokens: int
    """Number of tokens in the split."""

    @property
    def value(self) -> float:
        """The loss; NaN if it is not finite."""
        return math.nan if self.loss is None else self.loss

    @property
    def basis(self) -> str:
        """The split with its size, in words: "the test split (210 texts, 24,581 tokens)"."""
        name = "test" if self.split == "test" else "validation"
        return f"the {name} split ({counted(self.texts, 'texts')}, {counted(self.tokens, 'tokens')})"

    @property
    def checkpoint(self) -> str:
        """The checkpoint that was judged: the "best" by validation loss, or the "last"."""
        return "best" if self.split == "test" else "last"


def judged_split(prepared: Prepared, metric: Metric) -> Split:
    """The split on which runs are judged; raises DataError if it is empty."""
    filled = {name for name, counts in prepared.counts.items() if counts.get("samples")}
    split: Split = "test" if metric != "valid_loss" and (metric == "test_loss" or "test" in filled) else "valid"
    if split not in filled:
        raise DataError(f"the {split} split is empty, so runs cannot be judged. Raise data.{split}, or use more data.")
    return split


class KeepTrainer(Watcher):
    """Watcher that keeps the trainer of a run, so that a finished run need not be loaded again to be judged."""

    trainer: Trainer | None = None

    def began(self, session: Session) -> None:
        self.trainer = session.trainer


def judge_run(folder: Path, metric: Metric, cache: Path | None, trainer: Trainer | None = None) -> Judgement:
    """Judges a finished run once, and stores the result in its metrics; `trainer`: that of the run, if it is there."""
    run = Run(folder)
    if trainer is None:
        assert run.recipe.data is not None
        data = relocated(run.recipe.data, run.environment.get("began_in"))
        prepared = prepared_for(data, cache)
    else:
        prepared = trainer.prepared
    split = judged_split(prepared, metric)
    if (stored := judgement_of(run, split)) is not None:
        return stored
    path = run.checkpoint("best" if split == "test" else "last")
    trainer = trainer or Trainer(run.recipe, prepared)
    restore(trainer, checkpoint.read(path, tensors_of(trainer)), checkpoint.load_state(path))
    # Large batches are faster. A compiled model would be compiled again, and carried states belong to their rows.
    same = trainer.compiled or trainer.loss_module.carried is not None
    tokens = trainer.recipe.train.batch_tokens
    terms = validate(trainer, None, split, tokens if same else max(tokens, BATCH_TOKENS))
    assert terms is not None
    counts = prepared.counts[split]
    judgement = Judgement(
        split=split,
        loss=finite(math.fsum(terms.values())),
        terms={name: finite(value) for name, value in terms.items()},
        texts=counts.get("documents", counts["samples"]),
        tokens=counts["tokens"],
    )
    RunFolder(folder).metric({"step": trainer.progress.step, JUDGED: asdict(judgement)})
    return judgement


def judgement_of(run: Run, split: Split | None = None) -> Judgement | None:
    """The stored result of a run: on one split, or the last one."""
    lines: list[Mapping[str, Any]] = [line[JUDGED] for line in run.metrics() if JUDGED in line]
    return next((Judgement(**line) for line in reversed(lines) if split in (None, line["split"])), None)
