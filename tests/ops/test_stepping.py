"""One token a row: its definition is what attention over the whole text gives the last token."""

import torch
import torch.nn.functional as F

from anyformer.ops.decode_step import attend_step, attend_step_loop, supports_step


def test_the_definition_is_the_last_row_of_causal_attention() -> None:
    q, k, v = torch.randn(2, 9, 4, 8), torch.randn(2, 9, 2, 8), torch.randn(2, 9, 2, 8)
    heads, places, rows = torch.cat((q, k, v), dim=2), torch.tensor([8, 5]), torch.arange(2)
    state = torch.zeros(2, 10, 2, 8), torch.zeros(2, 10, 2, 8), torch.zeros(2, 10, dtype=torch.bool)
    for at in range(9):
        step = torch.full((2,), at).minimum(places)
        y = attend_step_loop(heads[rows, step], state, step, 0.3)
    whole = F.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(y, whole.transpose(1, 2)[rows, places])
    assert state[2].sum(1).tolist() == [9, 6]


def test_it_is_for_single_tokens_on_a_gpu_and_can_be_traced() -> None:
    q, keys = torch.empty(2, 1, 4, 8), torch.empty(2, 9, 2, 8)
    assert not supports_step(q, keys)
    heads = torch.empty(2, 8, 8, device="meta")
    state = torch.empty(2, 9, 2, 8, device="meta"), torch.empty(2, 9, 2, 8, device="meta")
    filled, places = torch.empty(2, 9, dtype=torch.bool, device="meta"), torch.empty(2, dtype=torch.long, device="meta")
    assert attend_step(heads, *state, filled, places, 0.3).shape == (2, 4, 8)
