"""Few-shot prompting: demonstrations before a query; the model continues, and no weight changes (arXiv 2005.14165)

task, then input -> output for each demonstration, then the input of the query.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anyformer.core import Spec
from anyformer.errors import Problem, SpecError

Demonstration = tuple[str, str]
"""An input and its output."""


@dataclass(frozen=True, kw_only=True)
class FewShot(Spec):
    """The layout of a prompt with demonstrations and a query."""

    task: str = ""
    """Description of the task, at the start of the prompt."""
    before: str = ""
    """Text before every input."""
    arrow: str = " -> "
    """Text between an input and its output; the prompt ends with it."""
    end: str = "\n"
    """Text after every output; a good stop string."""

    def text(self, demonstrations: Sequence[Demonstration], query: str) -> str:
        """The prompt as text."""
        shown = "".join(f"{self.before}{source}{self.arrow}{target}{self.end}" for source, target in demonstrations)
        # in most vocabularies a word includes the space before it, so a space at the end would be a token of its own
        return f"{self.task}{shown}{self.before}{query}{self.arrow}".rstrip(" ")

    def tokens(
        self, demonstrations: Sequence[Demonstration], query: str, encode: Callable[[str], Sequence[int]], *, room: int
    ) -> list[int]:
        """The prompt as token ids, with as many of the last demonstrations as fit into `room` tokens."""
        for first in range(len(demonstrations) + 1):
            ids = list(encode(self.text(demonstrations[first:], query)))
            if len(ids) <= room:
                return ids
        raise SpecError(
            problems=[Problem("query", f"has {len(ids)} tokens without demonstrations, but room={room}. Shorten it.")]
        )
