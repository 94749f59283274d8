"""Two language models, one from each end: neither may hear of the other before the head."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import Frame, ModelSpec, Part, PartSpec, Site, capture, decode, initialise
from anyformer.data.batching.batch import Batch
from anyformer.errors import SpecError
from anyformer.models import Encoder
from anyformer.objectives.both_directions import BothDirectionsObjective, Neighbours
from anyformer.parts.inits.normal import NormalInit
from anyformer.parts.norms.layer import LayerNorm
from anyformer.training import load

T, K = 9, 4


def elmo() -> Encoder:
    spec = load("elmo", "model.dim=16", "model.vocab=29", "model.stack.depth=3")
    assert isinstance(spec, Encoder)
    return replace(spec, stack=replace(spec.stack, layout=("words", "layer", "layer")))


def by_input(spec: ModelSpec, side: str) -> Tensor:
    """[t]: how much the logits of one side at place K depend on every word."""
    model, seen = spec.build(seed=1).eval(), list[Tensor]()
    model.embedding.register_forward_hook(lambda _module, _args, out: seen.append(out.requires_grad_()))  # type: ignore[union-attr]
    h = model(torch.arange(T)[None], Frame(), logits=False).y
    logits = model.head.named(side)(h, Frame())  # type: ignore[operator, union-attr]
    (gradient,) = torch.autograd.grad(logits[0, K].sum(), seen[0])
    return gradient[0].abs().sum(-1)


@pytest.mark.row(
    "RNN-08",
    clause=(
        "the forward stack models p(t_k | t_<k), the backward p(t_k | t_>k)",
        "both directions share the embedding and the softmax",
        "forward logits for token k have zero gradient to tokens >= k",
        "backward logits for token k have zero gradient to tokens <= k",
    ),
)
def test_each_side_sees_the_words_behind_it_and_its_own_and_no_other() -> None:
    ahead, back = by_input(elmo(), "ahead"), by_input(elmo(), "back")
    assert ahead[: K + 1].min() > 0 and not ahead[K + 1 :].any()
    assert back[K:].min() > 0 and not back[:K].any()


@pytest.mark.row(
    "RNN-08",
    clause=(
        "forward logits for token k have zero gradient to tokens >= k",
        "backward logits for token k have zero gradient to tokens <= k",
    ),
)
def test_together_they_guess_a_word_without_seeing_it() -> None:
    model, tokens = elmo().build(seed=1).eval(), torch.arange(T)[None]
    other = tokens.clone()
    other[0, K] = 20
    changed = (model(tokens, Frame()).y - model(other, Frame()).y)[0].abs().amax(-1) > 0
    assert changed.tolist() == [place != K for place in range(T)]


@pytest.mark.row(
    "RNN-08",
    clause=(
        "the forward stack models p(t_k | t_<k), the backward p(t_k | t_>k)",
        "both directions share the embedding and the softmax",
        "the loss is the sum of the losses of both directions",
    ),
)
def test_the_loss_is_the_sum_of_both_directions() -> None:
    spec = elmo()
    model, words = BothDirectionsObjective().adapt(spec).build(seed=1).eval(), torch.arange(5, 5 + T)[None]
    weights = Neighbours(ahead=torch.ones(1, T), back=torch.ones(1, T))
    weights.ahead[0, -1] = weights.back[0, 0] = 0.0
    terms = BothDirectionsObjective().loss(
        {"model": model}, Batch(tokens=words, frame=Frame(), targets=words, inputs=weights), torch.Generator()
    )
    h = model(words, Frame(), logits=False).y
    table = model.head.head.words.weight  # type: ignore[union-attr]
    ahead, back = ((half @ table.T).log_softmax(-1) for half in h.chunk(2, dim=-1))
    expected = -sum(ahead[0, k, words[0, k + 1]] + back[0, k + 1, words[0, k]] for k in range(T - 1))
    torch.testing.assert_close(terms["ahead"].sum + terms["back"].sum, expected)
    assert terms["ahead"].weight == terms["back"].weight == T - 1


@pytest.mark.row(
    "RNN-08",
    clause=("the layer weights s sum to 1", "word vector = gamma sum_j s_j h_(k,j) with s = softmax(w)"),
)
def test_what_a_task_takes_is_a_mean_of_layers_whose_weights_sum_to_one() -> None:
    layers = [{"kind": "bidirectional", "part": {"kind": "gru"}}] * 2
    part: Part = decode(PartSpec, {"kind": "scalar_mix", "parts": layers}).build(Site(dim=8, causal=False))
    initialise(part, NormalInit(deviation=0.5), seed=0)
    with torch.no_grad():
        part.logits.copy_(torch.tensor([0.3, -1.0, 2.0]))  # type: ignore[operator]
        part.gamma.fill_(1.7)  # type: ignore[operator]
    x = torch.randn(2, 5, 8)
    with capture(part, "weights") as seen:
        y = part(x, Frame()).y
    s = seen["weights"][0]
    one = part.parts[0](x, Frame()).y  # type: ignore[index, operator]
    torch.testing.assert_close(s.sum(), torch.tensor(1.0))
    torch.testing.assert_close(s.flatten(), torch.tensor([0.3, -1.0, 2.0]).softmax(0))
    torch.testing.assert_close(y, 1.7 * (s[0] * x + s[1] * one + s[2] * part.parts[1](one, Frame()).y))  # type: ignore[index, operator]


def test_directions_that_would_meet_are_refused() -> None:
    spec = elmo()
    with pytest.raises(SpecError, match="exit_norm"):
        BothDirectionsObjective().adapt(replace(spec, exit_norm=LayerNorm()))
    with pytest.raises(SpecError, match="branch 1 lets the directions meet"):
        BothDirectionsObjective().adapt(replace(spec, stack=replace(spec.stack, layout=("words",))))


@pytest.mark.parametrize("embedding", [{"kind": "plain"}, {"kind": "factorized", "width": 8}])
@pytest.mark.parametrize(
    "tied", [{"kind": "tied"}, {"kind": "several", "heads": {"words": {"kind": "tied"}}, "main": "words"}]
)
def test_both_directions_may_share_the_table_of_the_embedding(tied: Any, embedding: Any) -> None:
    spec = elmo().with_("embedding", embedding).with_("head.head", tied)
    model, tokens = spec.build(seed=1).eval(), torch.arange(T)[None]
    h = model(tokens, Frame(), logits=False).y
    weight = torch.ones(1, T)
    logits = model.head.named("back")(h, Frame())
    loss = model.head.named("back").loss(h, Frame(), tokens, weight)
    torch.testing.assert_close(loss, F.cross_entropy(logits[0], tokens[0], reduction="sum"))
    assert model(tokens, Frame()).y.shape == (1, T, 29)


@pytest.mark.parametrize("kind", ["pooled", "classifier"])
def test_both_directions_refuse_a_head_without_places(kind: str) -> None:
    head = {"kind": kind, "pool": {"kind": "mean"}, **({"classes": 2} if kind == "classifier" else {})}
    with pytest.raises(SpecError, match=f"head.head: {kind} gives one output per sequence"):
        elmo().with_("head.head", head).build(device="meta")
