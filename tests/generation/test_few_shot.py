"""Few-shot prompts: demonstrations in, no weight changed."""

import hashlib

import pytest
from tests.generation.small import writer

from anyformer.errors import SpecError
from anyformer.generation.engine import Engine, Request
from anyformer.generation.few_shot import FewShot

SHOWN = [("one", "eins"), ("two", "zwei"), ("three", "drei")]


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


@pytest.mark.row("PRE-21", clause="k demonstrations are joined into the prompt and the model continues")
def test_demonstrations_stand_before_the_query() -> None:
    text = FewShot(task="Translate.\n").text(SHOWN[:2], "three")
    assert text == "Translate.\none -> eins\ntwo -> zwei\nthree ->"


def test_the_last_demonstrations_that_fit_are_kept() -> None:
    shots = FewShot()
    whole = shots.text(SHOWN, "four")
    assert shots.tokens(SHOWN, "four", letters, room=len(whole)) == letters(whole)
    assert shots.tokens(SHOWN, "four", letters, room=len(whole) - 1) == letters(shots.text(SHOWN[1:], "four"))
    assert shots.tokens(SHOWN, "four", letters, room=7) == letters("four ->")
    with pytest.raises(SpecError, match="query: has 7 tokens"):
        shots.tokens(SHOWN, "four", letters, room=6)


@pytest.mark.row(
    "PRE-21",
    clause=(
        "k demonstrations are joined into the prompt and the model continues",
        "no gradient step: the hash of the parameters is unchanged",
    ),
)
def test_no_weight_changes_while_demonstrations_are_read() -> None:
    model = writer(vocab=128)

    def fingerprint() -> str:
        return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()

    before, engine = fingerprint(), Engine(model, max_len=64)
    answers = set()
    for count in range(len(SHOWN) + 1):
        prompt = FewShot().tokens(SHOWN[:count], "four", letters, room=56)
        answers.add(engine.generate([Request(prompt=prompt)], max_new=8)[0].tokens)
    assert len(answers) == len(SHOWN) + 1  # what was shown changes what is said
    assert fingerprint() == before
