"""What a compiled step gives to its products of one row: norms before them, activations and residuals behind them.

For one row each of these is a kernel of a few values, which takes as long as a product. Torch's compiler does not look
into `one_row`, so the step's graph is rewritten before the compiler sees it, wherever nobody else needs the value
between:

    one_row(norm(x)) -> one_row(x, norm)    gelu(one_row(x)) -> one_row(x, gelu)    one_row(x) + r -> one_row(x, r)

An activation goes to the product before it, which makes each value once; the one behind it reads them all many times.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node

from anyformer.ops.attention import decode_attention  # noqa: F401  (registers the operation named below)
from anyformer.ops.one_row_linear import LONGEST_NORM

ONE_ROW = torch.ops.anyformer.one_row.default
_ATTEND_STEP = torch.ops.anyformer.attend_step.default
_IN_PLACE = {
    *("setitem", "delitem", "iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow"),
    *("iand", "ior", "ixor", "ilshift", "irshift", "iconcat"),
}
_DROPOUTS = (torch.dropout, F.dropout)
_SUMS = (operator.add, torch.add)
_LAYER = ("input", "normalized_shape", "weight", "bias", "eps")
_RMS = ("input", "normalized_shape", "weight", "eps")
_NORMS = {
    torch.layer_norm: ("layer", _LAYER),
    F.layer_norm: ("layer", _LAYER),
    torch.rms_norm: ("rms", _RMS),
    F.rms_norm: ("rms", _RMS),
}
"""What they are, and the names of their arguments."""
_ACTIVATIONS: dict[Any, str] = {
    (F.relu, ()): "relu",
    (torch.relu, ()): "relu",
    (F.gelu, ()): "gelu",
    (F.gelu, (("approximate", "none"),)): "gelu",
    (F.gelu, (("approximate", "tanh"),)): "gelu_tanh",
    (F.silu, ()): "silu",
    (torch.sigmoid, ()): "sigmoid",
}
"""By target and options, which of the activations that `one_row` knows it is."""


def compiled(step: GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """A backend of `torch.compile`."""
    made: Callable[..., Any] = torch._dynamo.lookup_backend("inductor")(fuse(step), inputs)  # type: ignore[arg-type]
    return made


def fuse(step: GraphModule) -> GraphModule:
    """Rewrites the graph in place. Nodes are taken out one by one: writes to a state have no users either."""
    for node in step.graph.nodes:
        if node.target in _DROPOUTS and len(node.args) == 3 and not (node.args[1] and node.args[2]):
            _replace(node, node.args[0])
    for product in step.graph.find_nodes(op="call_function", target=ONE_ROW):
        _take_bend(product)
        _take_residual(product)
    for node in step.graph.nodes:
        if node.target in _NORMS:
            _give_norm(node)
    step.graph.lint()
    step.recompile()
    return step


def _take_bend(product: Node) -> None:
    user = _only_user(product)
    if user is None or user.op != "call_function" or user.args != (product,):
        return
    activation = _ACTIVATIONS.get((user.target, tuple(user.kwargs.items())))
    if activation is not None:
        product.update_kwarg("activation", activation)
        _replace(user, product)


def _take_residual(product: Node) -> None:
    user = _only_user(product)
    if user is None or user.target not in _SUMS or len(user.args) != 2 or user.kwargs:
        return
    other = user.args[0] if user.args[1] is product else user.args[1]
    if isinstance(other, Node) and other < product and _alike(other, product) and _quiet(product, user):
        product.update_kwarg("residual", other)
        _replace(user, product)


def _give_norm(node: Node) -> None:
    """To all products that read it, if nobody else does."""
    kind, names = _NORMS[node.target]  # type: ignore[index]
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    x, shape = given["input"], given["normalized_shape"]
    gain, shift, eps = _as_learned(given.get("weight")), _as_learned(given.get("bias")), given.get("eps")
    plain = isinstance(x, Node) and _alike(x, node) and _learned(gain) and _learned(shift)
    known = len(shape) == 1 and shape[0] <= LONGEST_NORM and eps is not None and (gain is not None or shift is None)
    if not (plain and known and all(_reads(user, node) and _quiet(node, user) for user in node.users)):
        return
    affine = [each for each in (gain, shift) if each is not None]
    for product in list(node.users):
        product.args = (x, *product.args[1:])
        product.kwargs = {**product.kwargs, "norm": kind, "affine": affine, "eps": eps}
    node.graph.erase_node(node)


def _as_learned(given: Any) -> Any:
    """What a conversion to the kind that it has already was given."""
    same = isinstance(given, Node) and given.target in ("to", "type_as") and _alike(given, given.args[0])  # type: ignore[arg-type]
    return given.args[0] if same else given


def _learned(given: Any) -> bool:
    """Nothing that the step makes: a product may fetch it before the step is there."""
    return given is None or given.op in ("placeholder", "get_attr")


def _reads(user: Node, row: Node) -> bool:
    """As the row of a product, and as nothing else."""
    others = *user.args[1:], *user.kwargs.values()
    return user.target == ONE_ROW and user.args[0] is row and row not in others


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _replace(node: Node, value: Any) -> None:
    node.replace_all_uses_with(value)
    node.graph.erase_node(node)


def _alike(one: Node, other: Node) -> bool:
    """Tensors of the same shape and kind."""
    mine, theirs = one.meta.get("example_value"), other.meta.get("example_value")
    if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
        return False
    return mine.shape == theirs.shape and mine.dtype == theirs.dtype and mine.device == theirs.device


def _quiet(first: Node, last: Node) -> bool:
    """Nobody writes between the two: what is read at one is what would be read at the other."""
    node = first.next
    while node is not last:
        if _writes(node):
            return False
        node = node.next
    return True


def _writes(node: Node) -> bool:
    """Into what may be read elsewhere, through whatever view. Keys and values are read by attention alone."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable and node.target is not _ATTEND_STEP
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.endswith("_") or name in _IN_PLACE or not {"inplace", "out"}.isdisjoint(node.kwargs)
