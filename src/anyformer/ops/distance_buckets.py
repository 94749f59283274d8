"""Buckets of distances, as T5 has them: half hold one distance each, the others grow with its logarithm."""

import math

import torch
from jaxtyping import Int
from torch import Tensor


def bucket_of(offset: Int[Tensor, "*n"], buckets: int, max_distance: int, two_sided: bool) -> Int[Tensor, "*n"]:
    """The bucket of each offset (key - query). One-sided: the future is as near as the token itself."""
    if two_sided:
        side = buckets // 2 * (offset > 0)
        return side + _bucket_of_distance(offset.abs(), buckets // 2, max_distance)
    return _bucket_of_distance((-offset).clamp(min=0), buckets, max_distance)


def _bucket_of_distance(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    exact = buckets // 2
    # in single precision on the CPU, as T5 was trained: elsewhere a distance at a border could change its bucket
    octaves = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = exact + (octaves * (buckets - exact)).long()
    return torch.where(distance < exact, distance, far.clamp(max=buckets - 1))
