"""Mamba: MambaForCausalLM. Selective state spaces only, RMS norms."""

from collections.abc import Iterator

from anyformer.interop.family import Family
from anyformer.interop.mapping import DEPTHWISE, Conversion, Entry, key, linear, norm, tensor
from anyformer.interop.shapes import LAYER, LOOK, TYING, block, layers
from anyformer.models import Decoder
from anyformer.parts.heads.untied import Untied
from anyformer.parts.mixers.mamba import Mamba
from anyformer.parts.norms.rms import RMSNorm

TEMPLATE = Decoder(vocab=1, dim=1, stack=layers(block(Mamba(), norm=RMSNorm())), exit_norm=RMSNorm())


def tensors(spec: Decoder) -> Iterator[Entry]:
    yield from mamba_body(spec)
    for n in range(spec.stack.depth):
        part, mixer = f"stack.layers.{n}.branches.0.part", f"backbone.layers.{n}.mixer"
        yield from linear(f"{part}.select", f"{mixer}.x_proj", bias=False)
        yield from tensor(f"{part}.step", f"{mixer}.dt_proj.weight")
        yield from tensor(f"{part}.step_bias", f"{mixer}.dt_proj.bias")


def mamba_body(spec: Decoder) -> Iterator[Entry]:
    """The tensors that Mamba and Mamba-2 both have."""
    yield from tensor("embedding.weight", "backbone.embeddings.weight")
    yield from norm("exit_norm", "backbone.norm_f", bias=False)
    if spec.head == Untied():
        yield from linear("head.words", "lm_head", bias=False)
    for n in range(spec.stack.depth):
        ours, theirs = f"stack.layers.{n}.branches.0", f"backbone.layers.{n}"
        part, mixer = f"{ours}.part", f"{theirs}.mixer"
        yield from norm(f"{ours}.before", f"{theirs}.norm", bias=False)
        yield from linear(f"{part}.enter", f"{mixer}.in_proj", bias=False)
        yield from linear(f"{part}.out", f"{mixer}.out_proj", bias=False)
        yield from tensor(f"{part}.conv", f"{mixer}.conv1d.weight", DEPTHWISE)
        yield from tensor(f"{part}.conv_bias", f"{mixer}.conv1d.bias")
        yield from tensor(f"{part}.log_a", f"{mixer}.A_log")
        yield from tensor(f"{part}.skip", f"{mixer}.D")


KEYS = (
    key("vocab_size", "vocab"),
    key("hidden_size", "dim"),
    key("num_hidden_layers", "stack.depth"),
    key("state_size", f"{LOOK}.states"),
    key("expand", f"{LOOK}.expand", default=2),
    key("conv_kernel", f"{LOOK}.taps", default=4),
    key("layer_norm_epsilon", "exit_norm.eps", f"{LAYER}.0.norm.eps", f"?{LOOK}.eps", default=1e-5),
)
FIXED = {"hidden_act": ("silu",), "use_bias": (False,), "use_conv_bias": (True,)}
HARMLESS = (
    "d_inner", "d_model", "fused_add_norm", "intermediate_size", "n_layer", "pad_vocab_size_multiple",
    "rescale_prenorm_residual", "residual_in_fp32", "rms_norm", "ssm_cfg", "time_step_floor", "time_step_init_scheme",
    "time_step_max", "time_step_min", "time_step_scale", "use_associative_scan", "use_mambapy",
)  # fmt: skip
COPIES = {"lm_head.weight": "backbone.embeddings.weight"}
RANK = Conversion(lambda rank: None if rank == "auto" else rank, lambda rank: "auto" if rank is None else rank)

FAMILY = Family(
    model_types=("mamba",),
    template=TEMPLATE,
    tensors=tensors,
    base="backbone.",
    keys=(
        *KEYS,
        key("time_step_rank", f"{LOOK}.rank", default="auto", convert=RANK),
        key("tie_word_embeddings", "head", default=True, convert=TYING),
    ),
    fixed={**FIXED, "architectures": ("MambaForCausalLM", "MambaModel")},
    harmless=HARMLESS,
    copies=COPIES,
)
