"""Sentences in which only the last word tells what *it* is          (Winograd schemas, Levesque et al. 2012)

  The animal did not cross the street because it was too tired   it = animal
  The animal did not cross the street because it was too wide    it = street

Who reads from left to right cannot know at *it*, and guesses right half of the time; who sees the whole sentence can.
The two readings of a pair of nouns are one group, so that what is learned is shown on pairs that were never seen.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from anyformer.data.record import Record, SourceSpec

OTHER = "none"
"""The tag of every word but *it*."""


class Scene(NamedTuple):
    """A sentence with two nouns, those that fit, and as many reasons that speak of one as of the other."""

    sentence: str
    firsts: str
    seconds: str
    of_first: str
    of_second: str


SCENES = (
    Scene(
        "The {} did not cross the {} because it was too",
        "animal dog cat horse cow donkey fox hedgehog",
        "street road river bridge field square avenue highway",
        "tired old shy weak lazy sleepy",
        "wide long busy crowded noisy dangerous",
    ),
    Scene(
        "The {} did not fit into the {} because it was too",
        "trophy lamp vase guitar globe helmet cake drum",
        "suitcase box bag drawer basket trunk cupboard crate",
        "big large wide tall bulky thick",
        "small narrow tiny full tight shallow",
    ),
    Scene(
        "The {} could not lift the {} because it was too",
        "crane robot machine forklift winch elephant helicopter tractor",
        "container stone piano statue engine boulder safe wardrobe",
        "weak old slow worn clumsy small",
        "heavy large slippery massive round broad",
    ),
    Scene(
        "The {} did not eat the {} because it was too",
        "bird monkey goat hamster parrot squirrel rabbit pig",
        "apple pear carrot nut berry plum cherry turnip",
        "sick tired shy nervous young frightened",
        "sour hard bitter rotten large unripe",
    ),
    Scene(
        "The {} did not cut the {} because it was too",
        "knife saw axe blade razor chisel sword sickle",
        "rope wire branch cable board bone log pipe",
        "blunt rusty dull small worn light",
        "thick hard tough strong solid stiff",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Pronouns(SourceSpec, kind="pronouns"):
    """Sentences in which the last word tells what 'it' means: 3,840 of them, label and tag of 'it' are the noun."""

    def records(self) -> Iterator[Record]:
        for scene in SCENES:
            for first, second in product(scene.firsts.split(), scene.seconds.split()):
                sentence, group = scene.sentence.format(first, second), f"{first} and {second}"
                for reasons in zip(scene.of_first.split(), scene.of_second.split(), strict=True):
                    for noun, reason in zip((first, second), reasons, strict=True):
                        yield _record(f"{sentence} {reason}", noun, group)

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.digest()} {SCENES}".encode()).hexdigest()


def _record(text: str, noun: str, group: str) -> Record:
    tags = tuple(noun if word == "it" else OTHER for word in text.split())
    return Record(text=text, label=noun, tags=tags, group=group, where=f"pronouns {group}")
