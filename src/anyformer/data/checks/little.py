"""Too little to train on: less than one sequence."""

from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.data.checks.check import Check, Facts, Finding, Item, Watch


@dataclass(frozen=True, kw_only=True)
class Little(Check, kind="little"):
    """Fewer training tokens than one packed sequence."""

    sampled = True

    def start(self, facts: Facts) -> Watch:
        return _Watch(facts.context if facts.longest is None else 0)


class _Watch(Watch):
    def __init__(self, context: int):
        self.context, self.tokens, self.seen = context, 0, False

    def see(self, item: Item) -> None:
        self.seen = True
        if item.split == "train":
            self.tokens += len(item.tokens) + len(item.target)

    def findings(self) -> Iterator[Finding]:
        if self.seen and self.tokens < self.context:
            text = f"only {self.tokens:,} tokens to train on, less than one sequence of context={self.context}"
            yield Finding("little", f"{text}: the rest of it is padding. Give more text, or lower context.")
