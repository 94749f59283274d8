"""Tokenizers: what comes back, what stays apart, and the same ids as the library that trained them."""

import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from unicodedata import category

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from anyformer.core import decode
from anyformer.data.tokenizers.bpe import BPE
from anyformer.data.tokenizers.byte import Byte
from anyformer.data.tokenizers.character import Character
from anyformer.data.tokenizers.file import File
from anyformer.data.tokenizers.tokenizer import Memo, Tokenizer, TokenizerSpec
from anyformer.data.tokenizers.unigram import Unigram
from anyformer.data.tokenizers.vocabulary import ANY_CHARACTER, NAMES, reserved
from anyformer.data.tokenizers.word import Word
from anyformer.data.tokenizers.wordpiece import WordPiece
from anyformer.errors import DataError, SpecError

TEXTS = [topics[name] for name in sorted(topics)[:12]]
LEARNED = [BPE(size=600), Unigram(size=600), WordPiece(size=600), WordPiece(size=600, case="lower")]
ALL = [Byte(), Character(), Word(size=2000), *LEARNED]
BYTE_LEVEL = [Byte(), BPE(size=600), Unigram(size=600)]
LOOKALIKES = [*reserved(3), *(name for names in NAMES.values() for name in names), "<|im_start|>"]
TRICKY = [
    "", " ", "  a", "a  b", "don't won't 'she' 's 'Sam", "\n\n x\t\ty \r\n", "x\x1cy\x1dz\x00",
    "naïve café's été, l'œuvre!",
    "日本語のテキスト。中文", "a\u0301 e\u0300x \u0301y '\u0301", "\xa0a\u3000b\u2028c", "x_y[0]=3.14e-5;//",
    "½²Ⅷ٣ 3a4", "🙂👩‍👩‍👧 ok",
    "\x0cform\x0bfeed \x85next", "ab\x01cd \ufffd e\u200bf", "word" * 40, " ".join(LOOKALIKES), "".join(LOOKALIKES),
]  # fmt: skip
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text("ab'sé 1,\n\t\xa0中", max_size=40)


@cache
def trained(spec: TokenizerSpec) -> Tokenizer:
    return spec.train(iter(TEXTS))


def library_ids(tokenizer: Tokenizer, texts: list[str], folder: Path) -> list[list[int]]:
    """What the library makes of our file."""
    tokenizer.save(folder / "tokenizer.json")
    library = Library.from_file(str(folder / "tokenizer.json"))
    library.encode_special_tokens = True
    return [one.ids for one in library.encode_batch_fast(texts, add_special_tokens=False)]


def named(spec: TokenizerSpec) -> str:
    return "-".join(str(value) for value in spec.to_dict().values() if isinstance(value, str))


every = pytest.mark.parametrize("spec", ALL, ids=named)
byte_level = pytest.mark.parametrize("spec", BYTE_LEVEL, ids=named)


@pytest.mark.row("TSK-15", clause="encoding then decoding gives the text back")
@pytest.mark.row("PRE-10", clause="encode then decode gives back random unicode text")
@pytest.mark.row("PRE-16", clause="their ids are reserved")
@byte_level
@settings(max_examples=150, deadline=None)
@given(text=text)
def test_any_text_comes_back_as_it_was(spec: TokenizerSpec, text: str) -> None:
    tokenizer = trained(spec)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(len(reserved(100)) <= index < tokenizer.words.size for index in ids)


@pytest.mark.row("PRE-10", clause="byte-level variant, as in GPT-2")
@byte_level
def test_every_character_comes_back_and_none_is_unknown(spec: TokenizerSpec) -> None:
    tokenizer = trained(spec)
    text = "".join(chr(code) for code in (*range(0xD800), *range(0xE000, 0x11000), 0x1F642, 0x10FFFF))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.words.unk not in ids


@pytest.mark.row(
    "PRE-10",
    clause=(
        "the most frequent pair is merged, again and again",
        "merges on 'low lower newest widest' are those of the textbook",
    ),
)
def test_merges_are_those_of_the_textbook() -> None:
    words = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
    texts = [word for word, count in words.items() for _ in range(count)]
    tokenizer = BPE(size=len(reserved(0)) + 256 + 6, sentinels=0).train(texts)
    merges = ["".join(pair) for pair in json.loads(pickle_text(tokenizer))["model"]["merges"]]
    assert merges == textbook_merges(words, 6)
    assert merges[:2] == ["es", "est"]  # 6 + 3 times, more than any other pair
    assert len(tokenizer.encode("newest")) < len(tokenizer.encode("wetsen"))


def pickle_text(tokenizer: Tokenizer) -> str:
    """The tokenizer.json that it is made of."""
    return tokenizer.__reduce__()[1][0]


def textbook_merges(words: dict[str, int], steps: int) -> list[str]:
    """Merges the most frequent pair, of equals the one whose letters come first."""
    parts, found, rank = {word: list(word) for word in words}, [], {chr(code): code for code in range(256)}
    for step in range(steps):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, letters in parts.items():
            for pair in pairwise(letters):
                pairs[pair] += words[word]
        a, b = min(pairs, key=lambda pair: (-pairs[pair], rank[pair[0]], rank[pair[1]]))
        found.append(a + b)
        rank[a + b] = 256 + step
        for letters in parts.values():
            places = [i for i, pair in enumerate(pairwise(letters)) if pair == (a, b)]
            for i in reversed(places):
                letters[i : i + 2] = [a + b]
    return found


@pytest.mark.row("TSK-15", clause="longest-match WordPiece equals BertTokenizer on a shared vocabulary")
@pytest.mark.row("WMT-03", clause="text is split into wordpieces")
@pytest.mark.parametrize("case", ["keep", "lower"])
def test_wordpiece_takes_the_longest_match_as_bert_does(case: str, tmp_path: Path) -> None:
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy  # in Python, not the library's

    ours = trained(WordPiece(size=600, case=case))
    pieces = json.loads(pickle_text(ours))["model"]["vocab"]
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(pieces, key=pieces.__getitem__)), encoding="utf-8")
    theirs = BertTokenizerLegacy(
        str(tmp_path / "vocab.txt"), do_lower_case=case == "lower", unk_token="<unk>", sep_token="<sep>",
        pad_token="<pad>", cls_token="<cls>", mask_token="<mask>",
    )  # fmt: skip
    for text in ["unaffable Generators, don't!", "Café naïve 日本 x" + "y" * 120, *TEXTS]:
        assert ours.encode(text) == theirs.convert_tokens_to_ids(theirs.tokenize(text))


def cuts(word: str, pieces: dict[str, float]) -> Iterator[list[str]]:
    """All ways to cut a word into known pieces."""
    if not word:
        yield []
    for end in range(1, len(word) + 1):
        if word[:end] in pieces:
            yield from ([word[:end], *rest] for rest in cuts(word[end:], pieces))


@pytest.mark.row("TSK-15", clause="unigram model segments by Viterbi")
def test_unigram_takes_the_most_likely_of_all_ways_to_cut_a_word() -> None:
    tokenizer = trained(Unigram(size=600))
    vocab = json.loads(pickle_text(tokenizer))["model"]["vocab"]
    names, pieces = [name for name, _ in vocab], dict(vocab)
    words = {word for word in TEXTS[0].split() if word.isascii() and word.isalpha() and len(word) < 13}
    ways = []
    for word in sorted(words)[:60]:
        sums = [sum(pieces[piece] for piece in way) for way in cuts(word, pieces)]
        taken = [names[index] for index in tokenizer.encode(word)]
        assert "".join(taken) == word and sum(pieces[piece] for piece in taken) == pytest.approx(max(sums))
        ways.append(len(sums))
    assert len(ways) > 20 and max(ways) > 10


@pytest.mark.row("PRE-16", clause="they are never split")
@every
def test_every_special_token_is_one_id_with_its_whole_name(spec: TokenizerSpec) -> None:
    tokenizer = trained(spec)
    shown = [tokenizer.decode([index], special="show").strip() for index in tokenizer.words.special]
    assert shown == list(reserved(100))


@pytest.mark.row("PRE-16", clause="their ids are reserved")
@every
def test_text_that_looks_special_stays_text(spec: TokenizerSpec, tmp_path: Path) -> None:
    tokenizer = spec.train([*TEXTS, *LOOKALIKES * 50])
    tokenizer.save(tmp_path / "tokenizer.json")
    for one in (tokenizer, Tokenizer.load(tmp_path / "tokenizer.json")):
        forbidden = {*one.words.special} - {one.words.unk}
        assert forbidden.isdisjoint(one.encode(" ".join(LOOKALIKES)))
        for name in LOOKALIKES:
            assert forbidden.isdisjoint(one.encode(name)), name
        if spec in BYTE_LEVEL:
            assert [one.decode(one.encode(name)) for name in LOOKALIKES] == LOOKALIKES


@pytest.mark.row(
    "PRE-16", clause=("the tokenizer handles [CLS], [SEP], [MASK], <bos>, <eos>, sentinels", "their ids are reserved")
)
@every
def test_special_ids_are_reserved_at_the_front(spec: TokenizerSpec) -> None:
    words = trained(spec).words
    assert words.special == tuple(range(107))
    assert (words.pad, words.unk, words.bos, words.eos, words.sep, words.cls, words.mask) == tuple(range(7))
    assert trained(spec).decode([words.bos, words.mask, words.sentinels[2], words.eos]) == ""
    shown = trained(spec).decode([words.mask, words.sentinels[2]], special="show")
    assert shown.replace(" ", "") == "<mask><extra_id_2>"


def test_the_number_of_sentinels_is_a_choice() -> None:
    assert len(Byte(sentinels=3).train([]).words.sentinels) == 3
    assert Byte(sentinels=0).train([]).words.size == 7 + 256


@pytest.mark.row("PRE-10", clause="equals the tokenizers library")
@every
def test_ids_are_those_of_the_library(spec: TokenizerSpec, tmp_path: Path) -> None:
    # one word each of what the library would take for a special token is our business, not its
    plain = [text for text in [*TEXTS, *TRICKY] if "<mask>" not in text]
    assert trained(spec).encode_batch(plain) == library_ids(trained(spec), plain, tmp_path)


@pytest.mark.row("PRE-10", clause="equals the tokenizers library")
@every
def test_white_space_and_letters_of_all_scripts_are_cut_as_the_library_cuts_them(
    spec: TokenizerSpec, tmp_path: Path
) -> None:
    doubtful = [sign for sign in map(chr, range(0x3100)) if sign < "\u0300" or category(sign)[0] in "ZC"]
    signs = [*doubtful[:: 1 if spec in LEARNED else 7], *map(chr, (0x4E2D, 0xD7A3, 0xFEFF, 0x1D7D8, 0x1F642, 0x10FFFF))]
    texts = [f"a{sign}b{sign}{sign} '{sign}1 {sign}s" for sign in signs]
    assert trained(spec).encode_batch(texts) == library_ids(trained(spec), texts, tmp_path)


@settings(max_examples=100, deadline=None)
@given(text=text)
@pytest.mark.parametrize("spec", LEARNED, ids=named)
def test_a_fresh_memory_says_what_a_full_one_says(spec: TokenizerSpec, text: str) -> None:
    tokenizer = trained(spec)
    reader = tokenizer._reader.encode_batch_fast([text], add_special_tokens=False)[0].ids
    assert tokenizer.encode(text) == tokenizer.encode(text) == reader


def test_a_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memo, "MOST", 2)
    memo = Memo(trained(BPE(size=600))._reader)
    found = [memo[unit] for unit in ("a", "b", "c", "x" * 100, "a")]
    assert set(memo) == {"a", "b"}
    assert found[0] == found[4]


@every
def test_what_is_saved_is_what_is_loaded(spec: TokenizerSpec, tmp_path: Path) -> None:
    ours = trained(spec)
    ours.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.words, loaded.fingerprint()) == (ours.words, ours.fingerprint())
    assert loaded.encode_batch(TRICKY) == pickle.loads(pickle.dumps(ours)).encode_batch(TRICKY)
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]


AGAIN = """
import pickle, sys
for spec, texts in pickle.load(sys.stdin.buffer):
    print(spec.train(texts).fingerprint())
"""


def test_training_gives_the_same_in_another_process() -> None:
    tasks = pickle.dumps([(spec, TEXTS) for spec in ALL])
    result = subprocess.run([sys.executable, "-c", AGAIN], input=tasks, capture_output=True, check=True)
    assert result.stdout.decode().split() == [trained(spec).fingerprint() for spec in ALL]


@pytest.mark.parametrize(("kind", "least"), [("bpe", 363), ("unigram", 363), ("word", 108), ("character", 108)])
def test_too_small_a_vocabulary_is_refused_with_the_least_size(kind: str, least: int) -> None:
    with pytest.raises(SpecError, match=f"size: must be at least {least} "):
        decode(TokenizerSpec, {"kind": kind, "size": least - 1})
    smallest = decode(TokenizerSpec, {"kind": kind, "size": least}).train(TEXTS)
    assert smallest.words.size == least


def test_wordpiece_knows_its_least_size_when_it_knows_the_letters() -> None:
    with pytest.raises(SpecError, match="size: must be at least 111 "):  # 107, a, b, ##a, ##b
        WordPiece(size=110).train(["ab ba"])
    assert WordPiece(size=111).train(["ab ba"]).words.size == 111


@pytest.mark.parametrize("spec", [Word(), Character(), WordPiece()], ids=named)
def test_no_text_to_learn_from_is_said(spec: TokenizerSpec) -> None:
    with pytest.raises(DataError, match="no text to train"):
        spec.train([" "] if spec == Word() else [])


@every
def test_half_a_character_is_named(spec: TokenizerSpec) -> None:
    if spec not in (Character(), Word(size=2000)):  # which only look things up
        with pytest.raises(DataError, match=r"U\+D800, half of a surrogate pair"):
            trained(spec).encode_batch(["good", "bad \ud800"])
    if spec != Byte():
        with pytest.raises(DataError, match=r"U\+D800"):
            spec.train(["bad \ud800"])


@pytest.mark.parametrize("wrong", [-1, 600, 10**9])
def test_an_id_outside_the_vocabulary_is_bad_data(wrong: int) -> None:
    with pytest.raises(DataError, match=f"{wrong} is outside the vocabulary of 600"):
        trained(BPE(size=600)).decode([200, wrong])


def test_words_come_back_with_single_spaces_and_the_unknown_shows() -> None:
    tokenizer = Word().train(["a b c", "c  d"])
    assert tokenizer.decode(tokenizer.encode("d\tc  zebra a\n")) == "d c <unk> a"


def foreign(path: Path, special: list[str], plain: tuple[str, ...] = ()) -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    library.add_special_tokens(special)
    library.add_tokens([AddedToken(word) for word in plain])
    library.enable_truncation(5)
    library.save(str(path))
    return library


@pytest.mark.row("PRE-10", clause="byte-level variant, as in GPT-2")
def test_a_foreign_file_keeps_its_ids_and_gets_what_it_lacks(tmp_path: Path) -> None:
    theirs = foreign(tmp_path / "gpt2.json", ["<|endoftext|>"])
    ours = File(path=str(tmp_path / "gpt2.json"), sentinels=2).train([])
    theirs.no_truncation()
    assert ours.encode(TEXTS[0]) == theirs.encode(TEXTS[0]).ids
    assert ours.words.bos == ours.words.eos == theirs.token_to_id("<|endoftext|>") == 500
    added = [index for index in ours.words.special if index != 500]
    assert sorted(added) == list(range(501, ours.words.size))
    assert ours.decode(ours.encode("a <|endoftext|> b")) == "a <|endoftext|> b"
    assert 500 not in ours.encode("a <|endoftext|> b")


def test_words_that_a_foreign_file_adds_keep_their_ids(tmp_path: Path) -> None:
    theirs = foreign(tmp_path / "t.json", ["[CLS]", "[SEP]", "[PAD]", "[MASK]", "<extra_id_0>"], ("    ", "anyformer"))
    ours = Tokenizer.load(tmp_path / "t.json")
    text = "def f():\n    return anyformer"
    theirs.no_truncation()
    assert ours.encode(text) == theirs.encode(text).ids
    assert theirs.token_to_id("anyformer") in ours.encode(text)
    assert (ours.words.cls, ours.words.mask) == (500, 503)
    assert ours.words.sentinels == (504,)


def test_a_foreign_unigram_model_keeps_its_ids(tmp_path: Path) -> None:
    pieces = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        *((letter, -4.0) for letter in "▁abmsk<>/"),
        ("▁<mask>", -1.0),
    ]
    library = Library(models.Unigram(pieces, unk_id=2))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    library.normalizer = normalizers.NFKC()
    library.add_special_tokens(["<pad>", "</s>", "<unk>"])
    library.add_tokens(["abab"])
    library.save(str(tmp_path / "t5.json"))
    ours = Tokenizer.load(tmp_path / "t5.json")
    assert ours.encode("ab amx b abab") == library.encode("ab amx b abab").ids
    assert (ours.words.pad, ours.words.eos, ours.words.unk) == (0, 1, 2)
    assert ours.words.eos not in ours.encode("a </s> b")
    assert ours.decode(ours.encode("a </s> b")) == "a </s> b"


def test_a_whole_word_model_does_not_read_special_tokens_from_text(tmp_path: Path) -> None:
    library = Library(models.WordLevel({"[UNK]": 0, "[MASK]": 1, "the": 2}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.save(str(tmp_path / "words.json"))
    ours = Tokenizer.load(tmp_path / "words.json")
    assert (ours.words.unk, ours.words.mask) == (0, 1)
    assert ours.encode("the [MASK] the") == [2, 0, 2]


def test_characters_that_the_library_drops_are_dropped(tmp_path: Path) -> None:
    library = Library(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    for behavior in ("isolated", "removed"):
        library.pre_tokenizer = pre_tokenizers.Split(Regex(ANY_CHARACTER), behavior)
        library.save(str(tmp_path / "characters.json"))
        assert Tokenizer.load(tmp_path / "characters.json").encode("abc") == library.encode("abc").ids


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"{}", b"not json", b'{"model": {"type": "BPE"'])
def test_what_is_no_tokenizer_is_refused_by_name(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer\.json: (cannot be read|is not a tokenizer\.json)"):
        File(path=str(file)).train([])
