"""Drawings of models: a box for each of their parts, and an arrow for each way in which tokens meet."""

import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.viewing.small import encoder, pair

from anyformer.cli.main import main
from anyformer.core import PartSpec
from anyformer.core.discovery import discover
from anyformer.drawing.diagram import diagram, picture
from anyformer.drawing.unrolled import unrolled
from anyformer.parts.combine.bidirectional import Bidirectional
from anyformer.parts.combine.unidirectional import Unidirectional
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.mixers.conv import Conv
from anyformer.parts.mixers.linformer import Linformer
from anyformer.parts.mixers.lstm import LSTM
from anyformer.training import load

discover()


def looks(target: str) -> Counter[str]:
    return Counter(edge.look for edge in diagram(load(target)).edges)


@pytest.mark.row("VIZ-08", clause="an SVG is made from the model's config, with all its edges")
def test_a_transformer_has_all_its_arrows() -> None:
    found = looks("transformer-base")
    assert found == {"flow": 4 + 6, "residual": 5, "self": 1, "masked": 1, "cross": 1, "feedback": 1}


@pytest.mark.row("VIZ-08")
@pytest.mark.parametrize(
    ("target", "there"),
    [("bert-base", {"self"}), ("gpt2", {"masked", "feedback"}), ("lstm-lm", {"carried", "feedback"}),
     ("hybrid", {"carried", "masked", "feedback"}), ("rnn-attention", {"carried", "cross", "feedback"})],
)  # fmt: skip
def test_arrows_tell_the_families_apart(target: str, there: set[str]) -> None:
    assert set(looks(target)) - {"flow", "residual"} == there


@pytest.mark.parametrize(
    ("part", "look"), [(Linformer(), "self"), (Bidirectional(part=LSTM()), "carried"), (Conv(), "carried")]
)
def test_what_cannot_decode_is_known_by_what_is_inside(part: object, look: str) -> None:
    edges = diagram(encoder(part)).edges  # type: ignore[arg-type]
    assert {edge.look for edge in edges} == {"flow", "residual", look}


@pytest.mark.row(
    "VIZ-08",
    clause=(
        "an SVG is made from the model's config, with all its edges",
        "the number of nodes is the one the config implies",
    ),
)
def test_every_box_and_arrow_is_in_the_picture() -> None:
    shown = diagram(pair())
    tree = ElementTree.fromstring(picture("a <b> & c", shown))
    kinds = Counter(element.get("class") for element in tree.iter() if element.get("class"))
    assert kinds.pop("node") == sum(len(column.nodes) for column in shown.columns) == 3 + 1 + 4 + 2
    assert kinds == Counter(edge.look for edge in shown.edges)
    assert "a <b> & c" in {element.text for element in tree.iter()}


@pytest.mark.row(
    "VIZ-08", clause=("self-attention edges green, masked red, cross blue", "the fed-back output is a dotted edge")
)
def test_attention_is_green_masked_red_and_cross_blue_and_what_is_fed_back_is_dotted() -> None:
    tree = ElementTree.fromstring(picture("a pair", diagram(pair())))
    edges = [element for element in tree.iter() if element.get("class") and element.get("marker-end")]
    strongest = {}
    for edge in edges:
        colour = edge.get("stroke", "").removeprefix("#")
        channels = {name: int(colour[at : at + 2], 16) for name, at in (("red", 0), ("green", 2), ("blue", 4))}
        strongest[edge.get("class")] = max(channels, key=lambda name: channels[name])
    assert (strongest["self"], strongest["masked"], strongest["cross"]) == ("green", "red", "blue")
    dotted = {edge.get("class") for edge in edges if edge.get("stroke-dasharray")}
    assert dotted == {"feedback"}


@pytest.mark.row("VIZ-08", clause="drawn for RNN loop, RNN unrolled, encoder, decoder and enc-dec")
@pytest.mark.parametrize(
    ("target", "columns", "loops"),
    [("lstm-lm", 1, {"carried"}), ("bert-base", 1, {"self"}), ("gpt2", 1, {"masked"}),
     ("transformer-base", 2, {"self", "masked"})],
)  # fmt: skip
def test_a_loop_an_encoder_a_decoder_and_both_are_drawn(target: str, columns: int, loops: set[str]) -> None:
    shown = diagram(load(target))
    assert len(shown.columns) == columns
    at_one_box = {edge.look for edge in shown.edges if edge.start == edge.end}
    assert at_one_box - {"residual"} == loops
    tree = ElementTree.fromstring(picture(target, shown))
    assert (
        Counter(edge.look for edge in shown.edges).items() <= Counter(each.get("class") for each in tree.iter()).items()
    )


@pytest.mark.row("VIZ-08", clause="drawn for RNN loop, RNN unrolled, encoder, decoder and enc-dec")
def test_an_unrolled_recurrence_hands_its_state_and_its_output_to_the_next_token() -> None:
    once, shown = diagram(load("lstm-lm")), unrolled(load("lstm-lm"), 4)
    (loop,) = (edge.start for edge in once.edges if edge.look == "carried")
    edges = {look: [edge[:2] for edge in shown.edges if edge.look == look] for look in ("carried", "feedback")}
    assert edges["carried"] == [(f"{loop}@{step}", f"{loop}@{step + 1}") for step in (1, 2, 3)]
    head, tokens = once.columns[0].nodes[-1].name, once.columns[0].nodes[0].name
    assert edges["feedback"] == [(f"{head}@{step}", f"{tokens}@{step + 1}") for step in (1, 2, 3)]
    assert [column.nodes[0].text for column in shown.columns] == ["token 1", "token 2", "token 3", "token 4"]
    assert not any(edge.start == edge.end for edge in shown.edges if edge.look != "residual")
    tree = ElementTree.fromstring(picture("lstm-lm", shown))
    kinds = Counter(element.get("class") for element in tree.iter() if element.get("class"))
    assert kinds.pop("node") == 4 * len(once.columns[0].nodes) and kinds == Counter(edge.look for edge in shown.edges)


WAYS = {"back": {(2, 1), (3, 2)}, "forward": {(1, 2), (2, 3)}}


@pytest.mark.parametrize(
    ("part", "pairs"),
    [(Unidirectional(part=LSTM()), WAYS["forward"]), (Unidirectional(part=LSTM(), direction="back"), WAYS["back"]),
     (Bidirectional(part=LSTM()), WAYS["back"] | WAYS["forward"]),
     (Attention(heads=2), {(i, j) for i in (1, 2, 3) for j in (1, 2, 3) if i != j})],
    ids=["forward", "back", "both", "attention"],
)  # fmt: skip
def test_an_unrolled_encoder_passes_on_what_its_tokens_depend_on(part: PartSpec, pairs: set[tuple[int, int]]) -> None:
    edges = [edge for edge in unrolled(encoder(part), 3).edges if edge.look in ("carried", "self")]
    assert {tuple(int(name[-1]) for name in edge[:2]) for edge in edges} == pairs


def test_the_final_state_of_an_encoder_that_reads_from_the_end_is_that_of_its_first_token() -> None:
    edges = unrolled(load("rnn-seq2seq"), 3).edges
    handed = [edge[:2] for edge in edges if edge.start.startswith("encoder") and edge.end.startswith("decoder")]
    assert len(handed) == 1 and handed[0][0].endswith("@1") and handed[0][1] == "decoder.0.0@1"
    cross = Counter(edge.end for edge in unrolled(pair(), 3).edges if edge.look == "cross")
    assert cross == {f"decoder.0.1@{step}": 3 for step in (1, 2, 3)}  # every token reads all of the source


def test_encoders_that_hand_over_their_state_are_joined_to_their_decoders() -> None:
    edges = diagram(load("rnn-seq2seq")).edges
    assert [edge.look for edge in edges if edge.start.startswith("encoder") and edge.end.startswith("decoder")] == [
        "carried"
    ]


def test_a_drawing_is_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.svg"
    assert main(["config", "show", "gpt2", "model.stack.depth=3", "--svg", str(file), "-q"]) == 0
    assert capsys.readouterr().out.strip() == str(file) and "layer × 3" in file.read_text()
    assert main(["config", "show", "lstm-lm", "--svg", str(file), "--unroll", "3", "-q"]) == 0
    assert "token 3" in file.read_text() and "token 4" not in file.read_text()
    assert main(["config", "show", "lstm-lm", "--unroll", "3"]) == 2
    assert "--svg FILE" in capsys.readouterr().err
    assert main(["config", "show", "gpt2", "--svg", str(tmp_path / "no" / "model.svg")]) == 2
    assert re.search("--svg FILE", capsys.readouterr().err)
