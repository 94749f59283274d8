"""Numbers as they are printed: three significant digits, and a unit."""

import pytest

from anyformer.core.readable_numbers import amount, clock, counted, human, human_bytes, human_flops, part, spelled


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (7, "7"), (7.5, "7.50"), (12.34, "12.3"), (999, "999"), (999.4, "999"), (999.6, "1.00 k"),
        (1000, "1.00 k"), (9_994, "9.99 k"), (9_996, "10.0 k"), (99_960, "100 k"), (12_345_678, "12.3 M"),
        (4e15, "4000 T"),
    ],
)  # fmt: skip
def test_a_count_has_three_digits_and_a_whole_number_no_decimals(number: float, text: str) -> None:
    assert human(number) == text


def test_bytes_go_by_1024_and_flops_by_1000() -> None:
    assert (human_bytes(1000), human_bytes(1024), human_bytes(12_345_678)) == ("1000 B", "1.00 KiB", "11.8 MiB")
    assert (human_flops(12), human_flops(2.5e21)) == ("12 FLOP", "2.50 ZFLOP")


def test_nouns_and_words_follow_their_number() -> None:
    assert [counted(number, "records") for number in (0, 1, 2000)] == ["0 records", "1 record", "2,000 records"]
    assert [counted(1, noun) for noun in ("classes", "batches", "processes")] == ["1 class", "1 batch", "1 process"]
    assert [amount(number, "epochs") for number in (0.5, 1, 1.0004, 2)] == [
        "0.5 epochs",
        "1 epoch",
        "1 epoch",
        "2 epochs",
    ]
    assert part(1, 1) == "1 of 1 record (100.0%)" and part(0, 2) == "0 of 2 records"
    assert [spelled(number) for number in (0, 1, 12, 13)] == ["no", "one", "twelve", "13"]


def test_durations_have_hours_only_where_they_last_so_long() -> None:
    assert [clock(seconds) for seconds in (0, 75, 3599.6, 3661)] == ["0:00", "1:15", "1:00:00", "1:01:01"]
    assert clock(float("nan")) == "?"
