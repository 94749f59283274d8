"""FlexAttention's graphs, made here without a GPU by a backend that runs what it is given."""

from functools import partial

import pytest
import torch

from anyformer.core import Marks
from anyformer.ops import flex
from anyformer.ops.attention import average, weigh
from anyformer.ops.flex import attend_flex
from anyformer.ops.sight import Sight
from anyformer.parts.masks.window import Window


@pytest.mark.compile
def test_no_rule_is_one_too_many_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 3
    monkeypatch.setattr(flex.torch, "compile", partial(torch.compile, backend="eager"))
    x, marks = torch.randn(2, 128, 1, 4), Marks(torch.arange(128)[None])
    with torch._dynamo.config.patch(recompile_limit=limit, fail_on_recompile_limit_hit=True):
        for size in range(1, limit + 3):
            sight = Sight(Window(size=size, block=16), marks, marks, plain=True)
            y = attend_flex(x, x, x, sight, 0.5, None)
            torch.testing.assert_close(y, average(weigh(x, x, sight, scale=0.5), x))
