"""A part or a scheme with fresh weights, those of shared modules included."""

from typing import TypeVar

from torch import nn

from anyformer.core import Site, initialise
from anyformer.parts.inits.xavier import Xavier

M = TypeVar("M", bound=nn.Module)


def fresh(module: M, site: Site) -> M:
    """`site`: where it was built, which owns what it shares."""
    for each in (module, site.shared):
        initialise(each, Xavier(), 0)
    return module
