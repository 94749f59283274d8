"""Sentences in which only the last word tells what *it* is          (Winograd schemas, Levesque et al. 2012)

  The animal did not cross the street because it was too tired   it = animal
  The animal did not cross the street because it was too wide    it = street

A causal model cannot know the noun at *it* and is right half of the time; a model that sees the whole sentence can.
The sentences of a pair of nouns are one group, so that validation has pairs that were never seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from anyformer.data.record import Record, SourceSpec

OTHER = "none"
"""The tag of every word but *it*."""


SCENES = (
    (
        "The {} did not cross the {} because it was too",
        "animal dog cat horse cow donkey fox hedgehog",
        "street road river bridge field square avenue highway",
        "tired old shy weak lazy sleepy",
        "wide long busy crowded noisy dangerous",
    ),
    (
        "The {} did not fit into the {} because it was too",
        "trophy lamp vase guitar globe helmet cake drum",
        "suitcase box bag drawer basket trunk cupboard crate",
        "big large wide tall bulky thick",
        "small narrow tiny full tight shallow",
    ),
    (
        "The {} could not lift the {} because it was too",
        "crane robot machine forklift winch elephant helicopter tractor",
        "container stone piano statue engine boulder safe wardrobe",
        "weak old slow worn clumsy small",
        "heavy large slippery massive round broad",
    ),
    (
        "The {} did not eat the {} because it was too",
        "bird monkey goat hamster parrot squirrel rabbit pig",
        "apple pear carrot nut berry plum cherry turnip",
        "sick tired shy nervous young frightened",
        "sour hard bitter rotten large unripe",
    ),
    (
        "The {} did not cut the {} because it was too",
        "knife saw axe blade razor chisel sword sickle",
        "rope wire branch cable board bone log pipe",
        "blunt rusty dull small worn light",
        "thick hard tough strong solid stiff",
    ),
)
"""Sentences with two nouns; nouns for each place; and as many reasons that fit the first noun as the second."""


@dataclass(frozen=True, kw_only=True)
class Pronouns(SourceSpec, kind="pronouns"):
    """Sentences in which the last word tells what 'it' means: 3,840 of them, label and tag of 'it' are the noun."""

    natural: ClassVar[bool] = False

    def records(self) -> Iterator[Record]:
        for sentence, firsts, seconds, *reasons in SCENES:
            for nouns in product(firsts.split(), seconds.split()):
                group = " and ".join(nouns)
                for pair in zip(*map(str.split, reasons), strict=True):
                    for noun, reason in zip(nouns, pair, strict=True):
                        text = f"{sentence.format(*nouns)} {reason}"
                        tags = tuple(noun if word == "it" else OTHER for word in text.split())
                        yield Record(text=text, label=noun, tags=tags, group=group, where=f"pronouns {group}")

    def fingerprint(self) -> str:
        return self.hash_with(SCENES)
