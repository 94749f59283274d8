"""What "it" means is learned from the end of the sentence, and can be seen in where it looks."""

from pathlib import Path

import pytest
import torch

from anyformer.core import Frame
from anyformer.run import train
from anyformer.viewing.view import View

SENTENCE = "The animal did not cross the street because it was too {}"
LAYER = "model.stack.blocks.layer.branches.0.part"
SETTINGS = (
    "data.tokenizer.kind=word", "model.dim=64", "model.stack.depth=2", f"{LAYER}.heads=4", "train.steps=1500",
    "train.batch_tokens=1024", "optimizer.lr=2e-3",
)  # fmt: skip


@pytest.mark.row("CLM-24", clause="'it ... tired/wide': a future word decides what 'it' is")
@pytest.mark.slow
@pytest.mark.row("VIZ-07")
def test_it_is_the_animal_when_tired_and_the_street_when_wide(tmp_path: Path) -> None:
    run = train("pronouns", *SETTINGS, out=tmp_path / "run", cache=tmp_path / "cache")
    model, looked, answers = run.model(), {}, {}
    for word in ("tired", "wide"):
        view = View.of(run.folder, SENTENCE.format(word))
        it = view.reading.names.index("it")
        looked[word] = torch.cat([sheet.weights[:, it] for sheet in view.looks[0].sheets]).sum(0)
        answers[word] = model(torch.tensor([view.reading.tokens]), Frame()).y[0, it].argmax().item()
    animal, street = (SENTENCE.split().index(noun) for noun in ("animal", "street"))
    assert answers["tired"] != answers["wide"]  # two nouns of eighty
    balance = {word: (weights[animal] - weights[street]).item() for word, weights in looked.items()}
    assert balance["tired"] > balance["wide"]
