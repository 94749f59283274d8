"""The most frequent class of the training texts, for every text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyformer.data.record import Record
from anyformer.evaluation.metrics.score import Scores
from anyformer.evaluation.yardsticks.class_chances import scores_of
from anyformer.evaluation.yardsticks.yardstick import ACCURACY, Yardstick


@dataclass(frozen=True, kw_only=True)
class MajorityClass(Yardstick, kind="majority"):
    """Answers the most frequent class; its probabilities are the shares of the classes in the training texts."""

    title = "the most frequent class"
    metric = "classes"
    scores = (ACCURACY,)

    def measure(self, train: Sequence[Record], held_out: Sequence[Record]) -> Scores:
        counts = Counter(str(record.label) for record in train)
        chances = np.array([counts[name] for name in sorted(counts)], dtype=np.float64) / counts.total()
        return scores_of(np.tile(chances, (len(held_out), 1)), sorted(counts), held_out)
