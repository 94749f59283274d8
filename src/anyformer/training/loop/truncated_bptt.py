"""Truncated backpropagation through time: each batch starts from the model's state after the previous batch.

s_{k+1}, y_k = model(x_k, stop_gradient(s_k)): values cross the border between two segments, gradients do not. If the
state is a memory of hidden states instead of a recurrent state, this is Transformer-XL (arXiv 1901.02860).
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map, tree_unflatten

from anyformer.core import Frame, Model, ModelSpec, Out, Part, PartSpec, Position, Site, State, WrappedModel
from anyformer.core.frame import detach, nbytes, reorder
from anyformer.data.preparation.shards import Prepared
from anyformer.errors import CheckpointError, SpecError
from anyformer.models.single import stack_modules_of
from anyformer.models.stack import StackModule
from anyformer.training.distributed import World
from anyformer.training.recipes.recipe import Recipe

FAR = 1 << 20
"""Tokens. A state that is larger for 2 * FAR tokens than for FAR grows with the length, as a KV cache does."""
_FITTING = "Use parts whose state has a fixed size, such as lstm, gru, min_gru or transformer_xl."


class CarriedState:
    """The state of every row after the last batch, and the pending state of the current batch."""

    def __init__(self, empty: State):
        self.state = self._empty = empty
        self._fresh: State | None = None

    def empty(self) -> "CarriedState":
        """A new carried state that starts empty."""
        return CarriedState(self._empty)

    def begin(self) -> None:
        """Resets to the empty state, for the start of an epoch."""
        self.state, self._fresh = self._empty, None

    def take(self, rows: Tensor) -> State:
        """The state of these rows."""
        return reorder(self.state, rows)

    def leave(self, rows: Tensor, state: State) -> None:
        """Stores the new state of these rows as pending until `settle`, since a batch may be repeated."""

        def put(lanes: Tensor, part: Tensor) -> Tensor:
            return lanes.index_copy(0, rows, part.to(lanes.dtype))

        self._fresh = tree_map(put, self.state if self._fresh is None else self._fresh, detach(state))

    def settle(self, good: bool = True) -> None:
        """Accepts the pending state at the end of a batch; resets to empty if the update was not finite."""
        if self._fresh is not None:
            self.state = self._fresh if good else self._empty
        self._fresh = None

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors of the state, named by their path in it."""
        return {keystr(path).lstrip("."): leaf for path, leaf in tree_flatten_with_path(self.state)[0]}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        expected = self.state_dict()
        ours, theirs = ({name: tensor.shape for name, tensor in each.items()} for each in (expected, tensors))
        if ours != theirs:
            raise CheckpointError(
                "carry.safetensors: the saved recurrent states have other names or shapes than this run's."
            )
        leaves = [tensors[name].to(tensor) for name, tensor in expected.items()]
        self.state = tree_unflatten(leaves, tree_flatten_with_path(self.state)[1])


class CarryingModel(WrappedModel):
    """A model whose rows continue from the carried states; to an objective it is a model like any other."""

    def __init__(self, model: Model, carried: CarriedState, rows: Tensor):
        super().__init__(model)
        self.carried, self.rows = carried, rows

    def forward(
        self, tokens: Tensor, frame: Frame = Frame(), state: State | None = None, *, logits: bool = True
    ) -> Out:
        out = self.inner(tokens, frame, self.carried.take(self.rows), logits=logits)
        self.carried.leave(self.rows, out.state)
        return out


def carried_state(recipe: Recipe, prepared: Prepared, model: Model) -> CarriedState:
    """The empty carried state of a model."""
    rows = recipe.train.batch_tokens // prepared.context
    return CarriedState(model.init_state(rows, prepared.longest))


def refuse_carry(recipe: Recipe, world: World) -> None:
    """Raises SpecError if a recipe cannot carry a state, before anything is built."""
    if world.size > 1:
        raise SpecError(f"train.segments=carry: works with one process only, not with {world.size}. Start one.")
    with torch.device("meta"):
        (model,) = stack_modules_of(recipe.model.module()).values()  # language modelling has one stack
        short, long = _sizes(model.stack)
        parts = [spec for _, spec in recipe.model.walk() if isinstance(spec, PartSpec)]
        growing = {part.kind for part in parts if _grows(part, recipe.model)}
    if long > short:
        kinds = " and ".join(sorted(growing)) or "a part"
        raise SpecError(
            f"train.segments=carry: the state of {kinds} holds every token, so it would grow without limit. {_FITTING}"
        )
    if not short:
        raise SpecError(f"train.segments=carry: no part of this model has a state. {_FITTING}")


def refuse_far(model: Model, prepared: Prepared) -> None:
    """Raises SpecError if a document, over whose rows positions continue, is longer than a table of positions."""
    tables = [table.longest for table in model.modules() if isinstance(table, Position) and table.longest is not None]
    if (longest := prepared.longest) > min(tables, default=longest):
        raise SpecError(
            f"data.packing={prepared.packing.kind}: the longest document has {longest} tokens, the model {min(tables)} "
            f"positions. Raise model.max_len, use a position scheme without a table, or data.packing=pack."
        )


def _sizes(part: Part | StackModule) -> tuple[int, int]:
    """Bytes of the state after FAR tokens and after twice as many."""
    short, long = (nbytes(part.init_state(1, length)) for length in (FAR, 2 * FAR))
    return short, long


def _grows(part: PartSpec, model: ModelSpec) -> bool:
    try:
        short, long = _sizes(part.place(Site(dim=model.output_stack.dim)))
    except SpecError:  # the part needs another site
        return False
    return long > short
