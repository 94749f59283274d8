"""More than a recurrence can say: y_t that depends on what comes after t, for who sees it and for who does not."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests.learning.conftest import Store
from tests.learning.reading import data_of, tags
from tests.learning.runs import ENCODER, run
from torch import Tensor

from anyformer.core import Frame, capture
from anyformer.data.sources.pronouns import OTHER
from anyformer.data.synthetic.future_label import NOTHING, FutureLabel
from anyformer.run import Run

CAUSAL = 'model.stack.blocks.layer.branches.0.part.mask={kind="causal"}'


def accuracy(trained: Run, cache: Path, ignored: str) -> float:
    """Share of the places with a tag other than this one that are tagged right."""
    nothing = data_of(trained, cache).contents.tags.index(ignored)
    pairs = [(said == right)[(right >= 0) & (right != nothing)] for _, said, right in tags(trained, cache)]
    return torch.cat(pairs).float().mean().item()


@pytest.mark.row(
    "CLM-24",
    clause=(
        "label at t set by the token at t+5: unmasked solves 100%",
        "label at t set by the token at t+5: causal stays at chance",
    ),
)
@pytest.mark.learn
@pytest.mark.row("TSK-12")
def test_a_label_from_the_future_is_found_by_who_sees_it_and_guessed_by_who_does_not(
    tmp_path: Path, store: Store
) -> None:
    recipe = ("data.source.count=4000", "train.steps=250", "train.batch_tokens=2048", "optimizer.lr=3e-3",
              "data.context=64", *ENCODER)  # fmt: skip
    unmasked = accuracy(run(tmp_path, "future_label", *recipe, name="unmasked"), tmp_path / "cache", NOTHING)
    causal = accuracy(run(tmp_path, "future_label", *recipe, CAUSAL, name="causal"), tmp_path / "cache", NOTHING)
    chance = 1 / FutureLabel().symbols
    store({"unmasked": unmasked, "causal": causal, "chance": chance})
    assert unmasked > 0.999 and abs(causal - chance) < 0.02


class Look(NamedTuple):
    """What *it* is to a model in one sentence."""

    vector: Tensor
    """[d], behind the last layer."""
    attention: dict[str, float]
    """To each noun and to the word that tells, the most of all heads and layers."""


@torch.no_grad()
def at_it(trained: Run, cache: Path, reason: str) -> Look:
    sentence = f"The animal did not cross the street because it was too {reason}"
    tokenizer, model = data_of(trained, cache).tokenizer, trained.model()
    words = sentence.split()
    tokens = torch.tensor([tokenizer.encode(sentence)])
    assert tokens.shape[1] == len(words)
    here = words.index("it")
    with capture(model, "*.pattern") as seen:
        vector = model(tokens, Frame(), logits=False).y[0, here]
    most = torch.stack([pattern[0][0, :, here] for pattern in seen.values()]).amax((0, 1))  # [s]
    return Look(vector, {word: most[words.index(word)].item() for word in ("animal", "street", reason)})


@pytest.mark.row("VIZ-07", clause="contextual vectors of 'it' differ between the two sentences")
@pytest.mark.row("CLM-24", clause="'it ... tired/wide': a future word decides what 'it' is")
@pytest.mark.learn
def test_what_it_means_is_known_to_who_reads_the_whole_sentence(tmp_path: Path, store: Store) -> None:
    recipe = ("data.tokenizer.kind=word", "data.valid=0.1", "train.steps=300", "train.batch_tokens=1024",
              "optimizer.lr=3e-3", "data.context=32", *ENCODER)  # fmt: skip
    cache, found = tmp_path / "cache", {"chance": 0.5}
    for name, mask in (("unmasked", ()), ("causal", (CAUSAL,))):
        trained = run(tmp_path, "pronouns", *recipe, *mask, name=name)
        found[name] = accuracy(trained, cache, OTHER)
        tired, wide = (at_it(trained, cache, reason) for reason in ("tired", "wide"))
        found[f"{name}_difference"] = (tired.vector - wide.vector).norm().item()
        looks = {f"{name}_{reason}": look for reason, look in (("tired", tired), ("wide", wide))}
        found |= {f"{key}_at_{word}": share for key, look in looks.items() for word, share in look.attention.items()}
    store(found)
    assert found["unmasked"] > 0.95 and found["causal"] < 0.6
    assert found["unmasked_difference"] > 1.0 and found["causal_difference"] == 0.0
    assert found["unmasked_tired_at_tired"] > 0.1 and found["causal_tired_at_tired"] == 0.0
