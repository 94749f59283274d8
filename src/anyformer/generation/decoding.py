"""Decoding step by step: the rows of a batch, the strategy that chooses their tokens, the stepper that runs both, and
the loop that yields the tokens of each request until it stops, while waiting requests take free places.

    history, rows of the state --select, join--> ... --advance: k times (model call, choice)--> history

A strategy (sampling, beam search) works on tensors only, so a stepper may run it step by step (`EagerStepper`) or k
steps at a time in a CUDA graph (`accelerate.captured_stepper`). A *place* is a row in sampling and a sentence in beam
search.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from anyformer.core import AlignedCursor, ContiguousCursor, Frame, Model, State, reorder
from anyformer.ops.decode_step import lay_out
from anyformer.ops.devices import on_gpu, synchronizer

STEPS = 8
"""Steps between two reads of the host on a GPU. A read synchronises; a row that ends before it steps in vain."""
History = TypeVar("History")
"""What a strategy knows about each place: a tree of tensors with the places first."""


def for_writing(model: Model) -> Model:
    """The model with its weights laid out for decoding, in place. Shapes and values do not change; it can still be
    trained."""
    lay_out(model)
    return model


@dataclass(eq=False)
class Decoding:
    """Rows of a batch between two decoding steps. A step, a selection or a join consumes its state."""

    state: State
    positions: Int[Tensor, " b"]
    """Position of the next token of each row."""
    logits: Float[Tensor, "b v"]
    """Scores of the next token of each row."""
    room: int
    """Number of positions for which the state has memory."""
    reach: int
    """Exclusive upper bound of the positions in the state, known without reading a tensor."""
    aligned: bool
    """True if every row has exactly `reach` tokens."""

    def select(self, rows: Int[Tensor, " n"]) -> "Decoding":
        """The decoding of these rows, in this order; a row may occur several times."""
        state, positions, logits = reorder((self.state, self.positions, self.logits), rows)
        return replace(self, state=state, positions=positions, logits=logits)

    def join(self, other: "Decoding") -> "Decoding":
        """The rows of both, these first. Both states must have the same room."""
        mine, theirs = ((each.state, each.positions, each.logits) for each in (self, other))
        aligned = self.aligned and other.aligned and self.reach == other.reach
        state, positions, logits = concatenate(mine, theirs)
        return Decoding(state, positions, logits, self.room, max(self.reach, other.reach), aligned)

    def advance(self, state: State, logits: Float[Tensor, "b v"]) -> None:
        """Stores the results of a step. A finished row that is still in the batch stays at the last position."""
        self.state, self.logits = state, logits
        self.positions = (self.positions + 1).clamp(max=self.room - 1)
        self.reach = min(self.reach + 1, self.room)


Step = Callable[[Decoding, Tensor], None]
"""Feeds one token [b] to each row of a decoding, whose state, positions and logits change."""


def eager_step(model: Model, decoding: Decoding, tokens: Int[Tensor, " b"]) -> None:
    """Feeds one token to each row by a plain call of the model."""
    contiguous = ContiguousCursor(min(decoding.reach + 1, decoding.room))
    layout = AlignedCursor(decoding.reach) if decoding.aligned else contiguous
    out = model(tokens[:, None], Frame(positions=decoding.positions[:, None], layout=layout), decoding.state)
    decoding.advance(out.state, out.y[:, -1])


def concatenate(first: Any, second: Any) -> Any:
    """Two trees of tensors with the batch first as one: the rows of the first, then those of the second."""
    return tree_map(lambda one, two: torch.cat((one, two)), first, second)


def shapes(leaves: Sequence[Tensor]) -> tuple[Any, ...]:
    """Shape, dtype and device of each tensor: what a captured or traced step depends on."""
    return tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves)


class Strategy(Protocol[History]):
    """How the next token of each row is chosen. Reads no tensor's value, unless `waits` is True."""

    @property
    def waits(self) -> bool:
        """True if a choice reads a value or uses hooks, so that it cannot be captured in a CUDA graph."""

    def draw(self, history: History, steps: int) -> Sequence[Tensor | None]:
        """The random numbers for the next steps, one entry each."""

    def choose(self, history: History, logits: Float[Tensor, "b v"], number: Tensor | None) -> History:
        """The history with one more token."""

    def choice(self, compile: Callable[[Any], Any]) -> Callable[[History, Tensor, Tensor | None], History]:
        """`choose` for a CUDA graph, with the functions compiled that gain by it."""

    def tokens(self, history: History) -> Int[Tensor, " b"]:
        """The last token of each row, which the model has not read yet."""

    def parents(self, history: History) -> Int[Tensor, " b"] | None:
        """The row of the state that each row continues; None if each continues itself."""

    def select(self, history: History, places: Int[Tensor, " n"]) -> tuple[History, Int[Tensor, " m"]]:
        """The history of these places, and the rows of the state that belong to them."""


class PendingTokens:
    """Tokens [n b] on their way to the host while the device goes on."""

    def __init__(self, tokens: Int[Tensor, "n b"]):
        self._tokens = tokens.to("cpu", non_blocking=on_gpu(tokens.device))
        self._columns: Sequence[int] = range(tokens.shape[1])
        self._wait = synchronizer(tokens.device)

    def select(self, columns: Sequence[int]) -> None:
        self._columns = columns

    def read(self) -> list[list[int]]:
        """The tokens of each step, as soon as they have arrived."""
        self._wait()
        return [[step[column] for column in self._columns] for step in self._tokens.tolist()]


class Stepper(Protocol[History]):
    """Decodes the rows of a batch. Rows join and leave between two calls of `advance`."""

    @property
    def history(self) -> History: ...

    def join(self, places: Sequence[int], decoding: Decoding, history: History) -> PendingTokens:
        """Keeps these places, now 0, 1, ..., and adds prefilled rows behind them; returns the first token of these."""

    def select(self, places: Sequence[int]) -> Sequence[int]:
        """Drops all other places; returns where these are from now on."""

    def advance(self, fewest: int) -> PendingTokens:
        """Runs one or more steps. `fewest`: tokens that the row nearest to its limit may still get."""

    def close(self) -> None:
        """Drops all rows and frees their memory; others may join again."""


class EagerStepper(Generic[History]):
    """Calls the model step by step; rows leave at once."""

    history: History

    def __init__(self, step: Step, strategy: Strategy[History]):
        self._step, self._strategy = step, strategy
        self._decoding: Decoding | None = None
        self._shared: SharedLeaves | None = None

    def join(self, places: Sequence[int], decoding: Decoding, history: History) -> PendingTokens:
        history = first_choice(self._strategy, decoding, history)
        tokens = PendingTokens(self._strategy.tokens(history)[None])
        if places:
            self.select(places)
            assert self._decoding is not None
            decoding, history = self._decoding.join(decoding), concatenate(self.history, history)
        self._decoding, self.history = decoding, history
        self._shared = SharedLeaves(decoding.state, copies=not places)
        return tokens

    def select(self, places: Sequence[int]) -> Sequence[int]:
        decoding = self._decoding
        assert decoding is not None and self._shared is not None
        if len(places) < place_count(self.history):
            chosen = torch.tensor(places, device=decoding.positions.device)
            self.history, rows = self._strategy.select(self.history, chosen)
            state = self._shared.reorder(decoding.state, rows, all_stay=False)
            positions, logits = decoding.positions[rows], decoding.logits[rows]
            self._decoding = replace(decoding, state=state, positions=positions, logits=logits)
        return range(len(places))

    def advance(self, fewest: int) -> PendingTokens:
        """One step, or several where a read would synchronise with the device."""
        decoding, tokens = self._decoding, []
        assert decoding is not None and self._shared is not None
        steps = min(STEPS, fewest) if on_gpu(decoding.positions.device) else 1
        for number in self._strategy.draw(self.history, steps):
            parents = self._strategy.parents(self.history)
            if parents is not None:
                decoding.state = self._shared.reorder(decoding.state, parents, all_stay=True)
                decoding.positions = decoding.positions[parents]
            self._step(decoding, self._strategy.tokens(self.history))
            self.history = self._strategy.choose(self.history, decoding.logits, number)
            tokens.append(self._strategy.tokens(self.history))
        return PendingTokens(torch.stack(tokens))

    def close(self) -> None:
        self._decoding = self._shared = None


class SharedLeaves:
    """Which tensors of a state are still equal for all beams of a sentence, because no step has written to them.

    Beams start as copies of one row. A tensor that no step writes, such as the keys of an encoder, need not move when
    beams change places. Torch counts the writes to a tensor on a CPU; kernels of a GPU are not counted, so there every
    tensor moves.
    """

    def __init__(self, state: State, *, copies: bool):
        leaves = tree_leaves(state)
        counted = copies and not torch.is_inference_mode_enabled() and not any(on_gpu(leaf.device) for leaf in leaves)
        self._marks = [(leaf, leaf._version) if counted else None for leaf in leaves]

    def reorder(self, state: State, rows: Int[Tensor, " b"], *, all_stay: bool) -> State:
        """Moves rows within their sentences (`all_stay`), or takes the rows of some sentences only."""
        leaves, tree = tree_flatten(state)
        move = _move_in_place if all_stay and not on_gpu(rows.device) else _take
        moved = []
        for index, (leaf, mark) in enumerate(zip(leaves, self._marks, strict=True)):
            shared = mark is not None and mark[0] is leaf and mark[1] == leaf._version
            leaf = leaf if shared and all_stay else move(leaf, rows)
            self._marks[index] = (leaf, leaf._version) if shared else None
            moved.append(leaf)
        return state if all(new is old for new, old in zip(moved, leaves, strict=True)) else tree.unflatten(moved)


def _take(leaf: Tensor, rows: Int[Tensor, " b"]) -> Tensor:
    return leaf.index_select(0, rows)


def _move_in_place(leaf: Tensor, rows: Int[Tensor, " b"]) -> Tensor:
    """Copies only the rows that move. Finding them reads values, for which a GPU would have to be synchronised."""
    places = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
    return leaf.index_copy_(0, places, leaf.index_select(0, rows[places])) if len(places) else leaf


def first_choice(strategy: Strategy[History], decoding: Decoding, history: History) -> History:
    """The history with the token that follows the prompt."""
    (number,) = strategy.draw(history, 1)
    return strategy.choose(history, decoding.logits, number)


def place_count(history: object) -> int:
    """How many places a history has."""
    return int(tree_leaves(history)[0].shape[0])


Finish = Literal["stop", "length"]
Watch = Callable[[int, Sequence[int]], bool]
"""(request, its new tokens) -> True if the request shall stop. Called before the tokens are yielded."""


class Chunk(NamedTuple):
    """The next tokens of a request."""

    row: int
    """Index of the request."""
    tokens: tuple[int, ...]
    finish: Finish | None = None
    """Why the request ended; None: more tokens follow."""

    def cut(self, left: int, stop: frozenset[int]) -> "Chunk":
        """The chunk up to the first stopping token, and with at most `left` tokens."""
        for index, token in enumerate(self.tokens[:left]):
            if token in stop:
                return Chunk(self.row, self.tokens[:index], "stop")
        return Chunk(self.row, self.tokens[:left], "length" if len(self.tokens) >= left else None)


class RequestQueue:
    """Requests that wait for a place in the batch.

    `rooms`: request -> positions that its state needs, in the order of service. `mixes`: whether requests may join a
    batch that is being decoded, which needs states of one shape.
    """

    def __init__(self, rooms: Mapping[int, int], size: int, *, mixes: bool):
        self._rooms, self._waiting, self._size, self._mixes = rooms, deque(rooms), size, mixes
        self.room = 0
        """Positions of the states in the batch."""

    @property
    def joins(self) -> bool:
        """True if the next request may join the batch that is being decoded."""
        return self._mixes and bool(self._waiting) and self._rooms[self._waiting[0]] <= self.room

    def take(self, live: int) -> list[int]:
        """The next requests, if the batch is empty, or half empty and open to them."""
        if not live:
            rows = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
            self.room = max((self._rooms[row] for row in rows), default=0)
            return rows
        rows = []
        while self.joins and 2 * live <= self._size and live + len(rows) < self._size:
            rows.append(self._waiting.popleft())
        return rows


def stream_tokens(
    stepper: Stepper[History],
    queue: RequestQueue,
    prefill: Callable[[Sequence[int]], tuple[Decoding, History]],
    limits: Mapping[int, int],
    stop: frozenset[int],
    watch: Watch | None,
) -> Iterator[Chunk]:
    """Tokens of all requests of the queue. `limits`: the most tokens of each request."""
    left, places = dict(limits), dict[int, int]()
    while True:
        joining = queue.take(len(places))
        if joining:
            columns = stepper.join(list(places.values()), *prefill(joining)).read()
            going = list(places)
            places = {row: place for place, row in enumerate([*places, *joining])}
            reading = {row: column for column, row in enumerate(joining)}
        elif places:
            fewest = 1 if queue.joins else min(left[row] for row in places)
            columns, going, reading = stepper.advance(fewest).read(), [], places
        else:
            return
        for row, column in reading.items():
            chunk = Chunk(row, tuple(step[column] for step in columns)).cut(left[row], stop)
            if watch is not None and watch(row, chunk.tokens):
                chunk = chunk._replace(finish="stop")
            left[row] -= len(chunk.tokens)
            if chunk.finish is None:
                going.append(row)
            yield chunk
        if going:
            places = dict(zip(going, stepper.select([places[row] for row in going]), strict=True))
        else:
            stepper.close()
            places = {}
