"""Which split a group of documents belongs to. A group is a package of prose, or a folder of a package of code."""

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass

HELD_OUT_PERCENT = 1


@dataclass(frozen=True)
class Splits:
    """The splits of all groups."""

    named: Mapping[str, str]
    """Group -> split, by the table of packages."""
    left_out: Set[str] = frozenset()
    """Groups that are in no split."""

    def of(self, group: str) -> str:
        """The split of a group: as named, else one percent of the groups each for valid and test. The hash of the name
        decides, so a new package never moves another one."""
        if group in self.named:
            return self.named[group]
        percent = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "big") % 100
        return "test" if percent < HELD_OUT_PERCENT else "valid" if percent < 2 * HELD_OUT_PERCENT else "train"

    def wanted(self, group: str, held_out: bool) -> bool:
        """Whether a group is used, and is (or is not) held out from training."""
        return group not in self.left_out and (self.of(group) != "train") is held_out
