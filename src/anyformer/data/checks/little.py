"""Too little to train on: less than one sequence."""

from dataclasses import dataclass

from anyformer.core.readable_numbers import counted
from anyformer.data.checks.check import Check, Examination, Facts


@dataclass(frozen=True, kw_only=True)
class Little(Check, kind="little"):
    """Fewer training tokens than one packed sequence."""

    sampled = True

    def examine(self, facts: Facts) -> Examination:
        tokens = seen = 0
        while item := (yield):
            seen += 1
            tokens += len(item.tokens) + len(item.target) if item.split == "train" else 0
        if not seen or facts.longest is not None or tokens >= facts.context:
            return []
        text = f"only {counted(tokens, 'tokens')} to train on, less than one sequence of context={facts.context}"
        return [self.finding(f"{text}: the rest of it is padding. Give more text, or lower context.")]
