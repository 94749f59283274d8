"""Size, cost, speed and scores of runs, measured side by side for one table."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from anyformer.core import Work
from anyformer.core.costs import total_cost
from anyformer.data.record import Record
from anyformer.errors import DataError
from anyformer.evaluation.evaluating import evaluate
from anyformer.evaluation.metrics.metric import Job
from anyformer.evaluation.metrics.score import Score
from anyformer.generation.decoding import for_writing
from anyformer.generation.engine import Engine, Request
from anyformer.objectives.objective import Predictor
from anyformer.ops.devices import synchronizer
from anyformer.run import Run

ROUNDS, NEW_TOKENS, ROWS = 5, 32, 8
"""Rounds of timing, tokens that are generated in each, and rows that an encoder reads at a time."""
MODEL_FILE = "model.safetensors"


@dataclass(frozen=True)
class Measurement:
    """One run in the table of `shrink`."""

    run: str
    params: int
    nonzero: int
    """Parameters that are not exactly 0."""
    file_bytes: int
    """Size of the stored model."""
    memory_bytes: int
    """Weights and decoding state of one sequence as long as the context."""
    flops_per_token: float
    """FLOPs of the forward pass over one sequence as long as the context, for each token."""
    tokens_per_s: float
    """Tokens generated one by one in a batch of one; of a model that does not decode, tokens read."""
    scores: Mapping[str, Score]

    def to_dict(self) -> dict[str, Any]:
        """The output of `shrink --json`."""
        return {**asdict(self), "scores": {name: score.to_dict() for name, score in self.scores.items()}}


def measured(runs: Mapping[str, Run], limit: int | None = None, device: str = "auto") -> dict[str, Measurement]:
    """Every run on the same records of the first one's data: its test split, or its validation split."""
    records = held_out_records(next(iter(runs.values())), limit)
    predictors = {name: run.trained(device) for name, run in runs.items()}
    scores = {
        name: evaluate(Job(predictor=predictor, records=records)).scores if records else {}
        for name, predictor in predictors.items()
    }
    speeds = speeds_of({name: reader_of(predictor) for name, predictor in predictors.items()})
    return {name: _measurement(run, predictors[name], speeds[name], scores[name]) for name, run in runs.items()}


def held_out_records(run: Run, limit: int | None) -> list[Record]:
    """Records that the run was not trained on; empty if its data are not there any more."""
    for split in ("test", "valid"):
        try:
            return list(islice(run.records(split=split), limit))
        except DataError:
            continue
    return []


def _measurement(run: Run, predictor: Predictor, speed: float, scores: Mapping[str, Score]) -> Measurement:
    model, spec, context = predictor.model, predictor.spec, predictor.context
    tensors = [*model.parameters(), *model.buffers()]
    work = Work(length=context, source=context if spec.needs_source else None)
    total, sides = total_cost(spec, work), 2 if spec.needs_source else 1
    return Measurement(
        run=str(run.folder),
        params=total.params,
        nonzero=sum(int(tensor.count_nonzero()) for tensor in model.parameters()),
        file_bytes=(Path(run.checkpoint()) / MODEL_FILE).stat().st_size,
        memory_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors) + total.state_bytes,
        flops_per_token=total.flops_forward / (sides * context),
        tokens_per_s=speed,
        scores=scores,
    )


def reader_of(predictor: Predictor) -> Callable[[], int]:
    """A function that generates some tokens, or reads some if the model cannot generate, and returns their number."""
    model, spec, words = predictor.model, predictor.spec, predictor.tokenizer.words
    ids = [words.size // 2] * max(1, min(predictor.context, spec.input_stack.max_len) // 2)
    if not spec.decodes:
        tokens = torch.tensor([ids] * ROWS, device=predictor.device)
        return lambda: _read(predictor, tokens)
    new = max(1, min(NEW_TOKENS, predictor.max_len - (1 if spec.needs_source else len(ids)) - 1))
    engine = Engine(for_writing(model), max_len=predictor.max_len, bos=words.bos)
    request = Request(source=ids) if spec.needs_source else Request(prompt=ids)
    return lambda: len(engine.generate([request], max_new=new)[0].tokens)


@torch.no_grad()
def _read(predictor: Predictor, tokens: torch.Tensor) -> int:
    predictor.model(tokens)
    synchronizer(predictor.device)()
    return tokens.numel()


def speeds_of(readers: Mapping[str, Callable[[], int]]) -> dict[str, float]:
    """Tokens per second, the median of `ROUNDS` in which all take turns, so that a busy machine slows down all."""
    for read in readers.values():
        read()  # traces, compiles and allocates
    rates: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(ROUNDS):
        for name, read in readers.items():
            started = time.perf_counter()
            tokens = read()
            rates[name].append(tokens / (time.perf_counter() - started))
    return {name: median(values) for name, values in rates.items()}
