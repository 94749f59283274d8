"""A compiled step gives what is small to its products, and says the same."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.generation.families import LAYERS, gpt2, llama
from torch import Tensor
from torch.fx import GraphModule

from anyformer.core import ContiguousCursor, Frame, Model
from anyformer.generation.accelerate.captured_stepper import CapturedRounds
from anyformer.generation.accelerate.fuse_step import ONE_ROW, fuse
from anyformer.ops import decode_step as products
from anyformer.ops.decode_step import one_row

pytestmark = pytest.mark.compile


@pytest.fixture(autouse=True)
def one_row_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "supports_one_row", lambda x, weight: x.numel() == weight.shape[1])
    torch._dynamo.reset()


def ready(model: Model) -> Model:
    """As `for_writing` leaves a model on a GPU."""
    products.use_decode_linears(model)
    return model


def traced(step: Callable[..., Any], *given: Any) -> tuple[Any, GraphModule]:
    """What the rewritten step gives, and its graph."""
    graphs: list[GraphModule] = []

    def backend(graph: GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(fuse(graph))
        return graph.forward

    with torch.no_grad():
        return torch.compile(step, fullgraph=True, dynamic=False, backend=backend)(*given), graphs[0]


def calls(graph: GraphModule) -> dict[str, int]:
    """How often each of these is called."""
    kinds = {
        "norms": (torch.layer_norm, torch.rms_norm, F.layer_norm, F.rms_norm),
        "activations": (F.gelu, F.silu),
        "sums": (operator.add,),
        "products": (ONE_ROW,),
    }
    return {kind: sum(node.target in targets for node in graph.graph.nodes) for kind, targets in kinds.items()}


def step_of(model: Model) -> tuple[Tensor, Tensor, dict[str, int]]:
    """Scores of a second token: of plain steps, of rewritten ones, and what those call."""
    word, place = torch.tensor([[7]]), torch.zeros(1, 1, dtype=torch.long)
    step, scores, graph = CapturedRounds(model, compiled=False).plain_step, [], None
    for fused in (False, True):
        with torch.no_grad():
            state = step(word, place, model.init_state(1, 16))[1]
            if fused:
                (logits, _), graph = traced(step, word + 1, place + 1, state)
            else:
                logits, _ = step(word + 1, place + 1, state)
        scores.append(logits)
    assert graph is not None
    return scores[0], scores[1], calls(graph)


def test_a_step_of_gpt2_is_products_and_attention() -> None:
    plain, fused, found = step_of(ready(gpt2()))
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)
    assert found == {"norms": 0, "activations": 0, "sums": 1, "products": 4 * LAYERS + 1}  # words and their places


@pytest.mark.slow  # a gate alone is among the cases below
def test_a_step_of_llama_keeps_its_gates() -> None:
    plain, fused, found = step_of(ready(llama()))
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)
    turns = 2 * LAYERS  # queries and keys
    assert found == {"norms": 0, "activations": LAYERS, "sums": turns, "products": 4 * LAYERS + 1}


@pytest.mark.slow  # the cases below are in the fast suite
@pytest.mark.parametrize("place", ["post", "sandwich"])
def test_norms_elsewhere_keep_what_others_read(place: str) -> None:
    plain, fused, found = step_of(ready(gpt2(place=place)))
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)
    # behind a join a norm is the stream itself; between a part and its join nothing can be added to the product
    left = {"post": (2 * LAYERS, 1), "sandwich": (2 * LAYERS, 1 + 2 * LAYERS)}[place]
    assert (found["norms"], found["sums"]) == left and found["activations"] == 0


def several(x: Tensor, weight: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    normal = F.layer_norm(x, (8,), gain.to(x.dtype), eps=1e-5)
    return one_row(normal, weight), one_row(normal, weight.t().contiguous())


def seen(x: Tensor, weight: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    normal = F.layer_norm(x, (8,), gain, eps=1e-5)
    return one_row(normal, weight), normal


def written(x: Tensor, weight: Tensor, gain: Tensor) -> Tensor:
    normal = F.rms_norm(x, (8,), gain, 1e-6)
    x.add_(1)
    return one_row(normal, weight)


def written_by_a_view(x: Tensor, weight: Tensor, gain: Tensor) -> Tensor:
    row = x[:, :1]
    normal = F.layer_norm(row, (8,), gain, eps=1e-5)
    x.view(-1).mul_(2)
    return one_row(normal, weight)


def shifted(x: Tensor, weight: Tensor, gain: Tensor) -> Tensor:
    past = x[:, :1]
    y = one_row(2 * x, weight)
    x.copy_(y)
    return y + past


def made(x: Tensor, weight: Tensor, gain: Tensor) -> Tensor:
    return one_row(F.rms_norm(x, (8,), 1 + gain, 1e-6), weight)


def broadcast(x: Tensor, weight: Tensor, gain: Tensor) -> Tensor:
    return one_row(x, weight) + gain


def promoted(x: Tensor, weight: Tensor, gain: Tensor) -> Tensor:
    return one_row(x, weight) + x.double()


def doubled(x: Tensor, weight: Tensor, gain: Tensor) -> Tensor:
    y = one_row(x, weight)
    return y + y


def bent_late(x: Tensor, weight: Tensor, gain: Tensor) -> Tensor:
    return F.silu(x + one_row(x, weight))


def bent_twice(x: Tensor, weight: Tensor, gain: Tensor) -> Tensor:
    y = one_row(x, weight)
    return F.gelu(y) * y


CASES = [
    (several, {"norms": 0, "products": 2}),
    (seen, {"norms": 1}),
    (written, {"norms": 1}),
    (written_by_a_view, {"norms": 1}),
    (shifted, {"sums": 1}),
    (made, {"norms": 1}),
    (broadcast, {"sums": 1}),
    (promoted, {"sums": 1}),
    (doubled, {"sums": 1}),
    (bent_late, {"sums": 0, "activations": 1}),
    (bent_twice, {"activations": 1}),
]


@pytest.mark.parametrize(("step", "expected"), CASES, ids=lambda each: getattr(each, "__name__", ""))
def test_only_what_nobody_else_needs_is_taken(step: Any, expected: dict[str, int]) -> None:
    given = torch.randn(1, 1, 8), torch.randn(8, 8), torch.randn(8)
    plain = step(given[0].clone(), *given[1:])
    fused, graph = traced(step, given[0].clone(), *given[1:])
    torch.testing.assert_close(fused, plain)
    assert {kind: calls(graph)[kind] for kind in expected} == expected


def test_several_rows_have_nothing_to_give() -> None:
    model = ready(gpt2())
    given = torch.zeros(3, 1, dtype=torch.long), torch.zeros(3, 1, dtype=torch.long), model.init_state(3, 16)
    _, graph = traced(
        lambda *each: model(each[0], Frame(positions=each[1], layout=ContiguousCursor()), each[2]).y, *given
    )
    assert calls(graph) == {"norms": 2 * LAYERS + 1, "activations": LAYERS, "sums": 2 * LAYERS + 1, "products": 0}
