"""How good a model is at its task: the metrics that its objective names, and others that fit."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields, replace
from itertools import islice
from typing import Any, NamedTuple

from anyformer.core import kind_of
from anyformer.core.fields import did_you_mean
from anyformer.data.batching.packings.bucket import Bucket
from anyformer.data.chat.template import encode_conversation
from anyformer.data.preparation.contents import Contents
from anyformer.data.preparation.pipeline import DataSpec, look
from anyformer.data.record import Record
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import DataError, SpecError
from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score
from anyformer.objectives.chat import ChatAnswers
from anyformer.objectives.objective import Objective, Predictor

TOGETHER = 256
"""Texts that are tokenised in one call."""


class Evaluation(NamedTuple):
    """Scores by name, notes to show beside them, and the number of tokens that were evaluated."""

    scores: dict[str, Score]
    notes: list[str]
    tokens: int


def evaluate(job: Job, names: Collection[str] = ()) -> Evaluation:
    """All scores that are meaningful for this model, or only those with the given names."""
    if not job.records:
        raise DataError("there are no records to evaluate on.")
    if all(record.pieces for record in job.records):
        job = replace(job, predictor=_answering(job.predictor))
    views = job.predictor.head_views
    texts, tokens = len(job.records), token_count(job.predictor.tokenizer, job.records)
    scores: dict[str, Score] = {}
    notes: list[str] = []
    known: list[str] = []
    for view in views:
        prefix = f"{view.objective.kind}." if len(views) > 1 else ""
        view_job = replace(job, predictor=replace(view, objective=without_regularisation(view.objective)))
        for metric in metrics_of(view_job):
            metric_names = [prefix + name for name in metric.names]
            known += metric_names
            requested = set(metric_names) & set(names)
            if not requested and (names or not metric.usual(view_job)):
                continue
            if not requested and metric.missing:
                notes.append(f"{', '.join(metric_names)}: left out. pip install 'anyformer[text]'")
                continue
            unrequested = set(metric_names) - requested if requested else set()
            measured = {
                prefix + name: replace(score, texts=texts, tokens=tokens)
                for name, score in metric.measure(view_job).items()
            }
            scores |= {name: score for name, score in measured.items() if name not in unrequested}
    if unknown := [name for name in names if name not in known]:
        model, kind = job.predictor.name, job.predictor.objective.kind
        raise SpecError(f"metric: {model} ({kind}) has no {unknown[0]!r}.{did_you_mean(unknown[0], known)}")
    return Evaluation(scores, notes, tokens)


def _answering(predictor: Predictor) -> Predictor:
    """The predictor of conversations: a language model of texts is scored on the answers, as one that learned from
    conversations is."""
    if predictor.spec.needs_source or not predictor.spec.output_stack.causal or not predictor.contents.plain:
        return predictor
    contents, context = Contents(chat=True), predictor.max_len
    return replace(predictor, objective=ChatAnswers(), contents=contents, packing=Bucket(), context=context)


def token_count(tokenizer: Tokenizer, records: Iterable[Record]) -> int:
    """Number of tokens of all texts, targets and choices; of conversations with what their template writes."""
    records = list(records)
    count = sum(len(encode_conversation(tokenizer, record.pieces)[0]) for record in records if record.pieces)
    others = (record for record in records if not record.pieces)
    texts = (text for record in others for text in (record.text, record.target, *record.choices) if text)
    while group := list(islice(texts, TOGETHER)):
        count += sum(map(len, tokenizer.encode_batch(group)))
    return count


def metrics_of(job: Job) -> list[Metric]:
    """The metrics that the objective names, then every other kind that fits."""
    Metric.load_kinds()
    named = job.predictor.objective.metrics
    others = [cls() for kind, cls in Metric.kinds.items() if kind not in named]
    fitting = [metric for metric in others if isinstance(metric, Metric) and metric.fits(job)]
    return [*(kind_of(Metric, kind)() for kind in named), *fitting]


def held_out(data: DataSpec, split: str) -> Iterator[Record]:
    """The records of one split, as text. Neighbouring pieces of a text are one record, as in training."""
    pieces = list[Record]()
    for record, assigned, goes_on in look(data).with_joins():
        if assigned == split:
            pieces.append(record)
            if not goes_on:
                yield replace(pieces[0], text="".join(piece.text for piece in pieces))
                pieces.clear()


def without_regularisation(objective: Objective) -> Objective:
    """The objective without label smoothing and z-loss, so that its loss is the likelihood of words."""
    names = {field.name for field in fields(objective)}
    off: Any = {name: 0.0 for name in ("smoothing", "z") if name in names}
    return replace(objective, **off) if off else objective
