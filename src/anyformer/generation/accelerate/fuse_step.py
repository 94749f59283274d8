"""Fusion of a compiled decoding step of one row: norms, activations and residuals move into the matrix products.

For one row each of these is a kernel of a few values, which takes as long as a product. Torch's compiler cannot fuse
into the operator `one_row`, so the step's graph is rewritten before it is compiled, where no other node reads the value
in between:

    one_row(norm(x)) -> one_row(x, norm)    gelu(one_row(x)) -> one_row(x, gelu)    one_row(x) + r -> one_row(x, r)

An activation moves into the product before it, which computes each value once; the product after it reads each value
many times.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node

from anyformer.ops.decode_step import LONGEST_NORM  # the module registers the operations named below

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
"""Kind of each norm, and the names of its arguments."""
_ACTIVATIONS: dict[Any, str] = {
    (F.relu, ()): "relu",
    (torch.relu, ()): "relu",
    (F.gelu, ()): "gelu",
    (F.gelu, (("approximate", "none"),)): "gelu",
    (F.gelu, (("approximate", "tanh"),)): "gelu_tanh",
    (F.silu, ()): "silu",
    (torch.sigmoid, ()): "sigmoid",
}
"""(function, options) -> the name of the activation in `one_row`."""


def compiled(step: GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """A backend of `torch.compile` that fuses the graph first."""
    function: Callable[..., Any] = torch._dynamo.lookup_backend("inductor")(fuse(step), inputs)  # type: ignore[arg-type]
    return function


def fuse(step: GraphModule) -> GraphModule:
    """Rewrites the graph in place. Nodes are erased one by one, because writes to a state have no users either."""
    for node in step.graph.nodes:
        if node.target in _DROPOUTS and len(node.args) == 3 and not (node.args[1] and node.args[2]):
            _replace(node, node.args[0])
    for product in step.graph.find_nodes(op="call_function", target=ONE_ROW):
        _fuse_activation(product)
        _fuse_residual(product)
    for node in step.graph.nodes:
        if node.target in _NORMS:
            _fuse_norm(node)
    step.graph.lint()
    step.recompile()
    return step


def _fuse_activation(product: Node) -> None:
    user = _only_user(product)
    if user is None or user.op != "call_function" or user.args != (product,):
        return
    activation = _ACTIVATIONS.get((user.target, tuple(user.kwargs.items())))
    if activation is not None:
        product.update_kwarg("activation", activation)
        _replace(user, product)


def _fuse_residual(product: Node) -> None:
    user = _only_user(product)
    if user is None or user.target not in _SUMS or len(user.args) != 2 or user.kwargs:
        return
    other = user.args[0] if user.args[1] is product else user.args[1]
    if isinstance(other, Node) and other < product and _alike(other, product) and _no_writes_between(product, user):
        product.update_kwarg("residual", other)
        _replace(user, product)


def _fuse_norm(node: Node) -> None:
    """Moves a norm into all products that read it, if no other node does."""
    kind, names = _NORMS[node.target]  # type: ignore[index]
    arguments: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    x, shape = arguments["input"], arguments["normalized_shape"]
    gain, shift = _unconverted(arguments.get("weight")), _unconverted(arguments.get("bias"))
    eps = arguments.get("eps")
    plain = isinstance(x, Node) and _alike(x, node) and _is_parameter(gain) and _is_parameter(shift)
    known = len(shape) == 1 and shape[0] <= LONGEST_NORM and eps is not None and (gain is not None or shift is None)
    if not (plain and known and all(_reads(user, node) and _no_writes_between(node, user) for user in node.users)):
        return
    affine = [each for each in (gain, shift) if each is not None]
    for product in list(node.users):
        product.args = (x, *product.args[1:])
        product.kwargs = {**product.kwargs, "norm": kind, "affine": affine, "eps": eps}
    node.graph.erase_node(node)


def _unconverted(value: Any) -> Any:
    """The input of a conversion that changes neither dtype nor device; any other value as it is."""
    same = isinstance(value, Node) and value.target in ("to", "type_as") and _alike(value, value.args[0])  # type: ignore[arg-type]
    return value.args[0] if same else value


def _is_parameter(value: Any) -> bool:
    """True if the step does not compute it: a product may load it before the nodes in front of it have run."""
    return value is None or value.op in ("placeholder", "get_attr")


def _reads(user: Node, row: Node) -> bool:
    """True if the user is a product that reads the node as its row and nowhere else."""
    others = *user.args[1:], *user.kwargs.values()
    return user.target == ONE_ROW and user.args[0] is row and row not in others


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _replace(node: Node, value: Any) -> None:
    node.replace_all_uses_with(value)
    node.graph.erase_node(node)


def _alike(one: Node, other: Node) -> bool:
    """True if both are tensors of one shape, dtype and device."""
    mine, theirs = one.meta.get("example_value"), other.meta.get("example_value")
    if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
        return False
    return mine.shape == theirs.shape and mine.dtype == theirs.dtype and mine.device == theirs.device


def _no_writes_between(first: Node, last: Node) -> bool:
    """True if no node between the two writes in place, so that both would read the same values."""
    node = first.next
    while node is not last:
        if _writes(node):
            return False
        node = node.next
    return True


def _writes(node: Node) -> bool:
    """True if the node writes to memory that other nodes may read. Keys and values are read by attention alone."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable and node.target is not _ATTEND_STEP
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.endswith("_") or name in _IN_PLACE or not {"inplace", "out"}.isdisjoint(node.kwargs)
