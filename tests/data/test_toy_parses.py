"""The small grammar: every sentence once, its tree well formed, and its words those of the sentence."""

import pytest

from anyformer.data.sources.toy_parses import ToyParses


def well_formed(text: str) -> bool:
    """One pair of brackets around everything, all others inside and closed, a name behind each that opens."""
    words, depth = text.split(), 0
    for place, word in enumerate(words):
        depth += (word == "(") - (word == ")")
        named = word != "(" or (place + 1 < len(words) and words[place + 1].isupper())
        if not named or depth < 0 or (depth == 0) != (place == len(words) - 1):
            return False
    return bool(words)


@pytest.mark.row("TSK-06", clause="a parse tree is linearised into a bracketed sequence")
def test_trees_are_well_formed_and_hold_their_sentences() -> None:
    records = list(ToyParses(count=500).records())
    assert len({record.text for record in records}) == 500
    for record in records:
        target = record.target or ""
        assert well_formed(target)
        words = [word for word in target.split() if word not in "()" and not word.isupper()]
        assert " ".join(words) == record.text


def test_a_sentence_has_one_tree() -> None:
    trees: dict[str, str | None] = {}
    for seed in range(30):
        for record in ToyParses(count=300, seed=seed).records():
            assert trees.setdefault(record.text, record.target) == record.target


@pytest.mark.parametrize("text", ["", "( S a", "( S a ) )", "( S a ) ( S b )", "( a b )", "S ( NP a )"])
def test_what_is_not_well_formed_is_seen(text: str) -> None:
    assert not well_formed(text)


def test_the_same_seed_gives_the_same_sentences() -> None:
    one, same, other = (list(ToyParses(count=20, seed=seed).records()) for seed in (1, 1, 2))
    assert one == same != other
