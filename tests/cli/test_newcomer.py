"""What a new user types first: help, a wrong name, one claim, another folder, a small file."""

import json
from pathlib import Path

import pytest
from tests.cli.test_faults import refused
from tests.cli.test_main import fail_with
from tests.evaluation.runs import file, run_of
from tests.training.small import TINY, text

from anyformer.cli.main import main
from anyformer.cli.output.run_options import clean
from anyformer.errors import Interrupted

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def printed(capsys: Capture, *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_help_is_a_verb_and_v_is_the_version(capsys: Capture) -> None:
    assert printed(capsys, "help", "cost") == printed(capsys, "cost", "--help")
    assert printed(capsys, "help") == printed(capsys, "--help")
    assert printed(capsys, "-v") == printed(capsys, "--version")


def test_an_interruption_is_not_called_an_error(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    fail_with(Interrupted("Ctrl-C: saved at step 49.", 130), monkeypatch)
    assert main(["cost"]) == 130
    assert capsys.readouterr().err == "Ctrl-C: saved at step 49.\n"


def test_a_part_that_does_not_exist_is_answered_with_the_nearest_names(capsys: Capture) -> None:
    complaint = refused(capsys, 2, "parts", "ropee")
    assert "Did you mean rope" in complaint and len(complaint) < 150


def test_the_page_of_one_claim_leaves_the_page_of_all_alone(home: Path, capsys: Capture) -> None:
    (home / "claims.html").write_text("all claims")
    assert "CLM-10.html" in printed(capsys, "claims", "CLM-10", "--out", ".")
    assert (home / "claims.html").read_text() == "all claims"


def test_an_architecture_is_chosen_by_a_preset_and_errors_say_so(home: Path, capsys: Capture) -> None:
    assert "model.preset=" in printed(capsys, "train", "--help")
    assert "model.preset=small-encoder" in refused(capsys, 2, "train", text(home), "model.kind=encoder")
    assert "model.preset=small-encoder" in refused(capsys, 2, "train", text(home), "objective.kind=masked_words")


def test_a_reader_sees_neither_control_characters_nor_broken_bytes() -> None:
    assert clean("a\x1ab\ufffdc\u202e\n\td") == "abc\n\td"


def test_one_text_is_not_called_texts(capsys: Capture) -> None:
    assert "1 text, 6 tokens: " in printed(
        capsys, "evaluate", str(run_of("language").folder), file("texts"), "--limit", "1"
    )


def test_the_first_update_has_a_learning_rate(home: Path, capsys: Capture) -> None:
    words = ("train", text(home), *TINY, "train.steps=3", "schedule.warmup=2", "--out", "run", "--json")
    rates = [json.loads(line)["lr"] for line in printed(capsys, *words).splitlines() if '"lr"' in line]
    assert rates[0] == pytest.approx(rates[1] / 2)


def test_a_run_finds_its_relative_data_from_another_folder(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text(home)
    assert main(["train", "sentences.txt", *TINY, "train.steps=2", "--out", "run"]) == 0
    (home / "elsewhere").mkdir()
    monkeypatch.chdir(home / "elsewhere")
    assert "loss" in printed(capsys, "evaluate", "../run")
    assert "already complete" in printed(capsys, "train", "../run", "--resume")


def test_train_says_that_a_file_is_smaller_than_a_batch(home: Path, capsys: Capture) -> None:
    (home / "three.txt").write_text("the cat sat on the mat\nand looked at the moon\nfor a while\n")
    words = (
        "train",
        "three.txt",
        "train.steps=1",
        "model.dim=16",
        "data.context=32",
        "model.stack.depth=1",
        "sample.tokens=1",
    )
    assert "tokens to train on: each update reads all of them" in printed(capsys, *words, "--out", "run")


@pytest.mark.parametrize("packing", ["bucket", "pack"])
def test_train_says_how_much_of_long_texts_is_not_read(packing: str, home: Path, capsys: Capture) -> None:
    (home / "long.txt").write_text("\n".join(f"{number} " + "the cat sat on the mat " * 4 for number in range(30)))
    settings = ("train.steps=1", "model.dim=16", "data.context=32", "model.stack.depth=1", "sample.tokens=1")
    words = ("data.source.documents=line", "data.tokenizer.kind=byte", f"data.packing={packing}", *settings)
    said = printed(capsys, "train", "long.txt", *words, "--out", "run")
    assert ("longer than data.context=32 lost the end. Raise it, or use data.packing=pack" in said) == (
        packing == "bucket"
    )
    assert ("training tokens (6" in said) == (packing == "bucket")  # 30 of about 95 bytes are left


def test_search_explains_its_scores_and_names_what_it_did_not_read(home: Path, capsys: Capture) -> None:
    (home / "notes").mkdir()
    (home / "notes" / "a.txt").write_text("the cat runs over the lake")
    (home / "notes" / "b.md").write_text("the fox looks over the wall")
    assert main(["search", str(run_of("classes").folder), "notes", "the cat", "source.pattern=*.txt"]) == 0
    notes = capsys.readouterr().err
    assert (
        "1 file is not read (1 .md: b.md)" in notes
        and "from -1 to 1. This run was not trained to compare texts" in notes
    )
