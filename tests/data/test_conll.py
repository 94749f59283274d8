"""Files of tagged words: CoNLL-2003, IOB and CoNLL-U, alone and in folders with splits."""

import gzip
from pathlib import Path

import pytest

import anyformer as af
from anyformer.data.record import Record
from anyformer.data.sources import files
from anyformer.data.sources.conll import Conll
from anyformer.data.sources.named_source import source_of
from anyformer.errors import DataError

NAMES = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC
lamb NN I-NP O
. . O O

# # O O
Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""
TREEBANK = """# sent_id = 1
# text = Zum Haus von Anna Maria
1-2\tZum\t_\t_\t_\t_\t_\t_\t_\t_
1\tzu\tzu\tADP\tAPPR\t_\t3\tcase\t_\t_
2\tdem\tder\tDET\tART\t_\t3\tdet\t_\t_
3\tHaus\tHaus\tNOUN\tNN\t_\t0\troot\t_\t_
4\tvon\tvon\tADP\tAPPR\t_\t5\tcase\t_\t_
5\tAnna Maria\tAnna Maria\tPROPN\tNE\t_\t3\tnmod\t_\t_
5.1\tging\tgehen\tVERB\tVV\t_\t_\t_\t_\t_

# sent_id = 2
1\tJa\tja\tINTJ\tITJ\t_\t0\troot\t_\t_
"""


def records(path: Path, text: str, **options: int) -> list[Record]:
    path.write_text(text, encoding="utf-8")
    return list(Conll(path=str(path), **options).records())


def test_the_first_column_is_the_word_and_the_last_one_its_tag(tmp_path: Path) -> None:
    first, second = records(tmp_path / "names.conll", NAMES)
    assert first.text == "EU rejects German lamb ." and first.tags == ("B-ORG", "O", "B-MISC", "O", "O")
    assert second.text == "# Peter Blackburn" and second.tags == ("O", "B-PER", "I-PER")
    assert first.where.endswith("names.conll:3") and second.where.endswith(":9")


def test_another_column_can_be_the_tag(tmp_path: Path) -> None:
    first, _ = records(tmp_path / "names.conll", NAMES, tag=2)
    assert first.tags == ("NNP", "VBZ", "JJ", "NN", ".")


def test_of_a_treebank_the_parts_of_speech_are_read(tmp_path: Path) -> None:
    first, second = records(tmp_path / "de.conllu", TREEBANK)
    assert first.text == "zu dem Haus von Anna_Maria" and first.tags == ("ADP", "DET", "NOUN", "ADP", "PROPN")
    assert second.tags == ("INTJ",)
    assert records(tmp_path / "de.conllu", TREEBANK, tag=5)[1].tags == ("ITJ",)


@pytest.mark.parametrize("name", ["ner.conll", "ner.iob2", "ner.txt", "ner"])
def test_a_path_is_known_by_its_ending_or_by_its_tags(tmp_path: Path, name: str) -> None:
    (file := tmp_path / name).write_text(NAMES, encoding="utf-8")
    assert source_of(str(file)) == Conll(path=str(file))


def test_text_with_two_words_a_line_stays_text(tmp_path: Path) -> None:
    (file := tmp_path / "poem.txt").write_text("two words\nin each\n\nof the\nlines here\n" * 9, encoding="utf-8")
    assert source_of(str(file)).kind == "text"


def test_a_long_text_without_line_ends_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST", 1000)
    (file := tmp_path / "book.txt").write_text("all in one line " * 40_000, encoding="utf-8")
    assert source_of(str(file)).kind == "text"


def test_files_of_a_folder_are_its_splits(tmp_path: Path) -> None:
    for name in ("train.txt", "valid.txt", "test.txt"):
        (tmp_path / name).write_text(NAMES, encoding="utf-8")
    source = source_of(str(tmp_path))
    assert source == Conll(path=str(tmp_path))
    assert [record.split for record in source.records()] == ["test", "test", "train", "train", "valid", "valid"]


def test_packed_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.conll.gz").write_bytes(gzip.compress(NAMES.encode()))
    assert len(list(source_of(str(tmp_path)).records())) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\nb O\nc\n", ":3: has 1 column, expected 2"),
        ("a\nb\n", ":1: has 1 column, expected 2: a word, and its tag in column 2"),
        ("a X O\nb O\n", ":2: has 2 columns, expected 3"),
    ],
)
def test_a_line_without_a_tag_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        records(tmp_path / "bad.conll", text)


def test_a_model_learns_to_tag_from_the_file(tmp_path: Path) -> None:
    (file := tmp_path / "ner.conll").write_text((NAMES.partition("\n\n")[2] + "\n") * 30, encoding="utf-8")
    run = af.train(str(file), "model.dim=16", "model.stack.depth=1", steps=2, out=tmp_path / "run", cache=tmp_path)
    assert run.recipe.objective is not None and run.recipe.objective.kind == "token_labels"
