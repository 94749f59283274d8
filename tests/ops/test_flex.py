"""FlexAttention's graphs, made here without a GPU by a backend that runs what it is given."""

from functools import partial

import pytest
import torch

from anyformer.core import Marks
from anyformer.ops.attention import flex
from anyformer.ops.attention.call import AttentionCall, attention_weights, weighted_sum
from anyformer.ops.attention.flex import attend_flex, prefers_flex
from anyformer.parts.masks.window import Window


def seen(size: int) -> AttentionCall:
    marks = Marks(torch.arange(128)[None])
    return AttentionCall(Window(size=size, block=16), marks, marks, plain=True)


@pytest.mark.compile
def test_no_rule_is_one_too_many_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1
    monkeypatch.setattr(flex, "_GRAPHS", {})
    monkeypatch.setattr(flex.torch, "compile", partial(torch.compile, backend="eager"))
    x = torch.randn(2, 128, 1, 4)
    with torch._dynamo.config.patch(recompile_limit=limit, fail_on_recompile_limit_hit=True):
        for size in range(1, limit + 3):
            y = attend_flex(x, x, x, seen(size), 0.5, None)
            torch.testing.assert_close(y, weighted_sum(attention_weights(x, x, seen(size), scale=0.5), x))


def test_no_graph_is_made_for_short_texts_nor_for_padded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_GRAPHS", {})
    x = torch.randn(2, 128, 1, 4)
    assert prefers_flex(x, x, seen(1), None)
    assert not prefers_flex(x[:, :127], x, seen(1), None) and not prefers_flex(x, x[:, :127], seen(1), None)
    assert not prefers_flex(x, x, seen(1)._replace(valid=torch.ones(2, 128, dtype=torch.bool)), None)


def test_a_graph_is_made_for_what_learns_and_not_for_every_length_of_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_GRAPHS", {})
    monkeypatch.setattr(flex, "_MOST_GRAPHS", 1)
    x = torch.randn(2, 128, 1, 4)
    with torch.no_grad():
        assert not prefers_flex(x, x, seen(1), None)
        monkeypatch.setattr(flex, "_LARGE", 128**2)
        assert prefers_flex(x, x, seen(1), None)  # a mask of this size is worse than waiting for a graph
    assert prefers_flex(x, x, seen(1), None)
    flex._graph(flex._case(x, x, seen(1), None))
    with torch.no_grad():
        assert prefers_flex(x, x, seen(1), None)  # it is there
    assert not prefers_flex(x, x, seen(2), None)
