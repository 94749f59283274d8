"""The tag that each word had most often in training; for an unknown word, the most frequent tag of all."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyformer.data.record import Record
from anyformer.evaluation.metrics.classes import class_scores
from anyformer.evaluation.metrics.score import Scores
from anyformer.evaluation.yardsticks.yardstick import ACCURACY, Yardstick


@dataclass(frozen=True, kw_only=True)
class FrequentTag(Yardstick, kind="frequent_tag"):
    """Answers with the most frequent tag of each word."""

    title = "the most frequent tag of a word"
    metric = "tags"
    scores = (ACCURACY,)

    def measure(self, train: Sequence[Record], held_out: Sequence[Record]) -> Scores:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for record in train:
            for word, tag in zip(record.text.split(), record.tags, strict=False):
                counts[word][tag] += 1
        every = sum(counts.values(), Counter[str]())
        usual = {word: bag.most_common(1)[0][0] for word, bag in counts.items()}
        default = every.most_common(1)[0][0]
        names = sorted({*every, *(tag for record in held_out for tag in record.tags)})
        places = {name: place for place, name in enumerate(names)}
        rows = [
            (places[tag], places[usual.get(word, default)], number)
            for number, record in enumerate(held_out)
            for word, tag in zip(record.text.split(), record.tags, strict=False)
        ]
        right, predicted, unit = np.array(rows, dtype=np.int64).T
        return class_scores(right, predicted, len(names), unit=unit)
