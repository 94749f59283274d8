"""Labels without an example in validation or test: how well they are recognised stays unknown."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from anyformer.core import Count
from anyformer.data.checks.check import NAMED, Check, Examination, Facts, quote

NAMES = {"valid": "validation", "test": "test"}


@dataclass(frozen=True, kw_only=True)
class UnseenLabels(Check, kind="unseen_labels"):
    """Labels of training without an example in validation or test."""

    fewest: Count = 2
    """Examples in training from which on a label is reported: one may be a typo."""
    labels: Count = 1 << 16
    """Largest number of different labels that are remembered."""

    def examine(self, facts: Facts) -> Examination:
        splits = {"train": Counter[str](), **{split: Counter[str]() for split in NAMES}}
        while item := (yield):
            record, counts = item.record, splits[item.split]
            for label in record.labels:
                if label in counts or len(counts) < self.labels:
                    counts[label] += 1
        train = splits["train"]
        if facts.contents.numbers or facts.contents.choices or len(train) >= self.labels:
            return []
        missing: dict[str, list[str]] = {}
        for split in (split for split in NAMES if splits[split]):
            unseen = [label for label, count in train.most_common() if count >= self.fewest]
            if unseen := [label for label in unseen if label not in splits[split]]:
                missing.setdefault(_either(unseen), []).append(split)
        if not missing:
            return []
        parts = [
            f"no {' or '.join(NAMES[split] for split in where)} text is labelled {names}"
            for names, where in missing.items()
        ]
        keys = " and ".join(f"data.{split}" for split in NAMES if any(split in where for where in missing.values()))
        advice = f"Raise {keys}, or add examples, to see how well they are recognised."
        return [self.finding(f"{'; '.join(parts)}. {advice}")]


def _either(labels: Sequence[str]) -> str:
    """The first labels: 'a', 'b' or 'c'."""
    rest = [f"one of {len(labels) - NAMED} others"] if len(labels) > NAMED else []
    *names, last = [*map(quote, labels[:NAMED]), *rest]
    return f"{', '.join(names)} or {last}" if names else last
