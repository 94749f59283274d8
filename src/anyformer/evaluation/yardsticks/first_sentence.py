"""The first sentence of a text as its summary."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from anyformer.data.record import Record
from anyformer.evaluation.metrics.score import Scores
from anyformer.evaluation.metrics.summaries import summary_scores
from anyformer.evaluation.yardsticks.yardstick import ComparedScore, Yardstick


@dataclass(frozen=True, kw_only=True)
class FirstSentence(Yardstick, kind="first_sentence"):
    """Answers with the first sentence of the text."""

    title = "the first sentence"
    metric = "summary"
    scores = (ComparedScore("rougel"),)
    needs = "rouge_score"

    def measure(self, train: Sequence[Record], held_out: Sequence[Record]) -> Scores:
        sentences = [re.split(r"(?<=[.!?])\s", record.text.strip(), maxsplit=1)[0] for record in held_out]
        return summary_scores(sentences, [record.target or "" for record in held_out])
