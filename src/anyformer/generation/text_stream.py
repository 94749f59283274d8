"""Text as it is generated, in pieces that never split a character nor contain part of a stop string."""

from collections.abc import Callable, Sequence

from anyformer.errors import Problem, SpecError
from anyformer.generation.token_stream import Chunk

Decode = Callable[[Sequence[int]], str]

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 4
"""Bytes of a UTF-8 character, hence at most as many tokens."""


class Writer:
    """The text of one request while it is generated."""

    def __init__(self, decode: Decode, strings: Sequence[str] = ()):
        if "" in strings:
            raise SpecError(
                problems=[Problem("stop", "an empty stop string would stop before the first token. Remove it.")]
            )
        self.decode, self.strings = decode, tuple(strings)
        self.stopped = False
        self._tokens: list[int] = []
        self._known, self._read = 0, 0
        self._held = ""

    def add(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete."""
        return "".join([self._add(token) for token in tokens])

    def _add(self, token: int) -> str:
        """The text of a token may depend on the token before, so both are decoded together."""
        self._tokens.append(token)
        before = self.decode(self._tokens[self._known : self._read])
        after = self.decode(self._tokens[self._known :])
        waiting = len(self._tokens) - self._read < _LONGEST_CHARACTER
        if after.endswith(_BROKEN) and waiting:
            return ""
        self._known, self._read = self._read, len(self._tokens)
        return self._show(after[len(before) :])

    def end(self) -> str:
        """The text that was held back, once no more tokens follow."""
        if self.stopped:
            return ""
        before = self.decode(self._tokens[self._known : self._read])
        rest = self._show(self.decode(self._tokens[self._known :])[len(before) :])
        self._read = len(self._tokens)
        held, self._held = self._held, ""
        return rest + held  # empty if the rest contains a stop string

    def _show(self, piece: str) -> str:
        if self.stopped:
            return ""
        text = self._held + piece
        matches = [(text.find(string), string) for string in self.strings]
        if ends := [(place + len(string), place) for place, string in matches if place >= 0]:
            self.stopped, self._held = True, ""
            return text[: min(ends)[1]]  # the match that ends first, however the text is split into tokens
        held = max((_overlap(text, string) for string in self.strings), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


class Writers:
    """The texts of many requests: the `watch` of `Engine.stream`, and the piece of text of each chunk."""

    def __init__(self, decode: Decode, strings: Sequence[str] = ()):
        Writer(decode, strings)  # checks the stop strings
        self.decode, self.strings = decode, tuple(strings)
        self._writers: dict[int, Writer] = {}
        self._pieces: dict[int, str] = {}

    def __call__(self, row: int, tokens: Sequence[int]) -> bool:
        writer = self._writers.setdefault(row, Writer(self.decode, self.strings))
        self._pieces[row] = self._pieces.get(row, "") + writer.add(tokens)
        return writer.stopped

    def piece(self, chunk: Chunk) -> str:
        """The text of a chunk; if it is the last, with the text that was held back."""
        text = self._pieces.pop(chunk.row, "")
        if chunk.finish is None:
            return text
        writer = self._writers.pop(chunk.row, None)
        return text if writer is None else text + writer.end()


def _overlap(text: str, string: str) -> int:
    """Length of the longest suffix of the text that is a proper prefix of the string."""
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)
