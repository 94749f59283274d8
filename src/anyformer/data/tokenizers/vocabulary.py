"""The vocabulary of a tokenizer: its size, its special tokens, and the tokens that begin a word.

Special tokens have reserved ids that text can never produce. They are stored in the tokenizer.json, where other readers
find them, and removed from the tokenizer that reads text: a text that holds "<mask>" is spelt like any other.

Whole-word masking needs the beginnings of words. A word is letters and digits with the white space before them, or one
sign. A token may begin or end inside of a word, so its first character and the one before it decide: a space behind no
space, a letter behind a sign, or a sign behind no space begins a word.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Library
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

ANY_CHARACTER = r"[\s\S]"


class Vocabulary(NamedTuple):
    """Ids of a tokenizer. Special ids never come from text, even if it contains their names."""

    size: int
    pad: int
    unk: int
    bos: int
    eos: int
    sep: int
    cls: int
    mask: int
    sentinels: tuple[int, ...]
    """One for each span that span corruption cuts out, in order."""

    @property
    def special(self) -> tuple[int, ...]:
        """All special ids: never masked, never chosen at random."""
        return (self.pad, self.unk, self.bos, self.eos, self.sep, self.cls, self.mask, *self.sentinels)


NAMES: Mapping[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "bos": ("<bos>", "<s>", "[BOS]", "<|startoftext|>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("<eos>", "</s>", "[EOS]", "<|endoftext|>", "<|end_of_text|>"),
    "sep": ("<sep>", "[SEP]", "</s>"),
    "cls": ("<cls>", "[CLS]", "<s>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
}
"""Role -> names of its token, the first one for new tokenizers. Some models give one token two roles."""
SENTINEL = re.compile(r"<extra_id_(\d+)>")
_MARKS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def reserved(sentinels: int) -> list[str]:
    """The special tokens of a tokenizer that we train, by id."""
    return [*(names[0] for names in NAMES.values()), *map(_sentinel, range(sentinels))]


def put_first(config: Mapping[str, Any], sentinels: int) -> dict[str, Any]:
    """A tokenizer.json that was trained on text alone, with the special tokens at the first ids."""
    names = reserved(sentinels)
    model, vocab = dict(config["model"]), config["model"]["vocab"]
    by_id = sorted(vocab.items(), key=lambda item: item[1]) if isinstance(vocab, dict) else vocab
    pieces = [piece for piece in by_id if piece[0] not in names]  # (piece, its id or its score)
    if model["type"] == "Unigram":
        model["vocab"] = [*([name, 0.0] for name in names), *map(list, pieces)]
        model["unk_id"] = names.index("<unk>")
    else:
        model["vocab"] = {piece: index for index, piece in enumerate([*names, *(piece for piece, _ in pieces)])}
    added = [{"id": index, "content": name, **_MARKS} for index, name in enumerate(names)]
    return {**config, "added_tokens": added, "model": model}


def complete(library: Library, sentinels: int) -> Vocabulary:
    """Finds every role by its usual names; missing ones are added behind the last id, unless the file has aliases for
    all of them (`with_roles`)."""
    known, aliases = library.get_vocab(), _aliases(library)
    usual = {role: next((name for name in names if name in known), names[0]) for role, names in NAMES.items()}
    roles = {role: aliases.get(names[0], usual[role]) for role, names in NAMES.items()}
    closed = all(name in known for name in roles.values()) and len(aliases) >= len(NAMES)
    spans = {int(match[1]) for match in map(SENTINEL.fullmatch, known) if match}
    spans |= set() if closed else set(range(sentinels))
    library.add_special_tokens([*roles.values(), *map(_sentinel, sorted(spans))])
    ids = library.get_vocab()
    return Vocabulary(
        size=max(ids.values()) + 1,
        **{role: ids[name] for role, name in roles.items()},
        sentinels=tuple(ids[_sentinel(index)] for index in sorted(spans)),
    )


def with_roles(config: Mapping[str, Any], roles: Mapping[str, str], ids: Mapping[str, int]) -> dict[str, Any]:
    """A tokenizer.json made elsewhere, with the token that takes each role. A model has no row for tokens that would be
    added, so several roles may share one. They are stored as aliases in the post-processor, which is not used here."""
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    aliases = {
        NAMES[role][0]: {"id": NAMES[role][0], "ids": [ids[name]], "tokens": [name]} for role, name in roles.items()
    }
    template = {"single": text, "pair": [*text, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": aliases}
    return {**config, "post_processor": {"type": "TemplateProcessing", **template}}


def _aliases(library: Library) -> dict[str, str]:
    """Alias -> token, from a post-processor that is a template."""
    if not isinstance(library.post_processor, TemplateProcessing):
        return {}
    entries = json.loads(library.post_processor.__getstate__())["special_tokens"].values()
    return {entry["id"]: entry["tokens"][0] for entry in entries if len(entry["tokens"]) == 1}


def text_only(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same tokenizer without its special tokens, to read text with; all other ids stay the same."""
    added: list[Any] = config["added_tokens"]
    special = {token["content"] for token in added if token["special"]}
    plain = [token for token in added if not token["special"]]
    model = dict(config["model"])
    if model["type"] == "Unigram":
        # an empty piece matches nothing, and keeps the ids of the others in their places
        pieces = [["", score] if piece in special else [piece, score] for piece, score in model["vocab"]]
        for token in plain:  # words that the file adds to its model, at their ids
            pieces += [["", 0.0] for _ in range(token["id"] + 1 - len(pieces))]
            if pieces[token["id"]][0] == "":
                pieces[token["id"]][0] = token["content"]
        model["vocab"] = pieces
    else:
        hidden = special - {model.get("unk_token")}  # the model must find the token of unknown words
        vocab = {piece: index for piece, index in model["vocab"].items() if piece not in hidden}
        model["vocab"] = vocab | {token["content"]: token["id"] for token in plain}
        if "merges" in model:
            model["merges"] = [pair for pair in model["merges"] if hidden.isdisjoint({*pair, "".join(pair)})]
    unused = {"post_processor": None, "truncation": None, "padding": None}
    return {**config, **unused, "added_tokens": plain, "model": model}


def _sentinel(index: int) -> str:
    return f"<extra_id_{index}>"


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
    """Which tokens begin a word, from a tokenizer.json; None if its vocabulary does not show it."""
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


def byte_letters() -> list[str]:
    """The letter that the library writes for each byte: itself where it can be seen, the rest in order behind them."""
    alphabet = sorted(ByteLevel.alphabet())
    itself = {ord(letter): letter for letter in alphabet if ord(letter) < 256}
    others = iter(letter for letter in alphabet if ord(letter) >= 256)
    return [itself.get(byte) or next(others) for byte in range(256)]


def _ends(config: Mapping[str, Any], pieces: Iterable[str]) -> dict[str, tuple[int, int]] | None:
    """Piece -> kinds of its first and last character."""
    model = config["model"]
    step = config["pre_tokenizer"] or {"type": None}
    cuts = {cut["type"]: cut for cut in (step["pretokenizers"] if step["type"] == "Sequence" else [step])}
    if "ByteLevel" in cuts:
        kinds = {letter: _kind(chr(byte)) if byte < 128 else LETTER for byte, letter in enumerate(byte_letters())}
        return {piece: (kinds.get(piece[0], WHOLE), kinds.get(piece[-1], WHOLE)) for piece in pieces if piece}
    if prefix := model.get("continuing_subword_prefix"):
        return {piece: (INSIDE, LETTER) if piece.startswith(prefix) else (WHOLE, LETTER) for piece in pieces}
    if suffix := model.get("end_of_word_suffix"):
        return {piece: (LETTER, SIGN) if piece.endswith(suffix) else (LETTER, LETTER) for piece in pieces}
    if model["type"] == "WordLevel" and cuts.get("Split", {}).get("pattern") != {"Regex": ANY_CHARACTER}:
        return dict.fromkeys(pieces, (WHOLE, WHOLE))
    spaced = {piece: piece.replace(_METASPACE, " ") for piece in pieces if piece}
    if model["type"] != "WordLevel" and not any(text[0] == " " for text in spaced.values()):
        return None
    return {piece: (_kind(text[0]), _kind(text[-1])) for piece, text in spaced.items()}


def _kind(character: str) -> int:
    if character.isspace():
        return SPACE
    return LETTER if character.isalnum() or character == "_" or ord(character) > 127 else SIGN
