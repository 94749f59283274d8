"""Where the time goes: what names are for, and what no kernel does."""

import pytest
import torch
from benchmarks.harness import Bench

from benchmarks import profiles


def test_time_in_which_nothing_is_at_work_is_idle_however_kernels_overlap() -> None:
    assert profiles.idle([(5.0, 9.0), (0.0, 2.0), (1.0, 4.0), (6.0, 7.0), (12.0, 13.0)]) == 1.0 + 3.0
    assert profiles.idle([]) == 0.0


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "matrix products"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop", "attention"),
        ("_by_keys", "attention"),
        ("triton_poi_fused_add_mul_sigmoid_view_9", "activations"),
        ("triton_red_fused_sum_view_1", "sums"),
        ("triton_poi_fused__to_copy_3", "copies and gathers"),
    ],
)
def test_a_kernel_is_told_by_its_name(name: str, group: str) -> None:
    assert profiles.group_of(name) == group


def test_most_of_a_product_is_a_product() -> None:
    a = torch.randn(500, 500)
    rows = profiles.parts(Bench(), "training", "ours", lambda: (a @ a).exp())
    found = {row.shape["group"]: row.ours_ms or 0.0 for row in rows}
    operations = {group: ms for group, ms in found.items() if group != "between operations"}  # idle on a busy machine
    assert max(operations, key=operations.__getitem__) == "matrix products"
