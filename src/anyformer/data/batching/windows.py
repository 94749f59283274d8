"""Batches that are planned window by window of the sample order; one batch may take rows of several windows."""

from collections.abc import Iterator
from typing import Protocol

from anyformer.data.batching.order import LoaderPosition, Order
from anyformer.data.batching.row_plan import BatchPlan, RowPlan


class WindowPlanner(Protocol):
    """Plans the rows of one window."""

    @property
    def order(self) -> Order:
        """The order of the samples."""

    @property
    def units(self) -> int:
        """Units of a batch: rows, or 1 if each unit is one batch."""

    def plan(self, epoch: int, window: int) -> BatchPlan:
        """The rows of a window of an epoch."""


def windowed(planner: WindowPlanner, even: bool, start: LoaderPosition) -> Iterator[tuple[RowPlan, LoaderPosition]]:
    """The batches of an epoch from a position on, each with the position after it. `even` fills the last batch up with
    empty rows, unless it is the only one."""
    epoch, rows, missing = start.epoch, RowPlan.blank(), planner.units
    only = start == LoaderPosition(epoch)
    for window in range(start.window, planner.order.windows):
        plan = planner.plan(epoch, window)
        unit = start.unit if window == start.window else 0
        while unit < plan.units:
            last = min(unit + missing, plan.units)
            rows, missing, unit = rows.above(plan.take(unit, last)), missing - (last - unit), last
            if not missing:
                yield rows, _after(planner, LoaderPosition(epoch, window, unit), plan.units)
                rows, missing, only = RowPlan.blank(), planner.units, False
    if rows.height:
        yield rows.filled_up(planner.units) if even and not only else rows, LoaderPosition(epoch + 1)


def _after(planner: WindowPlanner, position: LoaderPosition, units: int) -> LoaderPosition:
    """The same position, expressed from the start of the next window or epoch if this one is finished."""
    if position.unit < units:
        return position
    last = position.window + 1 == planner.order.windows
    return LoaderPosition(position.epoch + 1) if last else LoaderPosition(position.epoch, position.window + 1)
