"""Summaries that people wrote: the body of a docstring -> its first line          (PEP 257)

The convention asks for one line that sums up, an empty line, and the rest.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from anyformer.core import Count
from anyformer.data.record import Record, SourceSpec
from anyformer.data.sources.docstrings import docstrings, library_fingerprint


@dataclass(frozen=True, kw_only=True)
class DocstringSummaries(SourceSpec, kind="docstring_summaries"):
    """Docstring of Python's standard library -> its first line: about 3,000 summaries; needs no download."""

    shortest: Count = 5
    """Words that a body must have, to be worth a summary."""

    def records(self) -> Iterator[Record]:
        seen = set[str]()  # a body that was copied from class to class keeps its first summary
        for record in docstrings():
            summary, _, body = (part.strip("\n") for part in record.text.partition("\n\n"))
            if "\n" not in summary and len(body.split()) >= self.shortest and body not in seen:
                seen.add(body)
                yield replace(record, text=body, target=summary.strip())

    def fingerprint(self) -> str:
        return library_fingerprint(self.digest())
