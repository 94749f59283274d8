"""Which tokens begin a word, read from the vocabulary; used by whole-word masking.

A word is the white space before it and letters and digits, or one sign. A token may begin or end inside of one, so
what counts is the token's first character and the last one of the token before it:

starts(i) = first(i) begins one anyhow, or a space behind no space, or a letter behind a sign, or a sign behind no space
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyformer.data.tokenizers.units import ANY_CHARACTER, byte_letters
from anyformer.data.tokenizers.vocabulary import Vocabulary

SPACE, LETTER, SIGN, WHOLE, INSIDE = range(5)
"""Kinds of a token's ends; WHOLE begins a word wherever it stands, INSIDE never does."""
_BEGINNINGS = {WHOLE: range(5), SPACE: (LETTER, SIGN, WHOLE), LETTER: (SIGN, WHOLE), SIGN: (LETTER, SIGN, WHOLE)}
"""Kind of a token's first character -> kinds of the last character before it after which the token begins a word."""
_BEGINS = np.array([[last in _BEGINNINGS.get(first, ()) for first in range(5)] for last in range(5)])
_METASPACE = "\u2581"


class WordStarts(NamedTuple):
    """The kind of the first and of the last character of every token."""

    first: NDArray[np.int8]
    last: NDArray[np.int8]

    def of(self, tokens: NDArray[Any]) -> NDArray[np.bool_]:
        """[b t], true where a token begins a word that is not the first of a row."""
        before = np.roll(self.last[tokens], 1, axis=-1)
        starts: NDArray[np.bool_] = _BEGINS[before, self.first[tokens]]
        return starts


def word_starts(config: Mapping[str, Any], words: Vocabulary) -> WordStarts | None:
    """From a tokenizer.json; None where its vocabulary does not show where words begin."""
    vocab: Any = config["model"]["vocab"]
    pieces = vocab if isinstance(vocab, dict) else {piece: index for index, (piece, _) in enumerate(vocab)}
    ends = _ends(config, pieces)
    if ends is None:
        return None
    first, last = (np.full(words.size, WHOLE, dtype=np.int8) for _ in range(2))
    for piece, index in pieces.items():
        if piece and index < words.size and index not in words.special:
            first[index], last[index] = ends[piece]
    return WordStarts(first, last)


def _ends(config: Mapping[str, Any], pieces: Iterable[str]) -> dict[str, tuple[int, int]] | None:
    """Piece -> kinds of its first and last character."""
    model = config["model"]
    cuts = {cut["type"]: cut for cut in _steps(config["pre_tokenizer"], "pretokenizers")}
    if "ByteLevel" in cuts:
        kinds = {letter: _kind(chr(byte)) if byte < 128 else LETTER for byte, letter in enumerate(byte_letters())}
        return {piece: (kinds.get(piece[0], WHOLE), kinds.get(piece[-1], WHOLE)) for piece in pieces if piece}
    if prefix := model.get("continuing_subword_prefix"):
        return {piece: (INSIDE, LETTER) if piece.startswith(prefix) else (WHOLE, LETTER) for piece in pieces}
    if suffix := model.get("end_of_word_suffix"):
        return {piece: (LETTER, SIGN) if piece.endswith(suffix) else (LETTER, LETTER) for piece in pieces}
    if model["type"] == "WordLevel" and cuts.get("Split", {}).get("pattern") != {"Regex": ANY_CHARACTER}:
        return {piece: (WHOLE, WHOLE) for piece in pieces}
    spaced = {piece: piece.replace(_METASPACE, " ") for piece in pieces if piece}
    if model["type"] != "WordLevel" and not any(text[0] == " " for text in spaced.values()):
        return None
    return {piece: (_kind(text[0]), _kind(text[-1])) for piece, text in spaced.items()}


def _steps(step: Mapping[str, Any] | None, inside: str) -> list[Mapping[str, Any]]:
    """A step of a tokenizer.json, or the steps of a sequence of them."""
    if step is None:
        return []
    return list(step[inside]) if step["type"] == "Sequence" else [step]


def _kind(character: str) -> int:
    if character.isspace():
        return SPACE
    return LETTER if character.isalnum() or character == "_" or ord(character) > 127 else SIGN
