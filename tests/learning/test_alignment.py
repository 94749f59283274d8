"""Alignment for free: additive attention is never told which word belongs to which, and looks where each came from.

Sentences of a made-up language, noun adjective noun adjective .., in whose translation adjectives come before nouns.
With a verb that goes from one end to the other 0.87 of the words were aligned, as if it alone were missed: it may
be read off the separator beside it, or come over in the state with which the decoder begins.
"""

import random
from pathlib import Path

import pytest
import torch
from tests.learning.conftest import Store
from tests.learning.reading import batches, data_of
from tests.learning.recurrences import words_right
from tests.learning.runs import lines, run

from anyformer.core import capture
from anyformer.objectives.words import read_pair
from anyformer.run import Run

NOUNS, ADJECTIVES = ([f"{kind}{number}" for number in range(10)] for kind in ("n", "a"))
DIM = tuple(f"model.{side}.dim=64" for side in ("encoder", "decoder"))
DRY = tuple(f"model.{side}.stack.blocks.layer.branches.0.dropout=0.0" for side in ("encoder", "decoder"))


def order(length: int) -> list[int]:
    """Which word of the source each one of the target translates."""
    return [place for noun in range(0, length, 2) for place in (noun + 1, noun)]


def sentences(count: int) -> list[dict[str, str]]:
    rng, found = random.Random(0), []
    for _ in range(count):
        phrases = rng.randint(2, 5)
        pairs = zip(rng.sample(NOUNS, phrases), rng.sample(ADJECTIVES, phrases), strict=True)
        source = [word for pair in pairs for word in pair]
        target = [source[place].upper() for place in order(len(source))]
        found.append({"text": " ".join(source), "target": " ".join(target)})
    return found


@torch.no_grad()
def aligned(trained: Run, cache: Path) -> float:
    """Share of the target's words before which the decoder looks most at the word that they translate."""
    prepared, model, hits = data_of(trained, cache), trained.model(), []
    for batch in batches(trained, prepared):
        with capture(model, "*.look.pattern") as seen:
            read_pair(model, batch)
        assert batch.weight is not None and batch.source is not None
        looks = torch.cat(next(iter(seen.values())), dim=1).argmax(-1)  # [b t]
        for row, places in enumerate(looks.tolist()):
            gold = order(int(batch.weight[row].sum()) - 1)
            hits += [place == right for place, right in zip(places, gold, strict=False)]
    return sum(hits) / len(hits)


@pytest.mark.row("SUM-01", clause="argmax attention finds the alignment, over 95%, on word re-ordering")
@pytest.mark.row(
    "TSK-05",
    clause=("a translation model maps a source to a target sentence", "toy BLEU of the translation model is measured"),
)
@pytest.mark.row("WMT-09", clause="a model on the synthetic translation task reaches BLEU above 90")
@pytest.mark.row("WMT-10", clause="alignment F1 above 0.9 on a synthetic lexicon with re-ordering")
@pytest.mark.row("CLM-23", clause="soft alignment for free: argmax weights find it without labels, >95%")
@pytest.mark.row("RNN-11", clause="argmax alpha finds > 95% of alignments in synthetic reordering MT")
@pytest.mark.slow
def test_additive_attention_finds_the_word_that_it_translates(tmp_path: Path, store: Store) -> None:
    file = lines(tmp_path / "sentences.jsonl", sentences(4000))
    trained = run(tmp_path, file, "model.preset=rnn-attention", *DIM, *DRY, "data.source.target=target",
                  "data.tokenizer.kind=word", "data.valid=0.05", "data.context=16", "train.batch_tokens=512",
                  "train.steps=600", "optimizer.lr=5e-3")  # fmt: skip
    found = {"aligned": aligned(trained, tmp_path / "cache"), "words": words_right(trained, tmp_path / "cache")}
    found["bleu"] = trained.evaluate(metrics=("bleu",))["bleu"].value
    store(found)
    assert found["words"] > 0.95 and found["aligned"] > 0.95 and found["bleu"] > 90
