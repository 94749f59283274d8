"""Which of a peer's tensors make up each of ours.

A table is the same for weights and for their gradients: it only renames, transposes and stacks. Its pieces, laid below
each other, are our tensor; they stay apart so that each is compared by its own size (a fused q, k, v).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Pieces = tuple[Tensor, ...]
Table = dict[str, Pieces]


class Peer:
    """Reads the tensors of another implementation by name, and remembers which."""

    def __init__(self, model: nn.Module, pick: Callable[[nn.Parameter], Tensor]):
        self.tensors = {name: pick(parameter) for name, parameter in model.named_parameters()}
        self.unread = set(self.tensors)

    def __call__(self, name: str) -> Tensor:
        self.unread.discard(name)
        return self.tensors[name]

    def ignore(self, *endings: str) -> None:
        """Leaves aside what the peer does not use in this call."""
        self.unread = {name for name in self.unread if not name.endswith(endings)}


Tabulate = Callable[[Peer], Table]


def weights_of(model: nn.Module) -> Peer:
    return Peer(model, lambda parameter: parameter.detach())


def gradients_of(model: nn.Module) -> Peer:
    return Peer(model, lambda parameter: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)


@torch.no_grad()
def copy(peer: nn.Module, ours: nn.Module, tabulate: Tabulate) -> None:
    """Writes every parameter of ours from the peer's, and insists that none of either is left over."""
    read, own = weights_of(peer), dict(ours.named_parameters())
    table = tabulate(read)
    assert own.keys() == table.keys(), f"without a partner: {sorted(own.keys() ^ table.keys())}"
    assert not read.unread, f"not copied: {sorted(read.unread)}"
    for name, pieces in table.items():
        tensor = torch.cat(pieces)
        assert own[name].shape == tensor.shape, f"{name}: {tuple(own[name].shape)} from {tuple(tensor.shape)}"
        own[name].copy_(tensor)


def linear(read: Peer, ours: str, *theirs: str) -> Table:
    """Matrices [out, in] of the peer, stacked; with their biases where there are any."""
    table = {f"{ours}.weight": tuple(read(f"{name}.weight") for name in theirs)}
    if f"{theirs[0]}.bias" in read.tensors:
        table[f"{ours}.bias"] = tuple(read(f"{name}.bias") for name in theirs)
    return table


def conv1d(read: Peer, ours: str, theirs: str, parts: int = 1) -> Table:
    """GPT's "Conv1D" is a matrix [in, out]."""
    weight, bias = read(f"{theirs}.weight").T, read(f"{theirs}.bias")
    return {f"{ours}.weight": weight.chunk(parts), f"{ours}.bias": bias.chunk(parts)}


def norm(read: Peer, ours: str, theirs: str) -> Table:
    table = {f"{ours}.gain": (read(f"{theirs}.weight"),)}
    if f"{theirs}.bias" in read.tensors:
        table[f"{ours}.bias"] = (read(f"{theirs}.bias"),)
    return table


def only(read: Peer, ours: str, theirs: str) -> Table:
    """A tensor as it is."""
    return {ours: (read(theirs),)}


# ---- torch.nn


def multihead(read: Peer, ours: str = "", theirs: str = "", cross: bool = False) -> Table:
    """nn.MultiheadAttention; both names with their dot."""
    weight, bias = read(f"{theirs}in_proj_weight").chunk(3), read(f"{theirs}in_proj_bias").chunk(3)
    out = linear(read, f"{ours}out", f"{theirs}out_proj")
    if not cross:
        return {f"{ours}qkv.weight": weight, f"{ours}qkv.bias": bias} | out
    queries = {f"{ours}q.weight": weight[:1], f"{ours}q.bias": bias[:1]}
    return queries | {f"{ours}kv.weight": weight[1:], f"{ours}kv.bias": bias[1:]} | out


def torch_layer(read: Peer, ours: str, theirs: str, place: str, cross: bool = False) -> Table:
    """nn.TransformerEncoderLayer or, with cross-attention, nn.TransformerDecoderLayer; names with their dot."""
    table = multihead(read, f"{ours}branches.0.part.", f"{theirs}self_attn.")
    if cross:
        table |= multihead(read, f"{ours}branches.1.part.", f"{theirs}multihead_attn.", cross=True)
    last = 2 if cross else 1
    table |= linear(read, f"{ours}branches.{last}.part.up", f"{theirs}linear1")
    table |= linear(read, f"{ours}branches.{last}.part.down", f"{theirs}linear2")
    for branch in range(last + 1):
        table |= norm(read, f"{ours}branches.{branch}.{place}", f"{theirs}norm{branch + 1}")
    return table


def torch_transformer(read: Peer, layers: int, place: str) -> Table:
    """An embedding, nn.Transformer (with its final norms) and a projection tied to the embedding."""
    table = only(read, "encoder.embedding.weight", "words.weight")
    for half, cross in (("encoder", False), ("decoder", True)):
        table |= norm(read, f"{half}.exit_norm", f"transformer.{half}.norm")
        for n in range(layers):
            table |= torch_layer(read, f"{half}.stack.layers.{n}.", f"transformer.{half}.layers.{n}.", place, cross)
    return table


# ---- decoders


def gpt2(read: Peer, layers: int) -> Table:
    table = only(read, "embedding.weight", "transformer.wte.weight")
    table |= only(read, "position.table.weight", "transformer.wpe.weight")
    table |= norm(read, "exit_norm", "transformer.ln_f")
    for n in range(layers):
        table |= _gpt_layer(read, f"stack.layers.{n}.branches", f"transformer.h.{n}", "before")
    return table


def openai_gpt(read: Peer, layers: int) -> Table:
    table = only(read, "embedding.weight", "transformer.tokens_embed.weight")
    table |= only(read, "position.table.weight", "transformer.positions_embed.weight")
    for n in range(layers):
        table |= _gpt_layer(read, f"stack.layers.{n}.branches", f"transformer.h.{n}", "after")
    return table


def _gpt_layer(read: Peer, ours: str, theirs: str, place: str) -> Table:
    table = conv1d(read, f"{ours}.0.part.qkv", f"{theirs}.attn.c_attn", 3)
    table |= conv1d(read, f"{ours}.0.part.out", f"{theirs}.attn.c_proj")
    table |= conv1d(read, f"{ours}.1.part.up", f"{theirs}.mlp.c_fc")
    table |= conv1d(read, f"{ours}.1.part.down", f"{theirs}.mlp.c_proj")
    return table | norm(read, f"{ours}.0.{place}", f"{theirs}.ln_1") | norm(read, f"{ours}.1.{place}", f"{theirs}.ln_2")


def llama(read: Peer, layers: int) -> Table:
    table = only(read, "embedding.weight", "model.embed_tokens.weight") | norm(read, "exit_norm", "model.norm")
    if "lm_head.weight" in read.tensors:  # else it is the embedding
        table |= linear(read, "head.words", "lm_head")
    for n in range(layers):
        ours, theirs = f"stack.layers.{n}.branches", f"model.layers.{n}"
        table |= linear(read, f"{ours}.0.part.qkv", *(f"{theirs}.self_attn.{name}_proj" for name in "qkv"))
        table |= linear(read, f"{ours}.0.part.out", f"{theirs}.self_attn.o_proj")
        table |= linear(read, f"{ours}.1.part.up", f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj")
        table |= linear(read, f"{ours}.1.part.down", f"{theirs}.mlp.down_proj")
        table |= norm(read, f"{ours}.0.before", f"{theirs}.input_layernorm")
        table |= norm(read, f"{ours}.1.before", f"{theirs}.post_attention_layernorm")
    return table


# ---- encoders


def bert(read: Peer, layers: int) -> Table:
    """BertForMaskedLM."""
    layer = "cls.predictions.transform"
    words = _masked_words(read, "cls.predictions", f"{layer}.dense", f"{layer}.LayerNorm")
    return _bert_body(read, layers, "bert.") | words


def bert_for_pretraining(read: Peer, layers: int) -> Table:
    """BertForPreTraining: words, and whether the second sentence follows the first, as `several` heads."""
    table = _bert_body(read, layers, "bert.")
    layer = "cls.predictions.transform"
    words = _masked_words(read, "cls.predictions", f"{layer}.dense", f"{layer}.LayerNorm")
    table |= {name.replace("head.", "head.heads.words.", 1): pieces for name, pieces in words.items()}
    table |= linear(read, "head.heads.order.layer", "bert.pooler.dense")
    return table | linear(read, "head.heads.order.classes", "cls.seq_relationship")


def bert_alone(read: Peer, layers: int) -> Table:
    """BertModel without its pooler."""
    return _bert_body(read, layers, "")


def bert_with_pooler(read: Peer, layers: int) -> Table:
    """BertModel."""
    return bert_alone(read, layers) | linear(read, "head.layer", "pooler.dense")


def roberta(read: Peer, layers: int) -> Table:
    """RobertaForMaskedLM."""
    words = _masked_words(read, "lm_head", "lm_head.dense", "lm_head.layer_norm")
    return _bert_body(read, layers, "roberta.") | words


def albert(read: Peer, groups: tuple[str, ...]) -> Table:
    """AlbertForMaskedLM: one set of weights for each group of layers; `groups` are the tags that we share them by."""
    table = _bert_entry(read, "albert.embeddings")
    table |= _masked_words(read, "predictions", "predictions.dense", "predictions.LayerNorm")
    table |= linear(read, "embedding.up", "albert.encoder.embedding_hidden_mapping_in")
    for n, tag in enumerate(groups):
        ours, theirs = f"stack.layers.shared/{tag}.branches", f"albert.encoder.albert_layer_groups.{n}.albert_layers.0"
        names = (f"{theirs}.attention.{name}" for name in ("query", "key", "value"))
        table |= linear(read, f"{ours}.0.part.qkv", *names)
        table |= linear(read, f"{ours}.0.part.out", f"{theirs}.attention.dense")
        table |= linear(read, f"{ours}.1.part.up", f"{theirs}.ffn")
        table |= linear(read, f"{ours}.1.part.down", f"{theirs}.ffn_output")
        table |= norm(read, f"{ours}.0.after", f"{theirs}.attention.LayerNorm")
        table |= norm(read, f"{ours}.1.after", f"{theirs}.full_layer_layer_norm")
    return table


def _bert_body(read: Peer, layers: int, root: str) -> Table:
    table = _bert_entry(read, f"{root}embeddings")
    for n in range(layers):
        ours, theirs = f"stack.layers.{n}.branches", f"{root}encoder.layer.{n}"
        names = (f"{theirs}.attention.self.{name}" for name in ("query", "key", "value"))
        table |= linear(read, f"{ours}.0.part.qkv", *names)
        table |= linear(read, f"{ours}.0.part.out", f"{theirs}.attention.output.dense")
        table |= linear(read, f"{ours}.1.part.up", f"{theirs}.intermediate.dense")
        table |= linear(read, f"{ours}.1.part.down", f"{theirs}.output.dense")
        table |= norm(read, f"{ours}.0.after", f"{theirs}.attention.output.LayerNorm")
        table |= norm(read, f"{ours}.1.after", f"{theirs}.output.LayerNorm")
    return table


def _bert_entry(read: Peer, theirs: str) -> Table:
    table = only(read, "embedding.weight", f"{theirs}.word_embeddings.weight")
    table |= only(read, "position.table.weight", f"{theirs}.position_embeddings.weight")
    table |= only(read, "types.weight", f"{theirs}.token_type_embeddings.weight")
    return table | norm(read, "entry_norm", f"{theirs}.LayerNorm")


def _masked_words(read: Peer, head: str, layer: str, normed: str) -> Table:
    """The layer before the tied table, and the bias of every word."""
    table = linear(read, "head.layer", layer) | only(read, "head.bias", f"{head}.bias")
    return table | only(read, "head.gain", f"{normed}.weight") | only(read, "head.shift", f"{normed}.bias")


def xlnet(read: Peer, layers: int, root: str = "") -> Table:
    """XLNetModel without memory and token types."""
    read.ignore("mask_emb", "r_s_bias", "seg_embed")
    table = only(read, "embedding.weight", f"{root}word_embedding.weight")
    for n in range(layers):
        ours, theirs = f"stack.layers.{n}.branches", f"{root}layer.{n}"
        q, k, v, r, o = (read(f"{theirs}.rel_attn.{name}").flatten(1) for name in "qkvro")  # [d, h c]
        table |= {f"{ours}.0.part.qkv.weight": (q.T, k.T, v.T), f"{ours}.0.part.out.weight": (o,)}
        table |= {f"{ours}.0.part.position.project.weight": (r.T,)}
        table |= only(read, f"{ours}.0.part.position.unshared.u", f"{theirs}.rel_attn.r_w_bias")
        table |= only(read, f"{ours}.0.part.position.unshared.v", f"{theirs}.rel_attn.r_r_bias")
        table |= linear(read, f"{ours}.1.part.up", f"{theirs}.ff.layer_1")
        table |= linear(read, f"{ours}.1.part.down", f"{theirs}.ff.layer_2")
        table |= norm(read, f"{ours}.0.after", f"{theirs}.rel_attn.layer_norm")
        table |= norm(read, f"{ours}.1.after", f"{theirs}.ff.layer_norm")
    return table


def xlnet_for_words(read: Peer, layers: int, mask: int) -> Table:
    """XLNetLMHeadModel. Its queries start from a vector of their own, ours from the row of <mask>; scores are untied
    then, since that row scores nothing with them."""
    words, query = read("transformer.word_embedding.weight"), read("transformer.mask_emb")[0]
    table = xlnet(read, layers, "transformer.") | only(read, "head.words.bias", "lm_loss.bias")
    table["embedding.weight"] = (words[:mask], query, words[mask + 1 :])
    return table | {"head.words.weight": (words,)}


# ---- encoder-decoders


def t5(read: Peer, layers: int) -> Table:
    """T5ForConditionalGeneration: the first layer of each half owns the bias of all."""
    table = only(read, "encoder.embedding.weight", "shared.weight")
    if "lm_head.weight" in read.tensors:  # else it is the embedding
        table |= linear(read, "decoder.head.words", "lm_head")
    for half, cross in (("encoder", False), ("decoder", True)):
        table |= norm(read, f"{half}.exit_norm", f"{half}.final_layer_norm")
        bias = f"{half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        table |= only(read, f"shared.owned.{half}/t5_bias.weight", bias)
        for n in range(layers):
            table |= _t5_layer(read, f"{half}.stack.layers.{n}.branches", f"{half}.block.{n}.layer", cross)
    return table


def _t5_layer(read: Peer, ours: str, theirs: str, cross: bool) -> Table:
    table, last = _t5_attention(read, f"{ours}.0.part", f"{theirs}.0.SelfAttention"), 2 if cross else 1
    if cross:
        table |= _t5_attention(read, f"{ours}.1.part", f"{theirs}.1.EncDecAttention", cross=True)
    dense = f"{theirs}.{last}.DenseReluDense"
    ups = ("wi_0", "wi_1") if f"{dense}.wi_0.weight" in read.tensors else ("wi",)
    table |= linear(read, f"{ours}.{last}.part.up", *(f"{dense}.{up}" for up in ups))
    table |= linear(read, f"{ours}.{last}.part.down", f"{dense}.wo")
    for branch in range(last + 1):
        table |= norm(read, f"{ours}.{branch}.before", f"{theirs}.{branch}.layer_norm")
    return table


def _t5_attention(read: Peer, ours: str, theirs: str, cross: bool = False) -> Table:
    out = linear(read, f"{ours}.out", f"{theirs}.o")
    if not cross:
        return out | linear(read, f"{ours}.qkv", f"{theirs}.q", f"{theirs}.k", f"{theirs}.v")
    return out | linear(read, f"{ours}.q", f"{theirs}.q") | linear(read, f"{ours}.kv", f"{theirs}.k", f"{theirs}.v")
