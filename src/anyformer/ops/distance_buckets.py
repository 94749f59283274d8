"""Buckets of distances, as T5 has them: half hold one distance each, the others grow with its logarithm."""

import math

import torch
from jaxtyping import Int
from torch import Tensor

from anyformer.errors import SpecError


def check_buckets(buckets: int, max_distance: int) -> None:
    """Raises SpecError unless distances up to max_distance can be divided into this number of buckets."""
    if buckets % 2:
        raise SpecError(f"buckets={buckets} must be even: half of them hold one distance each.")
    if max_distance <= buckets // 2:
        raise SpecError(f"max_distance={max_distance} must be above buckets / 2 = {buckets // 2}.")


def bucket_table(buckets: int, max_distance: int, two_sided: bool) -> Int[Tensor, " n"]:
    """The bucket of each offset from -max_distance to max_distance."""
    return bucket_of(torch.arange(-max_distance, max_distance + 1, device="cpu"), buckets, max_distance, two_sided)


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
