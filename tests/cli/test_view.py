"""`anyformer view`: the page it writes, the row it prints, and what it refuses."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.viewing.small import EVIL, TEXT, decoder, encoder, pair, run

from anyformer.analysis.head_roles import head_roles
from anyformer.cli.main import main
from anyformer.core import Frame, capture
from anyformer.drawing.figures import one_line
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.seq2seq import Seq2Seq
from anyformer.objectives.token_labels import TokenLabels
from anyformer.parts.channels.identity import Identity
from anyformer.parts.combine.bidirectional import Bidirectional
from anyformer.parts.mixers.gru import GRU
from anyformer.run import Run
from anyformer.viewing.view import View

Capture = pytest.CaptureFixture[str]


@pytest.mark.row("VIZ-06", clause="command line --layer --head prints the chosen row")
def test_a_chosen_layer_head_and_token_give_the_row_of_the_tensor(tmp_path: Path, capsys: Capture) -> None:
    folder, model = run(tmp_path / "run", encoder(), TokenLabels(classes=3))
    with capture(model, "*.pattern") as seen, torch.no_grad():
        model(torch.tensor([Run.open(folder).tokenizer.encode(TEXT)]), Frame())
    assert main(["view", str(folder), TEXT, "--layer", "2", "--head", "1", "--token", "it", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = list(seen.values())[1][0][0, 0, TEXT.split().index("it")]
    assert found["rows"] == ["it"] and found["columns"] == TEXT.split()
    torch.testing.assert_close(torch.tensor(found["weights"][0]), expected)
    assert not (folder / "view.html").exists()


def test_a_token_of_white_space_is_a_symbol_in_lines_and_pictures(tmp_path: Path) -> None:
    view = View.of(run(tmp_path / "run", encoder(), TokenLabels(classes=3))[0], "the wide")
    names = ["\n", " "]
    spaced = replace(view, reading=replace(view.reading, names=names)).choose(layer="2")
    assert [line.split()[0] for line in spaced.lines()[1:]] == ["\u21b5", "\u2423"]
    assert [one_line(name) for name in (*names, " the", "\x01")] == ["\u21b5", "\u2423", "the", ""]


def test_what_is_not_shown_of_a_long_text_is_told(tmp_path: Path, capsys: Capture) -> None:
    folder, _ = run(tmp_path / "run", decoder(max_len=160, depth=1), NextToken())
    assert main(["view", str(folder), " ".join(["it"] * 200)]) == 0
    shown, notes = capsys.readouterr()
    assert "show the first 128 of 159 tokens" in notes and "42 tokens at the end of the text did not fit" in notes
    assert "give that part of the text alone" in notes and len(shown.splitlines()) == 130
    assert main(["view", str(folder), "it was"]) == 0
    assert "To see the rest" not in capsys.readouterr().err


@pytest.mark.row("VIZ-06", clause="several heads are compared: what each one attends to is shown")
def test_without_a_chosen_head_every_head_is_told_beside_the_mean(tmp_path: Path, capsys: Capture) -> None:
    folder, _ = run(tmp_path / "run", encoder(), TokenLabels(classes=3))
    assert main(["view", str(folder), TEXT, "--layer", "2", "--token", "it"]) == 0
    lines = capsys.readouterr().out.splitlines()
    view, at = View.of(folder, TEXT), TEXT.split().index("it")
    for head in (1, 2):
        best = view.choose(layer="2", head=head).strongest(at, 3)
        told = ", ".join(f"{name} {value:.4f}" for name, value in best)
        assert f"head {head}  ->  {told}" in [line.strip() for line in lines]
    assert view.choose(layer="2", head=1).strongest(at, 3) != view.choose(layer="2", head=2).strongest(at, 3)
    assert main(["view", str(folder), TEXT, "--head", "1", "--token", "it"]) == 0
    assert "head 2" not in capsys.readouterr().out


@pytest.mark.row("VIZ-12", clause="probing: what a head does is read off by a probe")
def test_the_roles_of_heads_are_in_the_json(tmp_path: Path, capsys: Capture) -> None:
    folder, _ = run(tmp_path / "run", encoder(), TokenLabels(classes=3))
    assert main(["view", str(folder), TEXT, "--layer", "1", "--json"]) == 0
    weights = View.of(folder, TEXT).choose(layer="1").sheet.weights
    roles = head_roles(weights, Run.open(folder).tokenizer.encode(TEXT))
    expected = [None if role is None else {"name": role.name, "share": pytest.approx(role.share)} for role in roles]
    assert json.loads(capsys.readouterr().out)["roles"] == expected


def test_the_page_is_written_and_its_strongest_weights_are_told(tmp_path: Path, capsys: Capture) -> None:
    folder, _ = run(tmp_path / EVIL.replace("/", "_"), encoder())
    assert main(["view", str(folder), f"it was {EVIL}", "--token", "it"]) == 0
    out = capsys.readouterr().out
    assert f"written: {folder / 'view.html'}" in out and "it  ->" in out
    text = (folder / "view.html").read_text()
    assert text.startswith("<!doctype html>") and EVIL not in text and text.count("<script") == 2


@pytest.mark.row("WMT-10", clause="demonstration: a sentence is translated with its alignment shown")
def test_a_sentence_is_translated_and_every_word_written_has_its_shares_of_the_source(
    tmp_path: Path, capsys: Capture
) -> None:
    folder, _ = run(tmp_path / "run", pair(), Seq2Seq())
    assert main(["view", str(folder), "the animal did", "--layer", "cross", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (written,) = Run.open(folder).generate(["the animal did"])
    assert written and found["rows"][: len(written.split())] == written.split()
    assert found["columns"][:3] == ["the", "animal", "did"]
    assert [sum(row) for row in found["weights"]] == pytest.approx([1.0] * len(found["rows"]))


@pytest.mark.row("VIZ-05", clause="a PNG or SVG file is produced")
@pytest.mark.row("WMT-10", clause="a heat-map of source against target words is written")
def test_a_text_comes_from_standard_input_and_a_map_by_its_ending(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = run(tmp_path / "run", pair(), Seq2Seq())
    monkeypatch.setattr("sys.stdin", io.StringIO("the animal"))
    out = tmp_path / "alignment.svg"
    arguments = ["view", str(folder), "-", "--target", "it was", "--layer", "cross", "--out", str(out), "-q"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.strip() == str(out) and "animal" not in out.read_text()[:200]
    named = re.findall("<!-- (.*) -->", out.read_text())
    assert named[:2] == ["the", "animal"] and named[-3:-1] == ["it", "was"] and out.read_text().count("<image") == 1


@pytest.mark.row(
    "VIZ-07",
    clause=(
        "coreference demo: two sentences alike but for 'tired' or 'wide'",
        "attention from 'it' is reported for both sentences",
        "contextual vectors of 'it' differ between the two sentences",
    ),
)
def test_what_it_looks_at_is_told_for_tired_and_for_wide_and_its_vectors_differ(
    tmp_path: Path, capsys: Capture
) -> None:
    folder, _ = run(tmp_path / "run", encoder(), TokenLabels(classes=3))
    views = [View.of(folder, text) for text in (TEXT, TEXT.replace("tired", "wide"))]
    it = TEXT.split().index("it")
    assert not torch.allclose(views[0].vectors[it], views[1].vectors[it])
    for view in views:
        assert main(["view", str(folder), view.text, "--token", "it", "--head", "1"]) == 0
        best, weight = view.choose(head=1, token="it").strongest(it, 1)[0]
        assert f"it  ->  {best} {weight:.4f}" in capsys.readouterr().out


@pytest.mark.row("PRE-02", clause="a command shows 'I record the record' with both cosines")
@pytest.mark.parametrize("part", [Identity(), Bidirectional(part=GRU())], ids=lambda part: part.kind)
def test_the_vectors_of_a_word_in_two_places_are_compared(part, tmp_path: Path, capsys: Capture) -> None:
    folder, _ = run(tmp_path / "run", encoder(part))
    assert main(["view", str(folder), "I record the record", "--token", "record", "--json"]) == 0
    ((found,),) = (json.loads(capsys.readouterr().out)["alike"],)
    assert found["places"] == [2, 4]
    assert found["cosine"] == pytest.approx(1.0) if part.kind == "identity" else found["cosine"] < 0.999


REFUSED = {
    "'sideways'": ["--layer", "sideways.1"],
    "--layer": ["--layer", "9"],
    "--head": ["--head", "9"],
    "--token": ["--token", "wolf"],
    "--target": ["--target", "es"],
    "page.pdf": ["--out", "page.pdf"],
    "missing/page.html": ["--out", "missing/page.html"],
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_is_not_there_is_refused_in_a_line(word: str, tmp_path: Path, capsys: Capture) -> None:
    folder, _ = run(tmp_path / "run", encoder())
    assert main(["view", str(folder), TEXT, *REFUSED[word]]) == 2
    said = capsys.readouterr().err
    assert word.removesuffix(".pdf").removeprefix("missing/") in said and said.count("error:") == 1
