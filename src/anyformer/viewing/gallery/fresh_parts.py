"""Initialises a part or a position module, including the modules that it shares."""

from typing import TypeVar

from torch import nn

from anyformer.core import Site, initialise
from anyformer.parts.inits.xavier import Xavier

M = TypeVar("M", bound=nn.Module)


def fresh(module: M, site: Site) -> M:
    """The module with initialised weights; `site` is where it was built, and owns the shared modules."""
    for each in (module, site.shared):
        initialise(each, Xavier(), 0)
    return module
