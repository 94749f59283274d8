"""Labels with little information (nearly all the same, all different, or with a single example), or decimal commas."""

import re
from collections import Counter
from dataclasses import dataclass

from anyformer.core import Chance
from anyformer.core.readable_numbers import counted, listed, part
from anyformer.data.checks.check import NAMED, Check, Examination, Facts, Places, quote

MOST, FEW = 1 << 16, 20


@dataclass(frozen=True, kw_only=True)
class Labels(Check, kind="labels"):
    """Labels that are nearly constant, or different for every record, or have one example. Constant ones are refused
    before."""

    most: Chance = 0.95
    """Share of the most frequent label above which a constant answer is hard to beat."""

    def examine(self, facts: Facts) -> Examination:
        counts, places = Counter[str](), dict[str, Places]()
        while item := (yield):
            record = item.record
            for label in record.labels:
                if label in counts or len(counts) < MOST:
                    counts[label] += 1
                    places.setdefault(label, Places()).add(record.where)
        total = counts.total()
        if len(counts) < 2:
            return []
        label, count = counts.most_common(1)[0]
        if count > self.most * total:
            text = f"{part(count, total, 'labels')} are {quote(label)}: always saying so is hard to beat."
            return [self.finding(text, places[next(name for name in counts if name != label)].where)]
        if total < FEW or facts.contents.numbers or facts.contents.choices:
            return []
        commas = [label for label in counts if re.fullmatch(r"[-+]?\d+,\d+", label.strip())]
        if commas and all(re.fullmatch(r"[-+]?\d+(,\d+)?", label.strip()) for label in counts):
            text = (
                f"labels such as {quote(commas[0])} are numbers with a decimal comma, so each of {len(counts):,} is a"
            )
            point = commas[0].strip().replace(",", ".")
            return [self.finding(f"{text} class. To predict a number, write {point}.", places[commas[0]].where)]
        several = [
            label for label in counts if "," in label and all(part.strip() in counts for part in label.split(","))
        ]
        if several:
            text = f"labels such as {quote(several[0])} are several labels: each of {len(several):,} combinations"
            return [
                self.finding(f"{text} is a class of its own, since a text has one label.", places[several[0]].where)
            ]
        if len(counts) > total / 2:
            text = f"{len(counts):,} different labels in {total:,} records: is this the column of the label?"
            return [self.finding(text, places[label].where)]
        single = [label for label, count in counts.items() if count == 1]
        if not single or facts.contents.tags or len(single) > len(counts) / 2:
            return []
        named = listed([*map(quote, single)], NAMED)
        text = f"{counted(len(single), 'labels')} with one example: {named}. Is it a typo, or the header of the table?"
        return [self.finding(text, (place for label in single for place in places[label].where))]
