"""Numbers and lists formatted for reading: three significant digits and a unit, the first of many names."""

import math
from collections.abc import Sequence

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
    return f"{number:,} {what if number != 1 else _singular(what)}"


def amount(number: float, what: str) -> str:
    """A measured amount with its noun: (1.0, "epochs") -> 1 epoch, (2.5, "epochs") -> 2.5 epochs."""
    text = f"{number:.3g}"
    return f"{text} {what if text != '1' else _singular(what)}"


def _singular(noun: str) -> str:
    if noun.endswith("ies"):
        return f"{noun.removesuffix('ies')}y"
    return noun.removesuffix("es" if noun.endswith(("ches", "sses", "xes")) else "s")


def listed(names: Sequence[str], most: int, between: str = ", ") -> str:
    """The first names, and dots if there are more: a, b, c, ..."""
    return between.join([*names[:most], *(["..."] if len(names) > most else [])])


def spelled(number: int) -> str:
    """A small number as a word: 8 -> eight, 13 -> 13."""
    return _WORDS[number] if number < len(_WORDS) else str(number)


def part(count: int, total: int, what: str = "records") -> str:
    """3 of 1,200 records (0.2%)."""
    share = 100 * count / total
    among = f"{count:,} of {counted(total, what)}"
    return f"{among} ({share:.1f}%)" if share >= 0.1 else among


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
