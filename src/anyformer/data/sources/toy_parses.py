"""Sentences of a small grammar and their trees, written in brackets: parsing as translation (arXiv 1412.7449).

  the cat saw a dog in the park -> ( S ( NP the cat ) ( VP saw ( NP a dog ) ( PP in ( NP the park ) ) ) )

S -> NP VP;  NP -> Det Adj? N (that V NP)?;  VP -> V NP PP? | says that S | sleeps
Every sentence has one tree: a relative clause has no PP of its own, so that each PP belongs to the verb outside of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from anyformer.core import Amount, Count
from anyformer.data.record import Record, SourceSpec

DETERMINERS, ADJECTIVES = ("the", "a", "every"), ("old", "small", "red", "quiet", "clever")
NOUNS = ("cat", "dog", "bird", "child", "farmer", "horse", "poet", "robot")
VERBS, SAYINGS, ALONE = ("saw", "chased", "found", "liked", "heard"), ("says", "thinks", "hopes"), ("sleeps", "sings")
PLACES, PREPOSITIONS = ("park", "house", "garden", "street"), ("in", "near", "behind")
Tree = tuple[Any, ...]
"""A name, and below it words and trees."""


@dataclass(frozen=True, kw_only=True)
class ToyParses(SourceSpec, kind="toy_parses"):
    """Sentences of a small grammar -> their trees in brackets: parsing as translation; needs no download."""

    natural: ClassVar[bool] = False
    usual_tokenizer: ClassVar[Mapping[str, Any]] = {"kind": "word"}
    count: Count = 10_000
    """Number of different sentences."""
    depth: Amount = 2
    """Largest depth of nested clauses."""
    seed: int = 0
    """Seed of the sentences."""

    def records(self) -> Iterator[Record]:
        seen, number, rng = set[str](), 0, Random(f"{self.kind} {self.seed}")
        for _ in range(100 * self.count):  # a shallow grammar may have fewer sentences than asked for
            tree = _sentence(rng, self.depth)
            text = " ".join(_leaves(tree))
            if text not in seen:
                seen.add(text)
                number += 1
                yield Record(text, target=brackets(tree), where=f"{self.kind} sentence {number}")
            if number == self.count:
                return

    def fingerprint(self) -> str:
        return self.hash_with([_sentence(Random(index), self.depth) for index in range(8)])


def brackets(tree: Tree) -> str:
    """A tree as text."""
    return " ".join(
        ["(", tree[0], *(brackets(child) if isinstance(child, tuple) else child for child in tree[1:]), ")"]
    )


def _sentence(rng: Random, depth: int) -> Tree:
    return ("S", _noun_phrase(rng, depth), _verb_phrase(rng, depth))


def _noun_phrase(rng: Random, depth: int) -> Tree:
    adjective = (rng.choice(ADJECTIVES),) if rng.random() < 0.3 else ()
    clause: tuple[Tree, ...] = ()
    if depth and rng.random() < 0.25:
        clause = (("SBAR", "that", ("VP", rng.choice(VERBS), _noun_phrase(rng, depth - 1))),)
    return ("NP", rng.choice(DETERMINERS), *adjective, rng.choice(NOUNS), *clause)


def _verb_phrase(rng: Random, depth: int) -> Tree:
    lot = rng.random()
    if lot < 0.2:
        return ("VP", rng.choice(ALONE))
    if depth and lot < 0.45:
        return ("VP", rng.choice(SAYINGS), ("SBAR", "that", _sentence(rng, depth - 1)))
    place = ("PP", rng.choice(PREPOSITIONS), ("NP", rng.choice(DETERMINERS), rng.choice(PLACES)))
    return ("VP", rng.choice(VERBS), _noun_phrase(rng, depth), *((place,) if rng.random() < 0.4 else ()))


def _leaves(tree: Tree) -> Iterator[str]:
    for child in tree[1:]:
        yield from _leaves(child) if isinstance(child, tuple) else (child,)
