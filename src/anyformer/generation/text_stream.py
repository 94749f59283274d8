"""Text as it is written, and where it stops: pieces that never break a character nor show part of a stop string."""

from collections.abc import Callable, Sequence

from anyformer.errors import Problem, SpecError
from anyformer.generation.token_stream import Chunk

Decode = Callable[[Sequence[int]], str]

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 4
"""Bytes, and so at most as many tokens."""


class Writer:
    """The text of one request as it grows."""

    def __init__(self, decode: Decode, strings: Sequence[str] = ()):
        if "" in strings:
            raise SpecError(problems=[Problem("stop", "an empty stop string would stop before the first word.")])
        self.decode, self.strings = decode, tuple(strings)
        self.stopped = False
        self._tokens: list[int] = []
        self._known, self._read = 0, 0
        self._held = ""

    def add(self, tokens: Sequence[int]) -> str:
        """What can be shown now."""
        return "".join([self._add(token) for token in tokens])

    def _add(self, token: int) -> str:
        """A word may look different after another, so it is decoded together with the last."""
        self._tokens.append(token)
        before = self.decode(self._tokens[self._known : self._read])
        after = self.decode(self._tokens[self._known :])
        waiting = len(self._tokens) - self._read < _LONGEST_CHARACTER
        if after.endswith(_BROKEN) and waiting:
            return ""
        self._known, self._read = self._read, len(self._tokens)
        return self._show(after[len(before) :])

    def end(self) -> str:
        """What was held back, once nothing more will come."""
        if self.stopped:
            return ""
        before = self.decode(self._tokens[self._known : self._read])
        rest = self._show(self.decode(self._tokens[self._known :])[len(before) :])
        self._read = len(self._tokens)
        held, self._held = self._held, ""
        return rest + held  # nothing is held by one that stopped just now

    def _show(self, piece: str) -> str:
        if self.stopped:
            return ""
        text = self._held + piece
        found = [(text.find(string), string) for string in self.strings]
        if ends := [(place + len(string), place) for place, string in found if place >= 0]:
            self.stopped, self._held = True, ""
            return text[: min(ends)[1]]  # the one complete first, so that it does not matter how words are cut
        keep = max((_overlap(text, string) for string in self.strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


class Writers:
    """The texts of many requests: give it to `Engine.stream` as `watch`, and ask it for the piece of each chunk."""

    def __init__(self, decode: Decode, strings: Sequence[str] = ()):
        Writer(decode, strings)  # says at once what is wrong
        self.decode, self.strings = decode, tuple(strings)
        self._writers: dict[int, Writer] = {}
        self._pieces: dict[int, str] = {}

    def __call__(self, row: int, tokens: Sequence[int]) -> bool:
        writer = self._writers.setdefault(row, Writer(self.decode, self.strings))
        self._pieces[row] = self._pieces.get(row, "") + writer.add(tokens)
        return writer.stopped

    def piece(self, chunk: Chunk) -> str:
        """The text of a chunk, with what was held back if it is the last."""
        shown = self._pieces.pop(chunk.row, "")
        if chunk.finish is None:
            return shown
        writer = self._writers.pop(chunk.row, None)
        return shown if writer is None else shown + writer.end()


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of the text with which the string may begin."""
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)
