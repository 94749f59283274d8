"""Texts that are read together: all of them, within bounds, and as cheaply as any way to cut them."""

import random
from itertools import combinations

from anyformer.inference.embedding import Pass, grouped


def price(stretches: list[list[int]], lengths: list[int], one: Pass) -> int:
    return sum(len(rows) * max(lengths[row] for row in rows) + one.start for rows in stretches)


def test_every_text_is_read_once_and_no_pass_is_too_large() -> None:
    lengths = [random.Random(0).randint(1, 300) for _ in range(500)]
    groups = list(grouped(lengths, Pass(tokens=1024, start=32)))
    assert sorted(row for group in groups for row in group) == list(range(500))
    assert all(len(group) * max(lengths[row] for row in group) <= 1024 for group in groups)


def test_no_other_cut_of_the_sorted_texts_is_cheaper() -> None:
    lengths, one = [3, 3, 4, 9, 9, 10, 30, 31, 31], Pass(tokens=1000, start=6)
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    ways = [
        [order[start:stop] for start, stop in zip((0, *cuts), (*cuts, len(order)), strict=True)]
        for count in range(len(order))
        for cuts in combinations(range(1, len(order)), count)
    ]
    best = min(price(way, lengths, one) for way in ways)
    assert price(list(grouped(lengths, one)), lengths, one) == best


def test_a_text_longer_than_a_pass_goes_alone() -> None:
    assert list(grouped([50, 3, 50], Pass(tokens=20, start=1))) == [[1], [0], [2]]
    assert list(grouped([], Pass(tokens=20, start=1))) == []
