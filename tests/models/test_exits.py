"""Early exits: against a loop over rows, by the layers that run, and with a loss at every exit."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.objectives.reading import pair_model
from tests.objectives.small import WORDS, batch, built, laid, learn, model, noise
from torch import Tensor

from anyformer.core import Frame, Work, capture, cost
from anyformer.data.batching.batch import Batch, RowLabels
from anyformer.errors import SpecError
from anyformer.models import Branch, Decoder, Encoder
from anyformer.models.exits import Exits
from anyformer.models.halting import Halting
from anyformer.objectives.classify import Classify
from anyformer.objectives.every_exit import EveryExit
from anyformer.objectives.mixture import Mixture, MixtureTask
from anyformer.objectives.next_token import NextToken
from anyformer.objectives.replaced_token import ReplacedToken
from anyformer.parts.combine.shorten import Shorten
from anyformer.parts.heads.classifier import Classifier
from anyformer.parts.heads.hidden import Hidden
from anyformer.parts.heads.token_classifier import TokenClassifier
from anyformer.parts.joins.replace import Replace
from anyformer.parts.norms.rms import RMSNorm
from anyformer.parts.pools.mean import Mean

CLAUSE = "early exit: a loss at each exit, and fewer layers for easy inputs"
row = pytest.mark.row("OPT-14", clause=CLAUSE)
DEPTH, LABEL = 4, torch.tensor([0, 2, 1, 1, 0, 2])
CLASSES, TAGS = Classifier(classes=3, pool=Mean()), TokenClassifier(classes=3)
SHORTEN = Branch(part=Shorten(), place="none", join=Replace())


def spec(exits: Exits | None, **fields: Any) -> Encoder:
    return model(Encoder, depth=DEPTH, exits=exits, exit_norm=RMSNorm(), **{"head": CLASSES, **fields})


def noisy(encoder: Encoder) -> Any:
    """With noise on every weight, so that some rows are surer than others; in evaluation."""
    built = encoder.build()
    for parameter in built.parameters():
        parameter.data.add_(0.5 * torch.randn(parameter.shape, generator=noise(parameter.numel())))
    return built.eval()


def texts() -> tuple[Tensor, Frame]:
    """Thirty rows of several lengths."""
    tokens = torch.randint(10, WORDS.size, (30, 9), generator=noise(7))
    return tokens, Frame(valid=torch.arange(9) < torch.randint(2, 10, (30, 1), generator=noise(8)))


def layers_run(module: Any, run: Callable[[], object]) -> list[int]:
    """The number of rows that each layer was called with."""
    rows = [0] * DEPTH
    hooks = [
        block.register_forward_hook(lambda _, args, __, n=n: rows.__setitem__(n, rows[n] + len(args[0])))
        for n, block in enumerate(module.stack.calls())
    ]
    run()
    for hook in hooks:
        hook.remove()
    return rows


@cache
def reference(head: Any) -> tuple[Tensor, Tensor]:
    return one_by_one(noisy(spec(None, head=head)), *texts())


def one_by_one(module: Any, tokens: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
    """The reference: the scores of each row after each layer, and how sure they are [b n]; every row alone."""
    answers, confidences = [], []
    for index in range(len(tokens)):
        here, x = frame.take(torch.tensor([index])), module.embedding(tokens[index : index + 1])
        layers = []
        for block in module.stack.calls():
            x = block(x, here).y
            layers.append(module.head(module.exit_norm(x, here), here)[0])
        answers.append(torch.stack(layers))  # [n c] or [n t c]
        highest = answers[-1].softmax(-1).amax(-1)
        confidences.append(highest if highest.dim() == 1 else highest[:, here.valid[0]].amin(1))
    return torch.stack(answers), torch.stack(confidences)


@row
@torch.no_grad()
@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("head", [CLASSES, TAGS], ids=["a class", "tags"])
def test_each_row_leaves_at_the_first_exit_that_is_sure_of_it_as_in_a_loop_over_rows(head: Any, every: int) -> None:
    tokens, frame = texts()
    answers, confidences = reference(head)
    inner = confidences[:, every - 1 : DEPTH - 1 : every]
    threshold = inner.amax(1).sort().values[10:12].mean().item()  # between two rows: eleven never leave
    depths = [
        next((every * (n + 1) for n, sure in enumerate(row) if sure > threshold), DEPTH) for row in inner.tolist()
    ]
    assert depths.count(DEPTH) == 11 and min(depths) == every
    module = noisy(spec(Exits(every=every, threshold=threshold), head=head))
    expected = torch.stack([answer[depth - 1] for answer, depth in zip(answers, depths, strict=True)])
    valid = frame.valid if head is TAGS else slice(None)
    torch.testing.assert_close(module(tokens, frame).y[valid], expected[valid], atol=1e-5, rtol=1e-5)
    rows = layers_run(module, lambda: module(tokens, frame))
    assert rows == [sum(depth > layer for depth in depths) for layer in range(DEPTH)]


@row
@torch.no_grad()
@pytest.mark.parametrize("threshold", [1.0, 1 - 1e-6])
def test_a_threshold_that_no_row_reaches_gives_the_whole_model(threshold: float) -> None:
    plain, leaving = noisy(spec(None)), noisy(spec(Exits(threshold=threshold)))
    assert plain.state_dict().keys() == leaving.state_dict().keys(), "exits have no weights"
    expected = plain(*texts()).y
    assert expected.softmax(-1).amax() < 1 - 1e-6
    assert torch.equal(leaving(*texts()).y, expected)
    assert layers_run(leaving, lambda: leaving(*texts())) == [30] * DEPTH


@torch.no_grad()
def test_a_threshold_of_zero_stops_everything_at_the_first_exit() -> None:
    module = noisy(spec(Exits(every=2, threshold=0.0)))
    assert layers_run(module, lambda: module(*texts())) == [30, 30, 0, 0]


def test_all_layers_run_in_training_and_for_the_cost_card() -> None:
    module = noisy(spec(Exits(threshold=0.0))).train()
    assert layers_run(module, lambda: module(*texts())) == [30] * DEPTH
    cards = [cost(spec(exits), Work(batch=2, length=5)).total for exits in (Exits(threshold=0.0), None)]
    assert cards[0].params == cards[1].params and cards[0].flops_forward == cards[1].flops_forward


@row
def test_the_loss_is_that_of_the_head_behind_each_exit() -> None:
    objective = EveryExit(objective=Classify(classes=3), weight=0.5)
    models = built(objective, spec(Exits(every=2)))
    ready = objective.prepare(batch(label=LABEL), WORDS, noise())
    with capture(models["model"], "*.stream") as seen:
        terms = objective.loss(models, ready, noise())
    module: Any = models["model"]
    layers = [layer for (layer,) in seen.values()]
    losses = [
        F.cross_entropy(module.head(module.exit_norm(layer, ready.frame), ready.frame), LABEL, reduction="sum")
        for layer in layers
    ]
    assert len(layers) == DEPTH and terms.keys() == {"label", "exits_label"}
    torch.testing.assert_close(terms["label"].sum, losses[3])
    torch.testing.assert_close(terms["exits_label"].sum, 0.5 * losses[1])
    inner = [module.stack.layers[str(number)].branches[0].part.qkv.weight for number in range(DEPTH)]
    gradients = torch.autograd.grad(terms["exits_label"].sum, inner, allow_unused=True)
    assert [gradient is not None for gradient in gradients] == [True, True, False, False]


@row
def test_every_inner_exit_has_the_same_share_of_the_loss() -> None:
    objective = EveryExit(objective=NextToken())
    models = built(objective, model(Decoder, depth=3))
    ready = objective.prepare(batch(), WORDS, noise())
    terms, module = objective.loss(models, ready, noise()), models["model"]
    out = module(ready.tokens, ready.frame, logits=False)
    each = [module.output_head().loss(h, ready.frame, ready.targets, ready.weight) for h in out.layers]
    assert len(each) == 2
    torch.testing.assert_close(terms["exits_words"].sum, sum(each) / 2)
    assert terms["exits_words"].weight == terms["words"].weight == objective.counts(ready)["exits_words"]


@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "in a mixture"])
def test_in_evaluation_the_loss_is_that_of_the_answers(mixed: bool) -> None:
    inner = EveryExit(objective=Classify(classes=3))
    objective = Mixture(tasks={"class": MixtureTask(objective=inner)}) if mixed else inner
    models = built(objective, model(Encoder, depth=DEPTH, exits=Exits(threshold=0.34)))
    ready = objective.prepare(batch(label=LABEL), WORDS, noise())
    with torch.no_grad():
        terms = objective.loss({"model": models["model"].eval()}, ready, noise())
    (loss,) = terms.values()
    part = ready.parts["class"] if mixed else ready
    scores = models["model"](part.tokens, part.frame).y
    torch.testing.assert_close(loss.sum, F.cross_entropy(scores, LABEL, reduction="sum"))


def test_recomputed_layers_give_the_same_exits() -> None:
    objective = EveryExit(objective=Classify(classes=3))
    models = built(objective, spec(None))
    ready = objective.prepare(batch(label=LABEL), WORDS, noise())
    plain = objective.loss(models, ready, noise())
    models["model"].stack.recompute([(0, 3, True), (3, 4, False)])
    torch.testing.assert_close(objective.loss(models, ready, noise()), plain)


REFUSED = {
    "no exit before the last": spec(Exits(every=DEPTH)),
    "gives no probabilities": spec(Exits(threshold=0.5), head=Hidden()),
    "cache of a decoder": model(Decoder, exits=Exits(threshold=0.5)),
    "no output of each layer": spec(Exits()).with_("stack.halting", Halting()),
    "changes the length": spec(Exits()).with_("stack.blocks.layer.branches", (SHORTEN,)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_exits_that_cannot_be_are_refused(message: str) -> None:
    with pytest.raises(SpecError, match=message):
        REFUSED[message].build()


def test_exits_are_for_one_model_with_one_head() -> None:
    with pytest.raises(SpecError, match=r"encoder\.exits would never be used"):
        replace(pair_model(), encoder=model(Encoder, exits=Exits()))
    with pytest.raises(SpecError, match="more than one model"):
        EveryExit(objective=ReplacedToken()).adapt(model(Encoder))


def test_a_decoder_with_exits_decodes_as_one_without() -> None:
    """Its inner exits are for the loss alone."""
    plain, leaving = (model(Decoder, exits=exits).build().eval() for exits in (None, Exits()))
    tokens, frame = torch.tensor([[11, 12, 13]]), Frame(positions=torch.arange(3)[None])
    with torch.no_grad():
        outs = [each(tokens, frame, each.init_state(1, 3)) for each in (plain, leaving)]
    assert torch.equal(outs[0].y, outs[1].y) and outs[1].layers == ()


def puzzles(count: int, seed: int, easy: bool) -> Batch:
    """Easy: the first token is the class. Hard: the class is a coin that was tossed, so that nothing can be sure."""
    rng = noise(seed)
    tokens, label = torch.randint(20, 22, (count, 6), generator=rng), torch.randint(2, (count,), generator=rng)
    tokens[:, 0] = 11 + label if easy else 13
    return replace(laid(tokens.tolist()), labels=RowLabels(label=label))


@row
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_after_training_easy_inputs_pass_one_layer_and_hard_ones_all(seed: int) -> None:
    objective = EveryExit(objective=Classify(classes=2))
    models: Any = {"model": objective.adapt(model(Encoder, depth=DEPTH, exits=Exits(threshold=0.9))).build(seed=seed)}
    raw = [puzzles(48, 100 * seed + step, easy=step % 2 == 0) for step in range(40)]
    learn(objective, models, [objective.prepare(each, WORDS, noise()) for each in raw], steps=200, lr=1e-2)
    module, layers = models["model"].eval(), {}
    for easy in (True, False):
        ready = objective.prepare(puzzles(200, 10**6 + seed, easy), WORDS, noise())
        layers[easy] = sum(layers_run(module, lambda ready=ready: objective.objective.predict(module, ready))) / 200
        right = objective.objective.predict(module, ready).argmax(-1) == ready.labels.label
        assert right.float().mean() > 0.95 or not easy
    assert layers == {True: 1.0, False: DEPTH}
