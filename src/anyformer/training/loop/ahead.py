"""What is done before its turn, so that a device never waits for the host."""

from collections.abc import Iterable
from traceback import clear_frames
from typing import Generic, TypeVar

from anyformer.training.distributed.world import World
from anyformer.training.loop.loss_module import LossModule
from anyformer.training.loop.precision import Precision

T = TypeVar("T")


class Coming(Generic[T]):
    """Items of which the next can be fetched before it is asked for."""

    def __init__(self, items: Iterable[T]):
        self._items, self._fetched = iter(items), list[T | Exception | None]()

    def fetch(self) -> None:
        """What goes wrong is raised when the item is taken."""
        try:
            self._fetched.append(next(self._items, None))
        except Exception as error:
            _let_go(error)
            self._fetched.append(error)

    def take(self) -> T | None:
        """None: there are no more."""
        if not self._fetched:
            self.fetch()
        found = self._fetched.pop(0)
        try:
            if isinstance(found, Exception):
                raise found
            return found
        finally:
            del found  # else the error holds this frame and the frame the error, and both all that they know


def _let_go(error: BaseException) -> None:
    """Of what was being computed when it went wrong: others may need the memory before it is its turn."""
    clear_frames(error.__traceback__)
    if error.__context__ is not None:
        _let_go(error.__context__)


def may_ask_ahead(scored: LossModule, world: World, precision: Precision) -> bool:
    """Whether the gradients of an update may be asked for before anybody has read what came of the one before. It pays
    where the host does not compute itself, and does not wait for other processes either. Nothing but gradients (and the
    size of pieces, if memory runs out) may change: no state of segments, no statistics of batches, no graph whose
    results the next call overwrites; nor may they depend on how the update before went, as fp16's scale does."""
    alone = world.device.type == "cuda" and world.size == 1
    stays = scored.lanes is None and not scored.replayed and not _stored_buffers(scored)
    return alone and stays and precision != "fp16"


def _stored_buffers(scored: LossModule) -> set[str]:
    return {name for name, _ in scored.named_buffers()} & scored.state_dict().keys()
