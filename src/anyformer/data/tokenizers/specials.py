"""Special tokens: reserved ids that text can never produce, whatever it says.

They stand in the file, where every other reader finds them, and are taken out of the tokenizer that reads text: a text
that holds "<mask>" is then spelt like any other.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer as Library

from anyformer.data.tokenizers.vocabulary import Vocabulary

NAMES: Mapping[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "bos": ("<bos>", "<s>", "[BOS]", "<|startoftext|>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("<eos>", "</s>", "[EOS]", "<|endoftext|>", "<|end_of_text|>"),
    "sep": ("<sep>", "[SEP]", "</s>"),
    "cls": ("<cls>", "[CLS]", "<s>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
}
"""What a role is called: first by us, then by others. Some models give one token two roles."""
SENTINEL = re.compile(r"<extra_id_(\d+)>")
_MARKS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def reserved(sentinels: int) -> list[str]:
    """The special tokens of a tokenizer that we train, by id."""
    return [*(names[0] for names in NAMES.values()), *map(_sentinel, range(sentinels))]


def put_first(config: Mapping[str, Any], sentinels: int) -> dict[str, Any]:
    """A tokenizer.json that was trained on text alone, with the special tokens at the first ids."""
    names = reserved(sentinels)
    pieces = [piece for piece in _by_id(config["model"]["vocab"]) if piece[0] not in names]
    model = dict(config["model"])
    if model["type"] == "Unigram":
        model["vocab"] = [*([name, 0.0] for name in names), *map(list, pieces)]
        model["unk_id"] = names.index("<unk>")
    else:
        model["vocab"] = {piece: index for index, piece in enumerate([*names, *(piece for piece, _ in pieces)])}
    added = [{"id": index, "content": name, **_MARKS} for index, name in enumerate(names)]
    return {**config, "added_tokens": added, "model": model}


def complete(library: Library, sentinels: int) -> Vocabulary:
    """Finds every role by its usual names; what is missing is added behind the last id."""
    known = library.get_vocab()
    roles = {role: next((name for name in names if name in known), names[0]) for role, names in NAMES.items()}
    spans = {int(match[1]) for match in map(SENTINEL.fullmatch, known) if match} | set(range(sentinels))
    library.add_special_tokens([*roles.values(), *map(_sentinel, sorted(spans))])
    ids = library.get_vocab()
    return Vocabulary(
        size=max(ids.values()) + 1,
        **{role: ids[name] for role, name in roles.items()},
        sentinels=tuple(ids[_sentinel(index)] for index in sorted(spans)),
    )


def text_only(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same tokenizer without its special tokens, to read text with; every other id stays what it was."""
    added: list[Any] = config["added_tokens"]
    special = {token["content"] for token in added if token["special"]}
    plain = [token for token in added if not token["special"]]
    model = dict(config["model"])
    if model["type"] == "Unigram":
        # an empty piece matches nothing, and keeps the ids of the others in their places
        pieces = [["", score] if piece in special else [piece, score] for piece, score in model["vocab"]]
        model["vocab"] = _with_plain(pieces, plain)
    else:
        hidden = special - {model.get("unk_token")}  # for what it does not know the model must find this one
        vocab = {piece: index for piece, index in model["vocab"].items() if piece not in hidden}
        model["vocab"] = vocab | {token["content"]: token["id"] for token in plain}
        if "merges" in model:
            model["merges"] = [pair for pair in model["merges"] if hidden.isdisjoint({*pair, "".join(pair)})]
    unused = {"post_processor": None, "truncation": None, "padding": None}
    return {**config, **unused, "added_tokens": plain, "model": model}


def _by_id(vocab: Any) -> list[tuple[str, Any]]:
    """(piece, score or id) in the order of ids."""
    if isinstance(vocab, dict):
        return sorted(vocab.items(), key=lambda item: item[1])
    return [(piece, score) for piece, score in vocab]


def _with_plain(pieces: list[list[Any]], plain: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """Words that a file adds behind its model, at the ids that they have there."""
    for token in plain:
        pieces += [["", 0.0] for _ in range(token["id"] + 1 - len(pieces))]
        if pieces[token["id"]][0] == "":
            pieces[token["id"]][0] = token["content"]
    return pieces


def _sentinel(index: int) -> str:
    return f"<extra_id_{index}>"
