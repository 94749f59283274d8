"""Few-shot prompting: demonstrations in front of a query; the model goes on and no weight changes (arXiv 2005.14165)

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
    """How demonstrations and a query are written down."""

    task: str = ""
    """What is asked for, in front of everything."""
    before: str = ""
    """Stands before every input."""
    arrow: str = " -> "
    """Stands between an input and its output; the prompt ends with it."""
    end: str = "\n"
    """Stands after every output; a good stop string."""

    def text(self, demonstrations: Sequence[Demonstration], query: str) -> str:
        """The prompt."""
        shown = "".join(f"{self.before}{given}{self.arrow}{wanted}{self.end}" for given, wanted in demonstrations)
        # words begin with their space in most vocabularies: one at the end would be a word of its own
        return f"{self.task}{shown}{self.before}{query}{self.arrow}".rstrip(" ")

    def tokens(
        self,
        demonstrations: Sequence[Demonstration],
        query: str,
        encode: Callable[[str], Sequence[int]],
        *,
        room: int,
    ) -> list[int]:
        """The prompt as ids, with as many of the demonstrations, from the last backwards, as fit into `room`."""
        for first in range(len(demonstrations) + 1):
            ids = list(encode(self.text(demonstrations[first:], query)))
            if len(ids) <= room:
                return ids
        raise SpecError(
            problems=[Problem("query", f"has {len(ids)} tokens without demonstrations, room is for {room}.")]
        )
