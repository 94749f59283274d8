"""Numbers in words, as pairs of two languages: a small translation task whose every answer is known.

  321   three hundred and twenty-one   dreihunderteinundzwanzig   trois cent vingt et un

German says the units before the tens, and French counts by twenties from seventy on, so what a model aligns is worth
looking at. Conventions: English with *and* before the last two digits; German in one word, with the *ein* of
einhundert and eintausend; French of France in the spelling before 1990 (no hyphen beside *et*, *cent*, *mille*).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Annotated, Any, ClassVar, Literal

from anyformer.core import Count, Range
from anyformer.data.record import Record, SourceSpec
from anyformer.errors import SpecError

Language = Literal["english", "german", "french"]
ENGLISH = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
GERMAN = [
    "null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
    "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
]  # fmt: skip
GERMAN_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
FRENCH = [
    "zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix", "onze", "douze", "treize",
    "quatorze", "quinze", "seize", "dix-sept", "dix-huit", "dix-neuf",
]  # fmt: skip
FRENCH_TENS = ["vingt", "trente", "quarante", "cinquante", "soixante", "soixante", "quatre-vingt", "quatre-vingt"]


@dataclass(frozen=True, kw_only=True)
class NumberWords(SourceSpec, kind="number_words"):
    """Numbers in words, from one language to another: three hundred and twenty-one -> dreihunderteinundzwanzig."""

    natural: ClassVar[bool] = False
    # pieces like hundert, und, zwanzig: a larger vocabulary learns whole numbers by heart
    usual_tokenizer: ClassVar[Mapping[str, Any]] = {"kind": "bpe", "size": 450}
    source: Language = "english"
    """The language to translate from."""
    target: Language = "german"
    """The language to translate into."""
    below: Annotated[int, Range(low=1, high=1_000_000)] = 100_000
    """Numbers from zero up to this one, itself not included."""
    count: Count = 20_000
    """How many of them, each at most once."""
    seed: int = 0
    """Another seed, other numbers in another order."""

    def check(self) -> None:
        if self.source == self.target:
            raise SpecError(f"source and target are both {self.target!r}. Name two languages.")
        if self.count > self.below:
            raise SpecError(f"count={self.count}: there are only {self.below} numbers below {self.below}.")

    def records(self) -> Iterator[Record]:
        for number in Random(self.seed).sample(range(self.below), self.count):
            text, target = (spell(number, language) for language in (self.source, self.target))
            yield Record(text=text, target=target, where=f"number {number}")

    def fingerprint(self) -> str:
        return self.hash_with(list(islice(self.records(), 8)))

    @classmethod
    def examples(cls) -> "tuple[NumberWords, ...]":
        return (cls(below=1000, count=100), cls(source="german", target="french", below=1000, count=100))


def spell(number: int, language: Language) -> str:
    """A number from 0 to 999,999 in words."""
    return SPELL[language](number)


def _english(number: int) -> str:
    if number >= 1000:
        thousands, rest = divmod(number, 1000)
        link = " and " if rest < 100 else " "
        return f"{_english(thousands)} thousand" + (f"{link}{_english(rest)}" if rest else "")
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f"{ENGLISH[hundreds]} hundred" + (f" and {_english(rest)}" if rest else "")
    if number < 20:
        return ENGLISH[number]
    tens, units = divmod(number, 10)
    return ENGLISH_TENS[tens - 2] + (f"-{ENGLISH[units]}" if units else "")


def _german(number: int) -> str:
    if number >= 1000:
        thousands, rest = divmod(number, 1000)
        return _joined(thousands) + "tausend" + (_german(rest) if rest else "")
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return _joined(hundreds) + "hundert" + (_german(rest) if rest else "")
    if number < 20:
        return GERMAN[number]
    tens, units = divmod(number, 10)
    return (f"{_joined(units)}und" if units else "") + GERMAN_TENS[tens - 2]


def _joined(number: int) -> str:
    """As written before another word: eins loses its s, also at the end of a larger number (hunderteintausend)."""
    spelled = _german(number)
    return spelled[:-1] if spelled.endswith("eins") else spelled


def _french(number: int, plural: str = "s") -> str:
    """`plural`: of vingt and cent, which take it only where they end the number (deux cents, deux cent mille)."""
    if number >= 1000:
        thousands, rest = divmod(number, 1000)
        head = "mille" if thousands == 1 else f"{_french(thousands, plural='')} mille"
        return head + (f" {_french(rest)}" if rest else "")
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        head = "cent" if hundreds == 1 else f"{FRENCH[hundreds]} cent"
        return f"{head} {_french(rest, plural)}" if rest else head + (plural if hundreds > 1 else "")
    if number < 20:
        return FRENCH[number]
    tens, units = divmod(number, 10)
    if tens in (7, 9):  # counted on from sixty and from eighty
        units += 10
    if not units:
        return FRENCH_TENS[tens - 2] + (plural if tens == 8 else "")
    link = " et " if units in (1, 11) and tens < 8 else "-"
    return f"{FRENCH_TENS[tens - 2]}{link}{FRENCH[units]}"


SPELL: dict[Language, Callable[[int], str]] = {"english": _english, "german": _german, "french": _french}
