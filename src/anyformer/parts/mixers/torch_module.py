"""Any `torch.nn.Module` that maps [b t d] to [b t d], as a part: y = module(x).

Such a module has no notion of padding, packed documents or a decoding state. If its output depends on tokens to the
left only, padding is moved behind the valid tokens, and decoding is exact: the state holds the inputs so far, and every
step runs the module over all of them.
"""

import copy
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core import Call, Frame, Memory, Out, Part, PartSpec, Site, kind_of
from anyformer.core.discovery import built_in_class
from anyformer.core.fields import did_you_mean, shown
from anyformer.core.module import Fill
from anyformer.errors import SpecError
from anyformer.ops.padding import compact, take

Factory = Callable[[int], nn.Module]
"""dim -> a fresh module."""
Reads = Literal["itself", "left", "all"]
_NO_PADDING = {"padding": "a plain module does not know which tokens are padding"}
_NO_PACKING = {"packing": "a plain module does not know where documents begin"}
_LIMITS: Mapping[Reads, Mapping[str, str]] = {
    "itself": {},
    "left": _NO_PACKING,
    "all": {**_NO_PADDING, **_NO_PACKING, "causal": "its output depends on tokens to the right"},
}
_PROBED = 4
"""Tokens by which `reads` is checked."""


@dataclass(frozen=True, kw_only=True)
class TorchModuleSpec(PartSpec):
    """A plain torch module in a slot; `torch_part` makes a kind of it."""

    factory: ClassVar[Factory]
    reads: ClassVar[Reads]

    def build(self, site: Site) -> "TorchModulePart":
        if site.source == "memory":
            raise SpecError(f"{self.kind} is a plain torch module and cannot read the encoder's output.")
        if site.causal and self.reads == "all":
            raise SpecError(f"{self.kind} reads tokens to the right; use it in an encoder, or declare reads='left'.")
        return TorchModulePart(self, site.dim)

    def __reduce__(self) -> tuple[Callable[[str], "TorchModuleSpec"], tuple[str]]:
        return _registered, (self.kind,)  # the class is made by `torch_part`, so pickle cannot import it

    def __deepcopy__(self, memo: object) -> "TorchModuleSpec":
        return self


def _registered(name: str) -> TorchModuleSpec:
    """The spec of a torch module that was registered under a name."""
    spec = kind_of(PartSpec, name)()
    if not isinstance(spec, TorchModuleSpec):
        raise SpecError(f"{name!r} is no torch module here. Register it again: torch_part({name!r}, ...)")
    return spec


def torch_part(
    name: str, factory: Factory, *, reads: Reads = "left", limits: Mapping[str, str] = MappingProxyType({})
) -> type[TorchModuleSpec]:
    """Registers a torch module under a name, as a new kind of part: `Mine = torch_part("mine", MyBlock)`.

    factory: makes a fresh module for a width. Its own initialisation is kept, drawn from the model's seed.
    reads: the tokens that an output depends on: its own ("itself"), itself and those to its left ("left"), or all.
    limits: further things that the module cannot do, and why, as conformance names them: {"batch": "batch norm"}.

    A run that holds such a part opens only after the same name was registered again.
    """
    if reads not in _LIMITS:
        raise SpecError(f"torch_part: reads={reads!r} is not a choice.{did_you_mean(str(reads), _LIMITS)}")
    if isinstance(factory, nn.Module) or not callable(factory):
        raise SpecError(f"torch_part: expected a function dim -> module, got {shown(factory)}. Write lambda dim: ...")
    if not re.fullmatch(r"[a-z]\w*", str(name)):
        raise SpecError(f"torch_part: the name is written in recipes, such as 'my_linear', got {shown(name)}.")
    if built_in_class("PartSpec", name) is not None:
        raise SpecError(f"torch_part: a part of anyformer is called {name!r}. Choose another name.")
    if (known := PartSpec.kinds.get(name)) is not None and issubclass(known, TorchModuleSpec):
        del PartSpec.kinds[name]  # a notebook cell that is run again
    members = {
        "factory": staticmethod(factory),
        "reads": reads,
        "limits": {**_LIMITS[reads], **limits},
        "__doc__": f"The torch module registered as {name!r}.",
        "__module__": __name__,
    }
    title = name.title().replace("_", "")
    return types.new_class(title, (TorchModuleSpec,), {"kind": name}, lambda body: body.update(members))


class TorchModulePart(Part):
    def __init__(self, spec: TorchModuleSpec, dim: int):
        super().__init__()
        self.spec, self.reads, self.dim = spec, spec.reads, dim
        self.module = type(spec).factory(dim)
        for name, parameter in self.module.named_parameters():
            rows = parameter.shape[0] if parameter.dim() else 1
            self.roles[f"module.{name}"] = (("in" if parameter.dim() >= 2 else "bias", rows),)

    def init(self, fill: Fill) -> None:
        """Copies the values of a fresh module, whose own initialisation runs with a seed made from the model's."""
        seed = int(torch.randint(2**62, (), generator=fill.rng("module")))
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(seed)
            fresh = type(self.spec).factory(self.dim)
            if self.reads != "all":
                self._refuse_other_tokens(fresh)
        values = fresh.state_dict(keep_vars=True)
        for name, tensor in self.module.state_dict(keep_vars=True).items():
            tensor.detach().copy_(values[name].detach())

    def _refuse_other_tokens(self, fresh: nn.Module) -> None:
        """Raises SpecError if the output of a token depends on tokens that `reads` does not declare."""
        module = copy.deepcopy(fresh).eval()  # a call may change buffers
        reader = f"torch_part: the output of {type(module).__name__} for a token"
        x = torch.randn(1, _PROBED, self.dim)
        other = torch.cat((x[:, :-1], torch.randn(1, 1, self.dim)), dim=1)
        try:
            with torch.no_grad():
                before, after = module(x), module(other)
                alone = module(x[:, -1:]) if self.reads == "itself" else None
        except Exception:  # a module may need another length; conformance checks it with the model
            return
        if not (isinstance(before, Tensor) and before.shape == x.shape):
            return  # refused by name where it is called
        if not torch.allclose(before[:, :-1], after[:, :-1], atol=1e-4):
            raise SpecError(f"{reader} depends on tokens to the right. Declare reads='all', not {self.reads!r}.")
        if alone is not None and not torch.allclose(before[:, -1:], alone, atol=1e-4):
            raise SpecError(f"{reader} depends on tokens to the left. Declare reads='left', not {self.reads!r}.")

    def init_state(self, batch: int, max_len: int, memory: Memory | None = None) -> Tensor | tuple[()]:
        if self.reads == "itself":
            return ()
        like = next(chain(self.module.parameters(), self.module.buffers()), torch.zeros(()))
        # the last slot takes the inputs of invalid tokens
        return like.new_zeros(batch, max_len + 1, self.dim)

    def forward(self, x: Tensor, frame: Frame, state: Tensor | tuple[()] | None = None) -> Out:
        if self.reads == "left" and state is None and frame.valid is not None:
            order = compact(frame.valid)
            return Out(take(self._called(take(x, order.order)), order.back))
        if not isinstance(state, Tensor):
            return Out(self._called(x), state)
        positions = frame.positions_for(x).expand(x.shape[:2])
        slots = positions if frame.valid is None else positions.where(frame.valid, state.shape[1] - 1)
        rows = torch.arange(x.shape[0], device=x.device)[:, None]
        state = state.index_put((rows, slots), x.to(state.dtype))
        y = self._called(state[:, :-1].to(x.dtype)).take_along_dim(positions[..., None], dim=1)
        return Out(y, state)

    def _called(self, x: Tensor) -> Tensor:
        y = self.module(x)
        if not isinstance(y, Tensor) or y.shape != x.shape:
            returned = list(y.shape) if isinstance(y, Tensor) else type(y).__name__
            name = type(self.module).__name__
            raise SpecError(f"torch_part: {name} must map [b t d] to [b t d], got {returned} for {list(x.shape)}.")
        return y

    def core_flops(self, call: Call) -> tuple[int, int]:
        length = call.length if self.reads == "itself" or not call.past else call.past + call.length
        with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
            type(self.spec).factory(self.dim)(torch.empty(call.batch, length, self.dim))
        return counter.get_total_flops(), 2 * counter.get_total_flops()
