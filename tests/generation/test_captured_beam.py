"""Captured rounds of beam search, whose bodies a CPU can run as they are: they find what eager steps find."""

from typing import Any

import pytest
import torch
from tests.generation.emulated import in_rounds
from tests.generation.small import translator, writer
from torch.utils._pytree import tree_leaves, tree_map

from anyformer.generation.accelerate import captured_stepper
from anyformer.generation.accelerate.captured_stepper import CapturedRounds, CapturedStepper
from anyformer.generation.beam import beam_search
from anyformer.generation.beam.beam_search import Beam, Hypothesis, search
from anyformer.generation.beam.hypotheses import begin, extend
from anyformer.generation.beam.penalties import Power
from anyformer.generation.engine import Engine, Request

SOURCES = [[3, 1, 4, 1, 5], [9, 2], [6, 2, 8], [7], [8, 8, 3], [5, 3, 5, 8, 9, 7], [1, 2]]
ASKED = [Request(source=source, prompt=[1, 4, 6][: 1 + row % 3]) for row, source in enumerate(SOURCES)]
OTHERS = [Request(source=source[::-1], prompt=[2]) for source in SOURCES]


def searches() -> list[Any]:
    """Every patience with every end: each of both once in the fast suite, the other pairs in the slow one."""
    patiences, ends = ["full", "likely", "certain"], [([5], 21), ([1, 5, 8], 16), ([], 5)]
    return [
        pytest.param(patience, *end, marks=() if place == number else pytest.mark.slow)
        for place, patience in enumerate(patiences)
        for number, end in enumerate(ends)
    ]


def check_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[each[::2] for each in row] for row in found] == [[each[::2] for each in row] for row in expected]
    scores = [[each.score for row in rows for each in row] for rows in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.row("TSK-08")
@pytest.mark.parametrize(("patience", "stop", "new"), searches())
def test_rounds_find_what_steps_find(patience: Any, stop: list[int], new: int) -> None:
    model, beam = translator(), Beam(width=3, best=3, penalty=Power(exponent=0.7), patience=patience)
    expected = search(Engine(model, max_len=20, bos=1), ASKED, beam, max_new=new, stop=stop)
    found = search(in_rounds(model, max_len=20, bos=1)[0], ASKED, beam, max_new=new, stop=stop)
    check_same(found, expected)
    assert len({len(each.tokens) for row in found for each in row}) > (len(stop) > 0)  # they do end apart


def test_rounds_go_on_from_prompts_alone() -> None:
    model, asked = writer(), [Request(prompt=[3 + row, 7, 2][: 1 + row % 3]) for row in range(5)]
    expected = search(Engine(model, max_len=30), asked, Beam(best=2), max_new=20, stop=[9])
    check_same(search(in_rounds(model, max_len=30)[0], asked, Beam(best=2), max_new=20, stop=[9]), expected)


def test_a_round_serves_the_next_batch_of_its_shape() -> None:
    model = translator()
    plain, (engine, bodies) = Engine(model, max_len=32, bos=1), in_rounds(model, max_len=32, bos=1, batch=16)
    for asked, stop in ((ASKED, 5), (OTHERS, 8), (ASKED[:4], 5)):
        expected = search(plain, asked, Beam(best=4), max_new=10, stop=[stop])
        check_same(search(engine, asked, Beam(best=4), max_new=10, stop=[stop]), expected)
    assert len(bodies) <= 3  # of four, two and one sentences


def test_a_batch_shrinks_when_three_quarters_of_it_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_search, "STEPS", 2)
    monkeypatch.setattr(captured_stepper, "_FEWEST_ROWS", 1)
    sizes, take = [], CapturedRounds.take
    monkeypatch.setattr(CapturedRounds, "take", lambda *args: (sizes.append(len(args[4].history.over)), take(*args))[1])
    model, beam = translator(), Beam(width=3, best=2, patience="full")
    expected = search(Engine(model, max_len=32, bos=1), ASKED, beam, max_new=20, stop=[1, 5, 8])
    found = search(in_rounds(model, max_len=32, bos=1)[0], ASKED, beam, max_new=20, stop=[1, 5, 8])
    check_same(found, expected)
    assert len(sizes) > 1 and sizes == sorted({*sizes}, reverse=True) and {*sizes} <= {1, 2, 8}


def test_what_was_found_for_a_sentence_that_is_over_stays() -> None:
    tables = begin([12, 4], 3, [1.0] * 12, [5], torch.device("cpu"))
    rng, first = torch.Generator().manual_seed(0), None
    for _ in range(30):  # beyond the end, too
        tables = extend(tables, 4 * torch.randn(6, 23, generator=rng), "likely")
        if first is None and tables.over[1]:
            first = [column[1].clone() for column in tables.done]
    assert first is not None and tables.over.all()
    assert all(column[1].equal(before) for column, before in zip(tables.done, first, strict=True))


def test_what_an_encoder_said_is_never_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, release = [], CapturedRounds.release
    monkeypatch.setattr(CapturedRounds, "release", lambda *args: (rounds.append(args[1]), release(*args))[1])
    search(in_rounds(translator(), max_len=32, bos=1)[0], ASKED, Beam(width=3), max_new=4)
    lengths = [leaf.shape[1] for leaf in tree_leaves(rounds[0].buffers.state)]
    assert rounds[0]._static == [length == 32 for length in lengths]  # sources are filled up to 32, states hold 32 + 1
    assert {*lengths} == {32, 33}


def test_what_needs_one_word_captures_nothing() -> None:
    engine, bodies = in_rounds(writer(), max_len=12)
    found = search(engine, [Request(prompt=[1])], Beam(), max_new=1)
    check_same(found, search(Engine(writer(), max_len=12), [Request(prompt=[1])], Beam(), max_new=1))
    assert not bodies


def test_copies_that_fill_up_a_batch_do_not_keep_it_large(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, select = [], CapturedStepper.select
    monkeypatch.setattr(CapturedStepper, "select", lambda *args: (sizes.append(len(args[1])), select(*args))[1])
    asked = [Request(prompt=[1] * length) for length in (1, 30, 30, 30, 30)]  # a batch of 8, of which one goes on
    search(in_rounds(writer(), max_len=40)[0], asked, Beam(), max_new=39)
    assert sizes[0] == 5 and sizes[-1] == 1


@pytest.mark.parametrize("rounds", [False, True])
def test_inference_mode_finds_the_same(rounds: bool) -> None:
    engine = in_rounds(writer(), max_len=12)[0] if rounds else Engine(writer(), max_len=12)
    with torch.inference_mode():
        found = search(engine, [Request(prompt=[1])], Beam(), max_new=10)
    check_same(found, search(Engine(writer(), max_len=12), [Request(prompt=[1])], Beam(), max_new=10))


def test_a_choice_depends_on_no_value() -> None:
    tables = begin([12, 4], 3, [1.0] * 12, [5, 7], torch.device("cpu"))
    tables = tree_map(lambda column: column.to("meta"), tables)  # which has none
    for patience in ("full", "likely", "certain"):
        tables = extend(tables, torch.empty(6, 23, device="meta"), patience)
    assert tables.open.tokens.shape == (2, 3, 12)


@pytest.mark.compile
@pytest.mark.slow
def test_a_choice_is_one_graph_for_a_compiler() -> None:
    tables, rng = begin([12, 4], 3, [1.0] * 12, [5], torch.device("cpu")), torch.Generator().manual_seed(0)
    logits = torch.randn(6, 23, generator=rng)
    found = torch.compile(extend, backend="aot_eager", fullgraph=True, dynamic=False)(tables, logits, "likely")
    pairs = zip(tree_leaves(found), tree_leaves(extend(tables, logits, "likely")), strict=True)
    assert all(one.equal(two) for one, two in pairs)
