"""Texts of an evaluation that the model was trained on: scores on them measure memorisation."""

from collections import Counter
from collections.abc import Sequence

from anyformer.core.readable_numbers import human, part
from anyformer.data.checks.overlap import Overlap, OverlapSearch
from anyformer.data.preparation.contents import digest
from anyformer.data.preparation.pipeline import DataSpec, look
from anyformer.data.record import Record

MOST_COMPARED = 30_000_000
"""Largest number of training tokens that evaluated texts are compared with: that takes a second for each million."""


def training_overlap(data: DataSpec, tokens: int, records: Sequence[Record], name: str) -> str | None:
    """A warning if texts of `records`, or long parts of them, are in the training split of `data`, or if its tokens are
    too many to look; otherwise None. `name`: that of the run. Read as a stream: the data may be larger than memory."""
    if tokens > MOST_COMPARED:
        return not_compared(name, f"{human(tokens)} tokens")
    waiting = Counter(digest(record.text) for record in records)
    copies, search, view = 0, OverlapSearch(Overlap()), look(data)
    for record in records:
        search.see(record, "valid")
    for record, split, _ in view.with_joins():
        if split == "train" and not ((mark := digest(record.text)) in waiting and view.splitter.leaks([record])[0]):
            copies += waiting.pop(mark, 0)
            search.see(record, "train")
    if copies:
        return f"{part(copies, len(records), 'texts')} were in the training data of {name}; scores on them are too good"
    parts, _ = search.shared() if "overlap" not in data.source.expected else ([], [])
    if not parts:
        return None
    text = f"parts of these texts were in the training data of {name}, but for case, digits, spaces and punctuation"
    return f"{text}: {', '.join(parts)}; scores on them are too good"


def not_compared(name: str, reason: str) -> str:
    """A warning that the training data of a run were not searched for evaluated texts."""
    return f"not compared with the training data of {name}, which may have the same texts: {reason}"
