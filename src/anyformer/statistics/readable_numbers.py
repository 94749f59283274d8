"""Numbers formatted for reading: three significant digits and a unit."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyformer.statistics.intervals import Interval

_COUNTS = ("", " k", " M", " B", " T")
_FLOPS = (" ", " k", " M", " G", " T", " P", " E", " Z", " Y")
_WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_BYTES = (" ", " Ki", " Mi", " Gi", " Ti", " Pi", " Ei")


def human(number: float) -> str:
    """A count with three significant digits: 12_345_678 -> 12.3 M."""
    return _scaled(number, 1000, _COUNTS)


def human_flops(number: float) -> str:
    """FLOPs with three significant digits: 12_345_678 -> 12.3 MFLOP."""
    return _scaled(number, 1000, _FLOPS) + "FLOP"


def human_bytes(number: float) -> str:
    """Bytes with three significant digits: 12_345_678 -> 11.8 MiB."""
    return _scaled(number, 1024, _BYTES) + "B"


def counted(number: int, what: str) -> str:
    """A number with its noun: (1, "records") -> 1 record, (2000, "records") -> 2,000 records."""
    return f"{number:,} {what if number != 1 else what.removesuffix('s')}"


def spelled(number: int) -> str:
    """A small number as a word: 8 -> eight, 13 -> 13."""
    return _WORDS[number] if number < len(_WORDS) else str(number)


def difference(interval: "Interval") -> str:
    """A difference with its interval, in decimals that show it: -0.160 (-0.203 to -0.116)."""
    if not math.isfinite(interval.value):
        return "unknown"
    bounds = [interval.value, *(bound for bound in (interval.low, interval.high) if bound is not None)]
    places = 3 if max(map(abs, bounds)) >= 0.01 else 6
    value, *ends = (f"{bound:+.{places}f}" for bound in bounds)
    return f"{value} ({ends[0]} to {ends[1]})" if ends else f"{value} (no interval)"


def clock(seconds: float) -> str:
    """Seconds as a duration: 75 -> 1:15."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _scaled(number: float, base: int, units: Sequence[str]) -> str:
    """The number with three significant digits and the largest unit that fits."""
    power = 0
    while number >= 0.9995 * base and power < len(units) - 1:
        number, power = number / base, power + 1
    is_integer = power == 0 and number == int(number)
    return f"{number:.{0 if is_integer or number >= 99.95 else 1 if number >= 9.995 else 2}f}{units[power]}"
