"""Right spans: precision, recall and F1 of names that are tagged word by word, as in IOB, IOB2 and IOBES.

F1 = 2 TP / (spans predicted + spans in the data): a span counts if its words and its type are both right. Spans begin
and end as in the script of the CoNLL-2000 shared task, which also reads tags in a wrong order (I-PER after O).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from anyformer.evaluation.metrics.metric import Job, Metric
from anyformer.evaluation.metrics.score import Score, Scores, require_items
from anyformer.inference.classifying import predict
from anyformer.statistics.intervals import ratio

Span = tuple[int, int, str]
"""First word, first word behind it, type."""
OUTSIDE = "O"


@dataclass(frozen=True, kw_only=True)
class SpanMetrics(Metric, kind="spans"):
    """Precision, recall and F1 of spans in IOB tags; texts are resampled."""

    names = ("span_f1", "span_precision", "span_recall")

    def fits(self, job: Job) -> bool:
        tags = set(job.predictor.contents.tags)
        return any(tag[:2] in ("B-", "I-") for tag in tags) and all(tag == OUTSIDE or tag[1:2] == "-" for tag in tags)

    def measure(self, job: Job) -> Scores:
        names = job.predictor.contents.tags
        counts: dict[int, tuple[int, int, int]] = {}  # record -> spans that are right, predicted, in the data
        for predictions in predict(job.predictor, job.records, labelled=True):
            labels = predictions.records.batch.labels.tags
            assert labels is not None
            best = predictions.scores.view(*labels.shape, -1).argmax(-1)
            for place, right, chosen in zip(predictions.records.rows, labels.cpu(), best.cpu(), strict=True):
                there = torch.nonzero(right >= 0)[:, 0]
                true, ours = (set(spans([names[tag] for tag in tags[there].tolist()])) for tags in (right, chosen))
                counts[place] = len(true & ours), len(ours), len(true)
            job.on_progress(len(counts))
        require_items(list(counts))
        right_spans, predicted, wanted_spans = np.array([counts[place] for place in sorted(counts)]).T
        scores = {
            "span_f1": ratio(2 * right_spans, predicted + wanted_spans),
            "span_precision": ratio(right_spans, predicted),
            "span_recall": ratio(right_spans, wanted_spans),
        }
        items = f"{wanted_spans.sum():,} spans, {predicted.sum():,} predicted"
        return {name: Score.of(score, len(counts), "texts", items) for name, score in scores.items()}


def spans(tags: Sequence[str]) -> Iterator[Span]:
    """The spans of the tags of a text."""
    start, before, kind = 0, OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, name = tag.partition("-")
        begins = prefix in ("B", "S", "U") or before in (OUTSIDE, "E", "L", "S", "U") or name != kind
        if before != OUTSIDE and (prefix == OUTSIDE or begins):
            yield start, place, kind
        if begins:
            start = place
        before, kind = prefix, name
