"""One class under several spellings: labels that differ in case or spaces alone."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from anyformer.core import Count
from anyformer.core.readable_numbers import counted, listed
from anyformer.data.checks.check import NAMED, Check, Examination, Facts, Places, quote


@dataclass(frozen=True, kw_only=True)
class Spellings(Check, kind="spellings"):
    """Labels that differ only in case or spaces, and so are classes of their own."""

    labels: Count = 1 << 16
    """Largest number of different labels that are remembered."""

    def examine(self, facts: Facts) -> Examination:
        counts, places = Counter[str](), dict[str, Places]()
        while item := (yield):
            record = item.record
            for label in record.labels:
                if label in counts or len(counts) < self.labels:
                    counts[label] += 1
                    places.setdefault(label, Places()).add(record.where)
        classes = defaultdict[str, list[str]](list)
        for label, _ in counts.most_common():
            classes[" ".join(label.split()).casefold()].append(label)
        several = [spellings for spellings in classes.values() if len(spellings) > 1]
        if not several:
            return []
        names = [", ".join(f"{quote(each)} ({counts[each]:,})" for each in same) for same in several]
        text = f"{counted(len(several), 'labels')} in several spellings, each a class of its own"
        where = (place for same in several for spelling in same[1:] for place in places[spelling].where)
        return [self.finding(f"{text}: {listed(names, NAMED, '; ')}. Write each class in one way.", where)]
