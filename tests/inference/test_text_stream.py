"""Stop strings and pieces of text: nothing of a stop string is ever shown, no character is broken."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.generation.small import writer

from anyformer.errors import SpecError
from anyformer.generation.beam.beam_search import Beam
from anyformer.generation.engine import Engine, Request
from anyformer.inference.text_generator import GenerationConfig, Writer, Writers


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


def text_of(tokens: object) -> str:
    return bytes(tokens).decode(errors="replace")  # type: ignore[call-overload]


def spell(text: str, strings: tuple[str, ...], size: int) -> tuple[list[str], Writer]:
    tokens, w = bytes_of(text), Writer(text_of, strings)
    pieces = []
    for start in range(0, len(tokens), size):
        pieces.append(w.add(tokens[start : start + size]))
        if w.stopped:
            return pieces, w
    return [*pieces, w.end()], w


@settings(deadline=None, max_examples=150)
@given(
    some.text("abé€🙂", max_size=20),
    some.lists(some.text("abé€", min_size=1, max_size=3), max_size=2),
    some.integers(1, 5),
)
def test_pieces_make_up_the_text_before_the_first_stop_string(text: str, strings: list[str], size: int) -> None:
    pieces, w = spell(text, tuple(strings), size)
    ends = [(text.find(string) + len(string), text.find(string)) for string in strings if string in text]
    assert w.stopped == bool(ends)
    assert "".join(pieces) == (text[: min(ends)[1]] if ends else text)


def test_characters_are_shown_whole_and_possible_stops_late() -> None:
    pieces, _ = spell("a€b\n\nc", ("\n\n",), 1)
    assert pieces == ["a", "", "", "€", "b", "", ""]
    pieces, _ = spell("a\nb", ("\n\n",), 1)
    assert pieces == ["a", "", "\nb", ""]


def test_bytes_that_are_no_characters_do_not_hold_the_text_up() -> None:
    w = Writer(text_of)
    shown = "".join(w.add([255]) for _ in range(20)) + w.end()
    assert shown == "�" * 20


def test_a_stop_string_ends_its_request_and_no_other() -> None:
    engine = Engine(writer(vocab=128), max_len=40)
    requests = [Request(prompt=[n]) for n in (3, 50, 99)]
    free = ["".join(map(chr, row.tokens)) for row in engine.generate(requests, max_new=12)]
    stop = free[1][4:6]
    writers, texts = Writers(lambda tokens: "".join(map(chr, tokens)), (stop,)), ["", "", ""]
    for chunk in engine.stream(requests, max_new=12, watch=writers):
        texts[chunk.row] += writers.piece(chunk)
    assert texts == [text.split(stop)[0] for text in free]
    assert len(texts[1]) <= 4


@pytest.mark.parametrize("beam", [None, Beam(width=2)])
def test_an_empty_stop_string_is_refused(beam: Beam | None) -> None:
    with pytest.raises(SpecError, match=r"stop\[1\]: an empty"):
        GenerationConfig(stop=("a", ""), beam=beam)
