"""Where words begin: what whole-word masking reads from a batch, for every tokenizer that shows it."""

from pathlib import Path

import pytest
import torch
from tests.data.corpus import Listed
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers

from anyformer.core import decode
from anyformer.data.batching.batch import Batch
from anyformer.data.preparation.pipeline import DataSpec, prepare
from anyformer.data.preparation.shards import Prepared
from anyformer.data.record import Record
from anyformer.data.tokenizers.tokenizer import Tokenizer, TokenizerSpec
from anyformer.objectives.masked_words import MaskedWords
from anyformer.training.loop.feed import Loader

TEXT = "He said: unbelievable  things_2, 3.5 naïve\n\nwords!"
WORDS = ["He", "said", ":", "unbelievable", "things_2", ",", "3", ".", "5", "naïve", "words", "!"]
SIZES = {"bpe": 380, "unigram": 380, "wordpiece": 160, "byte": 0, "character": 0}


def first_batch(folder: Path, tokenizer: TokenizerSpec, **options: object) -> tuple[Prepared, Batch]:
    records = [Record(TEXT), Record("cdefghij " * 3)]
    spec = DataSpec(source=Listed.of(records), tokenizer=tokenizer, valid=0.0, **options)  # type: ignore[arg-type]
    prepared = prepare(spec, folder / "d", workers=0)
    return prepared, next(iter(Loader(prepared=prepared, batch_tokens=512, shuffle=False)))[0]


def words_of(prepared: Prepared, batch: Batch, row: int = 0) -> list[str]:
    """The first document of a row, cut where words begin, without spaces."""
    marked = batch.word_starts[row]
    found: list[list[int]] = []
    for token, starts in zip(batch.tokens[row].tolist(), marked.tolist(), strict=True):
        if starts:
            found.append([])
        if token in (prepared.words.eos, prepared.words.pad):
            break
        found[-1].append(token)
    return [prepared.tokenizer.decode(ids).replace("##", "").strip() for ids in found if ids]


@pytest.mark.row("TSK-15", clause="registry: word, character, byte, BPE, WordPiece, SentencePiece-unigram")
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("packing", ["pack", "bucket"])
def test_tokens_come_together_as_words(kind: str, packing: str, tmp_path: Path) -> None:
    size = {"size": SIZES[kind]} if SIZES[kind] else {}
    prepared, batch = first_batch(tmp_path, decode(TokenizerSpec, {"kind": kind, **size}), packing=packing)
    row = next(row for row, ids in enumerate(batch.tokens) if "said" in prepared.tokenizer.decode(ids.tolist()))
    found = words_of(prepared, batch, row)
    start = next(place for place, word in enumerate(found) if word == "He")
    words = [word for piece in WORDS for word in (["things", "_", "2"] if piece == "things_2" else [piece])]
    assert found[start : start + len(words)] == words if kind == "wordpiece" else found[start:][: len(WORDS)] == WORDS
    assert not (batch.word_starts & ~batch.frame.valid).any()


@pytest.mark.row("TSK-15", clause="registry: word, character, byte, BPE, WordPiece, SentencePiece-unigram")
def test_every_word_of_a_word_tokenizer_begins_one(tmp_path: Path) -> None:
    _, batch = first_batch(tmp_path, decode(TokenizerSpec, {"kind": "word"}), packing="bucket")
    assert torch.equal(batch.word_starts, batch.frame.valid)


def test_spaces_written_as_a_bar_and_ends_of_words_are_understood() -> None:
    vocab = {"\u2581he": 0, "llo": 1, "\u2581you": 2, "!": 3}
    library = Library(models.BPE(vocab=vocab, merges=[]))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = Tokenizer(library.to_str())
    starts = tokenizer.word_starts
    assert starts is tokenizer.word_starts, "worked out once, not for every batch"
    assert starts is not None and starts.of(torch.tensor([[0, 1, 2, 3]]).numpy())[0, 1:].tolist() == [False, True, True]
    ends = Library(models.BPE(vocab={"hel": 0, "lo</w>": 1, "you</w>": 2}, merges=[], end_of_word_suffix="</w>"))
    starts = Tokenizer(ends.to_str()).word_starts
    assert starts is not None and starts.of(torch.tensor([[0, 1, 2, 2]]).numpy())[0, 1:].tolist() == [False, True, True]


def test_a_vocabulary_that_shows_no_words_gives_none() -> None:
    assert Tokenizer(Library(models.BPE(vocab={"a": 0, "b": 1}, merges=[])).to_str()).word_starts is None


@pytest.mark.parametrize("kind", ["bpe", "word"])
@pytest.mark.parametrize("packing", ["pack", "bucket", "rows"])
def test_whole_words_are_masked(kind: str, packing: str, tmp_path: Path) -> None:
    prepared, batch = first_batch(tmp_path, decode(TokenizerSpec, {"kind": kind, "size": 380}), packing=packing)
    objective = MaskedWords(unit="word", share=0.5, masked=1.0, random=0.0)
    for seed in range(20):
        made = objective.prepare(batch, prepared.words, torch.Generator().manual_seed(seed))
        assert made.weight is not None and made.weight.shape == made.tokens.shape
        shift = torch.zeros_like(made.weight, dtype=torch.bool)
        width = batch.tokens.shape[1]
        shift[:, 1:][:, :width] = batch.word_starts[:, : shift.shape[1] - 1]
        inside = (made.weight[:, 1:] != made.weight[:, :-1]) & ~shift[:, 1:]
        special = torch.isin(made.targets, torch.tensor(prepared.words.special))
        assert not (inside & ~special[:, 1:] & ~special[:, :-1]).any()  # the lot changes only where a word begins
