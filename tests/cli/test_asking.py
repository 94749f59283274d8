"""The verbs that ask a run, as a user meets them: their words, their lines of JSON, their exit codes."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.evaluation.runs import SENTENCES, file, rows, run_of

from anyformer.cli.main import main
from anyformer.reporting.run_facts import RunFacts
from anyformer.reporting.run_report import run_markdown

Capture = pytest.CaptureFixture[str]


def ask(capsys: Capture, *words: str) -> str:
    code = main(list(words))
    captured = capsys.readouterr()
    assert code == 0 and "Traceback" not in captured.err, captured.err
    return captured.out


def lines(capsys: Capture, verb: str, *words: str) -> list[Any]:
    return [json.loads(line) for line in ask(capsys, verb, "--json", *words).splitlines()]


def folder(name: str) -> str:
    return str(run_of(name).folder)


def feed(monkeypatch: pytest.MonkeyPatch, *texts: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{text}\n" for text in texts)))


def test_a_language_model_goes_on(capsys: Capture) -> None:
    said = ask(capsys, "generate", folder("language"), "the cat", "sampler.kind=greedy")
    (same,) = lines(capsys, "generate", folder("language"), "the cat", "sampler.kind=greedy")
    assert said.rstrip("\n") == same["text"] and same["prompt"] == "the cat" and same["finish"] == "stop"


def test_every_word_after_two_dashes_is_text(capsys: Capture) -> None:
    texts = ("self.x=1", "sampler.kind=greedy")
    answers = lines(capsys, "generate", folder("language"), "--max-new", "2", "--", *texts)
    assert [answer["prompt"] for answer in answers] == list(texts)


def test_temperature_zero_is_greedy_and_a_seed_decides(capsys: Capture) -> None:
    words = ("generate", folder("language"), "the cat")
    assert ask(capsys, *words, "sampler.temperature=0") == ask(capsys, *words, "sampler.kind=greedy")
    hot = (*words, "sampler.temperature=2", "sampler.top_k=40", "--max-new", "12")
    assert ask(capsys, *hot, "--seed", "1") == ask(capsys, *hot, "--seed", "1") != ask(capsys, *hot, "--seed", "2")


def test_filters_and_beams_are_told_by_their_names(capsys: Capture) -> None:
    filters = ("sampler.top_p=0.9", "sampler.min_p=0.01", "sampler.typical=0.95", "sampler.repetition_penalty=1.3")
    assert ask(capsys, "generate", folder("language"), "the", *filters, "--max-new", "4")
    beams = ("beam=3", "beam.best=2", "beam.penalty.exponent=0.5")
    (found,) = lines(capsys, "generate", folder("pairs"), SENTENCES[0], *beams)
    assert len(found["others"]) == 1
    assert ask(capsys, "generate", folder("pairs"), SENTENCES[0], *beams).splitlines() == [
        found["text"],
        *found["others"],
    ]


def test_prompts_of_standard_input_are_answered_in_order(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, "the cat", "", "the dog jumps over")
    found = lines(capsys, "generate", folder("language"), "--max-new", "3")
    assert [row["prompt"] for row in found] == ["the cat", "the dog jumps over"]


def test_a_file_of_any_form_gives_texts(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat runs over the lake\n\nthe fox looks over the wall\n")
    (tmp_path / "a.jsonl").write_text(
        '{"body": "the cat runs over the lake", "remark": "a far longer text than the other column has"}\n'
        '{"body": "the fox looks over the wall", "remark": "which would be taken if no column were named"}\n'
    )
    plain = lines(capsys, "classify", folder("classes"), "--file", str(tmp_path / "a.txt"))
    table = lines(capsys, "classify", folder("classes"), "-f", str(tmp_path / "a.jsonl"), "source.text=body")
    assert plain == table and [row["label"] for row in plain] == ["water", "land"]
    assert sum(plain[0]["probabilities"].values()) == pytest.approx(1.0)


def test_a_label_column_is_not_read_where_only_texts_are_needed(capsys: Capture, tmp_path: Path) -> None:
    rows = [{"text": "the cat", "labels": ["a", "b"]}, {"text": "the dog", "labels": None}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for verb, name in (("classify", "classes"), ("embed", "vectors"), ("generate", "language")):
        assert len(lines(capsys, verb, folder(name), "--file", str(tmp_path / "x.jsonl"))) == 2


def test_other_data_are_scored_by_the_columns_that_are_named(capsys: Capture, tmp_path: Path) -> None:
    renamed = [{"Satz": row["text"], "Art": row["label"]} for row in rows("classes")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, renamed)))
    same = ask(capsys, "evaluate", folder("classes"), file("classes"), "--json", "--no-yardsticks")
    named = ("source.text=Satz", "source.label=Art")
    assert (
        ask(capsys, "evaluate", folder("classes"), str(tmp_path / "a.jsonl"), *named, "--json", "--no-yardsticks")
        == same
    )


@pytest.mark.parametrize("verb", ["classify", "evaluate", "search"])
def test_the_columns_of_a_file_are_named_as_the_messages_name_them(verb: str, capsys: Capture, tmp_path: Path) -> None:
    table = tmp_path / "a.jsonl"
    table.write_text("".join(json.dumps({"Satz": row["text"], "Art": row["label"]}) + "\n" for row in rows("classes")))
    run, extra = folder("vectors" if verb == "search" else "classes"), ["--top", "1"] if verb == "search" else []
    words = [str(table)] if verb == "evaluate" else ["--file", str(table)]
    words = [str(table), "the cat"] if verb == "search" else words
    assert main([verb, run, *words, "source.text=nope"]) == 3
    key = re.search(r"Say which: (\S+)=", " ".join(capsys.readouterr().err.split()))
    assert key is not None
    label = ["data.source.label=Art", "--no-yardsticks"] if verb == "evaluate" else []
    assert ask(capsys, verb, run, *words, f"{key[1]}=Satz", *label, *extra)


def test_a_column_without_its_section_gets_the_right_key(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "the cat"}\n')
    assert main(["classify", folder("classes"), "--file", str(tmp_path / "a.jsonl"), "text=body"]) == 2
    assert "write source.text=body" in capsys.readouterr().err


def test_an_answer_is_one_line_and_with_quiet_the_label_alone(capsys: Capture) -> None:
    assert ask(capsys, "classify", folder("classes"), "the cat runs over the lake", "-q") == "water\n"
    assert len(ask(capsys, "classify", folder("classes"), "the cat\nruns\r\nover").splitlines()) == 1
    assert "the/other cat/noun" in ask(capsys, "classify", folder("tags"), "the cat runs over the lake")


def test_gaps_are_filled(capsys: Capture) -> None:
    (found,) = lines(capsys, "fill", folder("masked"), "the <mask> runs over the lake", "--top", "2")
    assert len(found["gaps"]) == 1 and len(found["gaps"][0]) == 2 and found["text"].endswith("runs over the lake")
    assert found["text"] in ask(capsys, "fill", folder("masked"), "the <mask> runs over the lake")


def test_vectors_go_to_a_file_or_to_the_screen(capsys: Capture, tmp_path: Path) -> None:
    texts = SENTENCES[:3]
    ask(capsys, "embed", folder("vectors"), *texts, "--out", str(tmp_path / "x.npy"))
    stored = np.load(tmp_path / "x.npy")
    shown = [json.loads(line) for line in ask(capsys, "embed", folder("vectors"), *texts).splitlines()]
    assert stored.shape == (3, 32) and [row["text"] for row in shown] == texts
    np.testing.assert_allclose([row["vector"] for row in shown], stored, atol=1e-6)
    ask(capsys, "embed", folder("vectors"), *texts, "--out", str(tmp_path / "x.jsonl"))
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()] == shown


def test_documents_are_found_and_an_index_is_kept(capsys: Capture, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text("\n\n".join(SENTENCES[:6]))
    words = ("search", folder("vectors"), str(notes), SENTENCES[3], "--top", "2", "--index", str(tmp_path / "index"))
    (found,) = lines(capsys, *words)
    assert found["hits"][0]["text"] == SENTENCES[3] and found["hits"][0]["score"] == pytest.approx(1.0)
    assert [hit["rank"] for hit in found["hits"]] == [1, 2]
    before = (tmp_path / "index" / "vectors.npy").stat().st_mtime_ns
    assert lines(capsys, *words) == [found] and (tmp_path / "index" / "vectors.npy").stat().st_mtime_ns == before
    (notes / "a.txt").write_text("\n\n".join(SENTENCES[:7]))
    lines(capsys, *words)
    assert (tmp_path / "index" / "vectors.npy").stat().st_mtime_ns != before


def test_evaluate_keeps_its_contract(capsys: Capture) -> None:
    found = json.loads(ask(capsys, "evaluate", folder("pairs"), "--json", "--limit", "5", "--no-yardsticks"))
    assert all(set(score) == {"value", "low", "high", "texts", "tokens", "signature"} for score in found.values())
    assert found["bleu"]["texts"] == 5 and found["bleu"]["tokens"] > 5 and found["bleu"]["low"] is None
    assert "version:" in found["bleu"]["signature"] and "greedy" in found["bleu"]["signature"]
    by_beam = json.loads(
        ask(
            capsys,
            "evaluate",
            folder("pairs"),
            "beam=2",
            "--metric",
            "bleu",
            "--limit",
            "5",
            "--json",
            "--no-yardsticks",
        )
    )
    assert list(by_beam) == ["bleu"] and "beam 2" in by_beam["bleu"]["signature"]
    table = ask(capsys, "evaluate", folder("classes"), file("classes"), "--limit", "9")
    assert "9 texts, 54 tokens: " in table and "accuracy" in table and "too few" in table
    by_place = ("evaluate", folder("language"), "--metric", "by_position", "-q")
    assert "loss_at_position_4 " in ask(capsys, *by_place)


def test_what_a_model_says_never_drives_a_terminal(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat \x1b[31m runs over the lake\n")
    assert "\x1b" not in ask(capsys, "classify", folder("classes"), "--file", str(tmp_path / "a.txt"))


def test_a_score_stands_beside_that_of_a_simple_method(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shown = ask(capsys, "evaluate", folder("classes"))
    assert "accuracy: " in shown and "a bag of words" in shown and "the most frequent class" in shown
    stored = json.loads((run_of("classes").folder / "evaluations" / "valid.json").read_text())["yardsticks"]
    bag = {each["score"]: each["sentence"] for each in stored if each["yardstick"] == "bag_of_words"}
    assert set(bag) == {"accuracy", "loss"} and len(stored) == 3
    page = run_markdown(RunFacts.of(run_of("classes").folder))
    assert all(f"{score}: {sentence}" in text for score, sentence in bag.items() for text in (shown, page))
    table = json.loads(ask(capsys, "evaluate", folder("language"), "--json"))["yardsticks"]
    assert {each["yardstick"] for each in table} == {"n_gram", "xz"}
    assert all(each["difference"]["value"] for each in table)
    assert len(list((tmp_path / "anyformer" / "data" / "yardsticks").iterdir())) == 4


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["generate", "language", "x", "sampler.temperature=-1"], 2, "sampler.temperature: must be at least 0"),
        (["generate", "language", "x", "sampler.temperature=nan"], 2, "sampler.temperature: expected a finite number"),
        (["generate", "language", "x", "sampler.temperature=hot"], 2, "sampler.temperature"),
        (["generate", "language", "x", "sampler.top_p=1.1"], 2, "sampler.top_p: must be at most 1"),
        (["generate", "language", "x", "sampler.topp=1"], 2, "Did you mean 'top_p'?"),
        (["generate", "language", "x", "sampler.kind=os.system"], 2, "os.system"),
        (["generate", "language", "x", "sampler=greedy"], 2, "Write sampler.kind=greedy"),
        (["generate", "language", "x", "temperature=1"], 2, "Write sampler.temperature=1"),
        (["generate", "language", "x", "beams=4"], 2, "Write beam=4"),
        (["generate", "language", "x", "smapler.temperature=1"], 2, "Did you mean 'sampler'?"),
        (["generate", "language", "x", "model.dim=3"], 2, "Known: beam, sampler, source."),
        (["generate", "language", "x", "sampler.temperature=3x="], 2, "sampler.temperature"),
        (["evaluate", "language", "sorce.text=body"], 2, "Did you mean 'source'?"),
        (["generate", "language", "x", "beam.width=0"], 2, "beam.width: must be at least 1"),
        (["generate", "language", "x", "beam=2", "sampler.temperature=1"], 2, "Keep one"),
        (["generate", "language", "x", "sampler.logit_bias={99999=1.0}"], 2, "the model has only"),
        (["generate", "language", "x", "--max-new", "0"], 2, "--max-new"),
        (["generate", "language", "x", "--stop", ""], 2, "stop"),
        (["generate", "language", "x", "--device", "cuda"], 2, "this device is not available"),
        (["generate", "language", "the cat " * 2000], 2, "takes 1,023 at most"),
        (["generate", "pairs", ""], 2, "is empty"),
        (["generate", "pairs", "the cat " * 2000], 2, "takes 1,024 at most"),
        (["generate", "classes", "x"], 2, "What fits: anyformer classify"),
        (["classify", "language", "x"], 2, "What fits: anyformer generate"),
        (["fill", "classes", "x"], 2, "it cannot fill"),
        (["fill", "masked", "no gap"], 2, "write <mask>"),
        (["fill", "masked", "<mask> " * 3000], 2, "at most"),
        (["classify", "judged", "alone"], 3, "Put a tab between them"),
        (["embed", "vectors", ""], 2, "is empty"),
        (["embed", "vectors", "x", "--out", "x.pkl"], 2, ".npy or .jsonl"),
        (["embed", "vectors", "x", "--file", "y"], 2, "Use one of them"),
        (["generate", "language", "x", "--file", "y"], 2, "Use one of them"),
        (["embed", "vectors", "--file", "nowhere.txt"], 3, "nowhere.txt"),
        (["search", "vectors", "nowhere/", "x"], 3, "nowhere"),
        (["evaluate", "language", "nowhere.txt"], 3, "nowhere.txt"),
        (["evaluate", "language", "a", "b"], 2, "one path"),
        (["evaluate", "language", "--metric", "bleu"], 2, "has no 'bleu'"),
        (["evaluate", "language", "--split", "test"], 3, "no split 'test'"),
    ],
)
def test_what_is_wrong_is_named_with_the_right_code(words: list[str], code: int, said: str, capsys: Capture) -> None:
    verb, name, *rest = words
    found = main([verb, folder(name), *rest])
    err = capsys.readouterr().err
    assert found == code and said in err and "Traceback" not in err, err


def test_an_unknown_run_gets_the_nearest_name(capsys: Capture) -> None:
    near = folder("language")
    assert main(["generate", near + "s", "x"]) == 2
    assert f"Did you mean {near}?" in " ".join(capsys.readouterr().err.split())


def test_a_label_that_training_never_saw_is_named(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "the cat", "label": "fire"}\n')
    assert main(["evaluate", folder("classes"), str(tmp_path / "x.jsonl")]) == 3
    assert "x.jsonl:1: the label 'fire' was never seen" in " ".join(capsys.readouterr().err.split())


def test_an_empty_prompt_begins_a_text(capsys: Capture) -> None:
    assert ask(capsys, "generate", folder("language"), "", "sampler.kind=greedy").startswith("the")


@pytest.mark.parametrize("width", ["beam=1000000000", "beam.width=1000000000000"])
def test_a_beam_that_memory_cannot_hold_is_refused_with_the_width_that_fits(capsys: Capture, width: str) -> None:
    assert main(["generate", folder("language"), "the cat", width]) == 2
    complaint = capsys.readouterr().err
    assert "beam.width" in complaint and "are free. Use at most" in complaint


def test_a_temperature_below_what_numbers_resolve_is_greedy(capsys: Capture) -> None:
    words = ("generate", folder("language"), "the cat")
    assert ask(capsys, *words, "sampler.temperature=1e-40") == ask(capsys, *words, "sampler.kind=greedy")
