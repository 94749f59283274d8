"""On a GPU: vectors that nobody waits for are those of the CPU, each at its place."""

import numpy as np
import pytest
import torch
from tests.evaluation.runs import SENTENCES, run_of

from anyformer.inference import embedding
from anyformer.inference.embedding import embed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("name", ["vectors", "masked", "language", "pairs"])
def test_texts_of_any_lengths_get_the_vectors_of_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "WINDOW", 50)
    run = run_of(name)
    texts = [" ".join(sentence.split()[: 1 + place % 6]) for place, sentence in enumerate(SENTENCES * 8)]
    (mine, cut), (theirs, shortened) = (embed(run.trained(device), texts) for device in ("cuda", "cpu"))
    assert cut == shortened
    np.testing.assert_allclose(mine, theirs, atol=1e-3 * np.abs(theirs).max())
