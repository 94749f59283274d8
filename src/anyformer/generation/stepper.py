"""The stepping protocol: a stepper runs a model with a strategy, which chooses the next tokens from logits.

    history, rows of the state --select, join--> ... --advance: k times (model call, choice)--> history

A strategy (sampling, beam search) works on tensors only, so a stepper may run it step by step (`EagerStepper`) or k
steps at a time in a CUDA graph (`accelerate.captured_stepper`). A *place* is a row in sampling and a sentence in beam
search.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anyformer.generation.decoding import Decoding, SharedLeaves, Step, concatenate

STEPS = 8
"""Steps between two reads of the host on a GPU. A read synchronises; a row that ends before it steps in vain."""
History = TypeVar("History")
"""What a strategy knows about each place: a tree of tensors with the places first."""


class Strategy(Protocol[History]):
    """How the next token of each row is chosen. Reads no tensor's value, unless `waits` is True."""

    @property
    def waits(self) -> bool:
        """True if a choice reads a value or uses hooks, so that it cannot be captured in a CUDA graph."""
        ...

    def draw(self, history: History, steps: int) -> Sequence[Tensor | None]:
        """The random numbers for the next steps, one entry each."""
        ...

    def choose(self, history: History, logits: Float[Tensor, "b v"], number: Tensor | None) -> History:
        """The history with one more token."""
        ...

    def choice(self, compile: Callable[[Any], Any]) -> Callable[[History, Tensor, Tensor | None], History]:
        """`choose` for a CUDA graph, with the functions compiled that gain by it."""
        ...

    def tokens(self, history: History) -> Int[Tensor, " b"]:
        """The last token of each row, which the model has not read yet."""
        ...

    def parents(self, history: History) -> Int[Tensor, " b"] | None:
        """The row of the state that each row continues; None if each continues itself."""
        ...

    def select(self, history: History, places: Int[Tensor, " n"]) -> tuple[History, Int[Tensor, " m"]]:
        """The history of these places, and the rows of the state that belong to them."""
        ...


class PendingTokens:
    """Tokens [n b] on their way to the host while the device goes on."""

    def __init__(self, tokens: Int[Tensor, "n b"]):
        self._tokens = tokens.to("cpu", non_blocking=True)
        self._columns: Sequence[int] = range(tokens.shape[1])
        self._copied = torch.cuda.Event() if tokens.is_cuda else None
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(tokens.device))

    def select(self, columns: Sequence[int]) -> None:
        self._columns = columns

    def read(self) -> list[list[int]]:
        """The tokens of each step, as soon as they have arrived."""
        if self._copied is not None:
            self._copied.synchronize()
        return [[step[column] for column in self._columns] for step in self._tokens.tolist()]


class Stepper(Protocol[History]):
    """Decodes the rows of a batch. Rows join and leave between two calls of `advance`."""

    @property
    def history(self) -> History: ...

    def join(self, places: Sequence[int], decoding: Decoding, history: History) -> PendingTokens:
        """Keeps these places, now 0, 1, ..., and adds prefilled rows behind them; returns the first token of these."""
        ...

    def select(self, places: Sequence[int]) -> Sequence[int]:
        """Drops all other places; returns where these are from now on."""
        ...

    def advance(self, fewest: int) -> PendingTokens:
        """Runs one or more steps. `fewest`: tokens that the row nearest to its limit may still get."""
        ...

    def close(self) -> None:
        """Drops all rows and frees their memory; others may join again."""
        ...


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
        assert self._decoding is not None
        if len(places) < place_count(self.history):
            chosen = torch.tensor(places, device=self._decoding.positions.device)
            self.history, rows = self._strategy.select(self.history, chosen)
            self._move(rows, all_stay=False)
        return range(len(places))

    def advance(self, fewest: int) -> PendingTokens:
        """One step, or several where a read would synchronise with the device."""
        assert self._decoding is not None
        steps, tokens = min(STEPS, fewest) if self._decoding.positions.is_cuda else 1, []
        for number in self._strategy.draw(self.history, steps):
            parents = self._strategy.parents(self.history)
            if parents is not None:
                self._move(parents, all_stay=True)
            self._step(self._decoding, self._strategy.tokens(self.history))
            self.history = self._strategy.choose(self.history, self._decoding.logits, number)
            tokens.append(self._strategy.tokens(self.history))
        return PendingTokens(torch.stack(tokens))

    def close(self) -> None:
        self._decoding = self._shared = None

    def _move(self, rows: Int[Tensor, " b"], *, all_stay: bool) -> None:
        decoding = self._decoding
        assert decoding is not None and self._shared is not None
        state, positions = self._shared.reorder(decoding.state, rows, all_stay=all_stay), decoding.positions[rows]
        if all_stay:  # the next step overwrites the logits
            decoding.state, decoding.positions = state, positions
        else:
            self._decoding = replace(decoding, state=state, positions=positions, logits=decoding.logits[rows])


def first_choice(strategy: Strategy[History], decoding: Decoding, history: History) -> History:
    """The history with the token that follows the prompt."""
    (number,) = strategy.draw(history, 1)
    return strategy.choose(history, decoding.logits, number)


def place_count(history: object) -> int:
    """How many places a history has."""
    return int(tree_leaves(history)[0].shape[0])
