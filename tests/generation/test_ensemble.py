"""An ensemble: the mean of probabilities, in whatever way it writes."""

import pytest
import torch
from tests.generation.small import stack, translator, writer

from anyformer.core import Frame
from anyformer.errors import SpecError
from anyformer.generation.beam.beam_search import Beam, search
from anyformer.generation.engine import Engine, Request
from anyformer.generation.ensemble import Ensemble
from anyformer.generation.samplers.sample import Sample
from anyformer.models import Decoder
from anyformer.parts.channels.mlp import MLP

REQUESTS = [Request(source=[3, 1, 4], seed=1), Request(source=[5, 9], seed=2), Request(source=[2, 6, 5, 3], seed=3)]


@pytest.mark.row("TSK-14", clause="an ensemble of identical models equals the single model")
def test_copies_of_one_model_write_what_it_writes() -> None:
    one, many = (Engine(model, max_len=16, bos=1) for model in (translator(), Ensemble([translator()] * 3)))
    for sampler in (None, Sample(temperature=1.3)):
        assert many.generate(REQUESTS, sampler, max_new=9) == one.generate(REQUESTS, sampler, max_new=9)
    mine, theirs = (search(engine, REQUESTS, Beam(width=3), max_new=9, stop=[4]) for engine in (many, one))
    assert [row[0].tokens for row in mine] == [row[0].tokens for row in theirs]


@pytest.mark.row("SST-06", clause="ensemble output equals the mean of the members' probabilities")
@pytest.mark.row(
    "TSK-14",
    clause=(
        "probabilities of M models are averaged at each step",
        "the NLL of averaged probabilities <= mean NLL of the models (Jensen)",
    ),
)
@pytest.mark.row("WMT-02", clause="ensemble output equals the mean of the members' probabilities")
def test_its_probabilities_are_the_mean_and_its_loss_at_most_the_mean_loss() -> None:
    models, tokens = [writer(seed=seed) for seed in range(3)], torch.randint(23, (4, 12))
    with torch.no_grad():
        each = torch.stack([model(tokens, Frame()).y.softmax(-1) for model in models])
        logs = Ensemble(models)(tokens, Frame()).y
    torch.testing.assert_close(logs.exp(), each.mean(0))
    target = tokens.roll(-1, 1)[..., None]
    losses = -each.log().gather(-1, target.expand(3, -1, -1, -1)).mean((1, 2, 3))
    assert -logs.gather(-1, target).mean() <= losses.mean()


@pytest.mark.row("TSK-14", clause="averaging log-probabilities is a choice")
def test_the_mean_may_be_that_of_log_probabilities() -> None:
    models, tokens = [writer(seed=seed) for seed in range(3)], torch.randint(23, (4, 12))
    with torch.no_grad():
        each = torch.stack([model(tokens, Frame()).y.softmax(-1) for model in models])
        logs = Ensemble(models, mean="log_probabilities")(tokens, Frame()).y
        single = Ensemble(models[:1] * 2, mean="log_probabilities")(tokens, Frame()).y
    geometric = each.prod(0) ** (1 / 3)
    torch.testing.assert_close(logs.exp(), geometric / geometric.sum(-1, keepdim=True))
    assert not torch.allclose(logs.exp(), each.mean(0), atol=1e-3)
    torch.testing.assert_close(single.exp(), each[0])


@pytest.mark.row("TSK-14", clause="probabilities of M models are averaged at each step")
def test_different_models_write_together_step_by_step() -> None:
    whole, state_free = Ensemble([translator(seed=seed) for seed in range(2)]), []
    got = Engine(whole, max_len=16, bos=1).generate(REQUESTS, max_new=6)
    for request in REQUESTS:
        words = [1]
        with torch.no_grad():
            memory = whole.encode(torch.tensor([request.source]), Frame())
            for _ in range(6):
                words.append(int(whole(torch.tensor([words]), Frame(memory=memory)).y[0, -1].argmax()))
        state_free.append(tuple(words[1:]))
    assert [row.tokens for row in got] == state_free


def test_hidden_states_become_logits_whatever_other_call_came_between() -> None:
    narrow, wide = (Decoder(vocab=23, dim=dim, stack=stack(MLP())).build(seed=dim) for dim in (8, 16))
    one, tokens = Ensemble([narrow, wide]), torch.tensor([[3, 1, 4]])
    with torch.no_grad():
        hidden = one(tokens, Frame(), logits=False).y
        torch.testing.assert_close(Ensemble([narrow, wide]).logits(hidden, Frame()), one(tokens, Frame()).y)


def test_models_of_different_vocabularies_are_refused() -> None:
    with pytest.raises(SpecError, match="23, 24 words"):
        Ensemble([writer(23), writer(24)])(torch.tensor([[1]]), Frame())
    with pytest.raises(SpecError, match="at least one model"):
        Ensemble([])
