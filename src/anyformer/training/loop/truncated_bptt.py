"""Segments that go on: what a batch left in the state of the model is where the next one begins.

s_{k+1}, y_k = model(x_k, SG(s_k)): values cross the border between two segments, gradients do not. With a recurrent
state this is truncated backpropagation through time, with a memory of hidden states Transformer-XL (arXiv 1901.02860).
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map, tree_unflatten

from anyformer.core import Frame, Model, ModelSpec, Out, Part, PartSpec, Position, Site, State, WrappedModel
from anyformer.core.states import detach, nbytes, reorder
from anyformer.data.preparation.prepared import Prepared
from anyformer.errors import CheckpointError, SpecError
from anyformer.models.single import stack_modules_of
from anyformer.models.stack import StackModule
from anyformer.training.distributed.world import World
from anyformer.training.recipes.recipe import Recipe

FAR = 1 << 20
"""Tokens: a state that is larger for twice as many keeps all that it has read."""
_FITTING = "What fits has a state of one size, such as lstm, gru, min_gru or transformer_xl."


class CarriedState:
    """What every lane has left so far, and what the batch that is being read leaves."""

    def __init__(self, empty: State):
        self.state = self._empty = empty
        self._fresh: State | None = None

    def empty(self) -> "CarriedState":
        """Others, of which nothing was read yet."""
        return CarriedState(self._empty)

    def begin(self) -> None:
        """Forgets everything: an epoch begins somewhere else."""
        self.state, self._fresh = self._empty, None

    def take(self, rows: Tensor) -> State:
        """Where these lanes go on."""
        return reorder(self.state, rows)

    def leave(self, rows: Tensor, state: State) -> None:
        """Where they will; nobody sees it before the whole batch is done, which may have to be tried again."""

        def put(lanes: Tensor, part: Tensor) -> Tensor:
            return lanes.index_copy(0, rows, part.to(lanes.dtype))

        self._fresh = tree_map(put, self.state if self._fresh is None else self._fresh, detach(state))

    def settle(self, good: bool = True) -> None:
        """The batch is done. What came of numbers that are none is forgotten."""
        if self._fresh is not None:
            self.state = self._fresh if good else self._empty
        self._fresh = None

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor under the path to it."""
        return {keystr(path).lstrip("."): leaf for path, leaf in tree_flatten_with_path(self.state)[0]}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        expected = self.state_dict()
        if {name: tensor.shape for name, tensor in expected.items()} != {
            name: tensor.shape for name, tensor in tensors.items()
        }:
            raise CheckpointError("carry.safetensors: its lanes are not those of this run.")
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


def carried_state(recipe: Recipe, prepared: Prepared, model: Model) -> CarriedState | None:
    """Empty lanes for a model, where the recipe carries its state; None: it does not."""
    if recipe.train.segments != "carry":
        return None
    rows = recipe.train.batch_tokens // prepared.context
    return CarriedState(model.init_state(rows, prepared.longest))


def refuse_carry(recipe: Recipe, world: World) -> None:
    """Says why a recipe cannot carry a state, before anything is built."""
    if recipe.train.segments != "carry":
        return
    if world.size > 1:
        raise SpecError(f"train.segments=carry: the lanes are held by one process, here are {world.size}. Use one.")
    with torch.device("meta"):
        (model,) = stack_modules_of(recipe.model.module()).values()  # language modelling has one stack
        short, long = _sizes(model.stack)
        growing = {part.kind for part in _parts(recipe.model) if _grows(part, recipe.model)}
    if long > short:
        kinds = " and ".join(sorted(growing)) or "a part"
        raise SpecError(
            f"train.segments=carry: the state of {kinds} holds every token that was read, so it would grow without "
            f"end. {_FITTING}"
        )
    if not short:
        raise SpecError(f"train.segments=carry: no part of this model has a state. {_FITTING}")


def refuse_far(model: Model, prepared: Prepared) -> None:
    """SpecError if positions go on over rows and a document has more tokens than the model has positions."""
    tables = [
        module.longest for module in model.modules() if isinstance(module, Position) and module.longest is not None
    ]
    if prepared.packing.continues and (longest := prepared.longest) > min(tables, default=longest):
        raise SpecError(
            f"data.packing={prepared.packing.kind}: the longest document has {longest} tokens, the model "
            f"{min(tables)} positions. Raise model.max_len, use a position scheme without a table, or "
            f"data.packing=pack."
        )


def _sizes(part: Part | StackModule) -> tuple[int, int]:
    """Bytes of the state for a long text and for one twice as long."""
    short, long = (nbytes(part.init_state(1, length)) for length in (FAR, 2 * FAR))
    return short, long


def _parts(model: ModelSpec) -> list[PartSpec]:
    return [spec for _, spec in model.walk() if isinstance(spec, PartSpec)]


def _grows(part: PartSpec, model: ModelSpec) -> bool:
    try:
        short, long = _sizes(part.place(Site(dim=model.output_stack.dim)))
    except SpecError:  # made for another place than this one
        return False
    return long > short
