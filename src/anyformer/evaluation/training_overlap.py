"""Texts of an evaluation that the model was trained on: scores on them measure memorisation."""

from collections import Counter
from collections.abc import Sequence

from anyformer.core.readable_numbers import part
from anyformer.data.checks.overlap import Overlap, OverlapSearch
from anyformer.data.preparation.contents import digest
from anyformer.data.preparation.pipeline import DataSpec, look
from anyformer.data.record import Record


def training_overlap(data: DataSpec, records: Sequence[Record], name: str) -> str | None:
    """A warning if texts of `records`, or long parts of them, are in the training split of `data`; otherwise None.
    `name`: that of the run. Read as a stream: the training data may be larger than memory."""
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
