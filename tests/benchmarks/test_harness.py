"""The harness on real, tiny work."""

from itertools import count

import pytest
import torch
from benchmarks.clock import Roofs
from benchmarks.harness import Bench, Case, Contender, Times, Units, built, compare
from benchmarks.memory import held, peak
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import blocked_attention, harness, loss

CPU = torch.device("cpu")
TINY = Bench(size="tiny", rounds=3)


def case(ours: Contender, theirs: Contender, **more: object) -> Case:
    return Case(item="spin", shape={"of": "nothing"}, ours=ours, peers={"peer": theirs}, **more)  # type: ignore[arg-type]


def test_a_ratio_says_how_many_times_faster_ours_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "_undisturbed", lambda device, run, turn: (run(), [None]))  # it says how long it took
    monkeypatch.setattr(harness, "roofs_of", lambda device, small: Roofs(flops=1e6, bytes=1e6))
    (row,) = compare(TINY, case(Contender(lambda: 2.0), Contender(lambda: 8.0), flops=1e3))
    assert (row.ours_ms, row.peer_ms, row.ratio, row.noisy) == (2.0, 8.0, 4.0, False)
    assert (row.limit_ms, row.eff, row.ok, row.device) == (1.0, 0.5, True, "tiny")


def test_contenders_take_turns_and_are_asked_for_their_answers_first() -> None:
    order: list[str] = []
    contenders = [Contender(lambda name=name: order.append(name)) for name in ("ours", "theirs")]
    list(compare(TINY, case(*contenders, check=lambda: order.append("check") or True)))
    assert order[0] == "check" and order[-8:-2] == ["ours", "theirs"] * 3


def test_answers_that_differ_make_a_row_that_may_not_be_quoted() -> None:
    (row,) = compare(TINY, case(Contender(lambda: None), Contender(lambda: None), check=lambda: False))
    assert not row.ok and row.note == "the answers differ"


def test_a_peer_that_fails_is_told_and_the_others_go_on() -> None:
    def fail() -> None:
        raise RuntimeError("no room")

    peers = {"broken": Contender(fail), "never made": built(CPU, lambda: fail()), "whole": Contender(lambda: None)}
    rows = list(compare(TINY, Case(item="x", shape={}, ours=Contender(lambda: None), peers=peers)))
    assert [(row.peer, row.ok) for row in rows] == [("whole", True), ("broken", False), ("never made", False)]
    assert all("no room" in row.note for row in rows[1:])


def test_a_call_that_had_to_take_memory_from_others_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, taken = count(1), iter([0, 1, 1, 1])
    monkeypatch.setattr(harness, "taken_back", lambda device: next(taken))
    assert [harness._undisturbed(CPU, lambda: next(calls), 1)[1] for _ in range(2)] == [[2], [3]]


def test_on_a_gpu_a_call_goes_before_those_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count(1)
    monkeypatch.setattr(harness, "clocked", lambda device, run: (1.0, run()))
    monkeypatch.setattr(harness, "taken_back", lambda device: 0)
    found = [harness._undisturbed(torch.device("cuda"), lambda: next(calls), 2) for _ in range(2)]
    assert found == [(1.0, [2, 3]), (1.0, [5, 6])]


def test_what_is_timed_together_is_divided_by_all_of_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "clocked", lambda device, run: (12.0, run()))
    (row,) = compare(TINY, case(Contender(lambda: None), Contender(lambda: Units(2.0)), turn=4, amount=1.0))
    assert (row.ours_ms, row.peer_ms, row.amount) == (3.0, 1.5, 1.0)


def test_what_a_compiler_only_imagines_is_not_held() -> None:
    before = held(CPU)
    with FakeTensorMode():
        imagined = torch.empty(1 << 20)
    assert held(CPU) - before < imagined.numel()


def test_calls_of_different_size_are_compared_by_the_unit() -> None:
    sizes = count(1)
    uneven = Contender(lambda: Units(next(sizes)))
    (row,) = compare(TINY, case(uneven, Contender(lambda: Units(1)), amount=1.0))
    assert row.ratio is not None
    assert Times(0.0, [1.0, 9.0], [1.0, 4.0]).unit_ms(CPU) == 2.0
    assert Times(0.0, [3.0, 2.0, 4.0], [2.0, 2.0, 2.0]).unit_ms(CPU) == 1.0


def test_rounds_that_spread_are_noisy() -> None:
    assert Times(0.0, [1.0, 1.0, 2.0, 2.0], [1.0] * 4).noisy
    assert not Times(0.0, [1.0, 1.01, 1.0, 1.01], [1.0] * 4).noisy


def test_memory_is_what_is_kept_and_the_most_that_a_call_needs() -> None:
    assert 4000 <= peak(CPU, lambda: torch.zeros(1000).sum()) < 5000
    kept = built(CPU, lambda: torch.zeros(500).sum)
    assert kept.resident == 2000


@pytest.mark.parametrize("item", [loss, blocked_attention], ids=lambda module: module.__name__)
def test_an_item_checks_its_answers_and_gives_whole_rows(item: object) -> None:
    for row in item.rows(TINY):  # type: ignore[attr-defined]
        assert row.ok and row.ratio and row.eff and row.mem_ours and row.mem_peer, row
