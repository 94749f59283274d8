"""Which split a group of documents belongs to. A group is a package of prose, or a folder of a package of code."""

import hashlib
from collections.abc import Mapping

ORDER = ("test", "valid", "train")
"""Held-out documents come first: of two copies the first is kept."""
HELD_OUT_PERCENT = 1


def split_of(group: str, held_out: Mapping[str, str]) -> str:
    """The split of a group: by the table where it is named, else one percent of the groups each for valid and test.
    The hash of the name decides, so a new package never moves another one."""
    if group in held_out:
        return held_out[group]
    percent = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "big") % 100
    return "test" if percent < HELD_OUT_PERCENT else "valid" if percent < 2 * HELD_OUT_PERCENT else "train"
