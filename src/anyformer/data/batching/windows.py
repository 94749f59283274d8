"""Batches that are planned window by window of the sample order; one batch may take rows of several windows."""

from collections.abc import Callable, Iterator

from anyformer.data.batching.order import LoaderPosition, Order
from anyformer.data.batching.row_plan import BatchPlan, RowPlan


def windowed(
    order: Order, plan: Callable[[int, int], BatchPlan], units: int, even: bool, start: LoaderPosition
) -> Iterator[tuple[RowPlan, LoaderPosition]]:
    """The batches of an epoch from a position on, each with the position after it. `plan` gives the rows of a window of
    an epoch, `units` is the number of units of a batch; `even` fills the last batch up with empty rows, unless it is
    the only one."""
    epoch, rows, missing = start.epoch, RowPlan.blank(), units
    only = start == LoaderPosition(epoch)
    for window in range(start.window, order.windows):
        planned = plan(epoch, window)
        following = LoaderPosition(epoch + 1) if window + 1 == order.windows else LoaderPosition(epoch, window + 1)
        unit = start.unit if window == start.window else 0
        while unit < planned.units:
            last = min(unit + missing, planned.units)
            rows, missing, unit = rows.above(planned.take(unit, last)), missing - (last - unit), last
            if not missing:
                yield rows, LoaderPosition(epoch, window, unit) if unit < planned.units else following
                rows, missing, only = RowPlan.blank(), units, False
    if rows.height:
        yield rows.filled_up(units) if even and not only else rows, LoaderPosition(epoch + 1)
