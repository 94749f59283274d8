"""Hugging Face's models with the same weights as ours, and what they write: GPT-2, Llama, T5, BART, Marian."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from tests.equality import test_gpt2, test_llama, test_t5
from tests.equality.comparing import randomise
from tests.equality.copying import Peer, Table, copy, linear, norm, only

from anyformer.core import PartSpec
from anyformer.models import Block, Branch, Decoder, Encoder, EncoderDecoder, Stack
from anyformer.parts.channels.mlp import MLP
from anyformer.parts.combine.cross import Cross
from anyformer.parts.embeddings.plain import Plain
from anyformer.parts.mixers.attention import Attention
from anyformer.parts.norms.layer import LayerNorm
from anyformer.parts.positions.learned import LearnedPosition

VOCAB, DIM, HEADS, HIDDEN, LAYERS, LENGTH = 97, 32, 4, 48, 2, 24
STD = 0.3  # large enough that the words differ
DECODERS, TRANSLATORS = ("gpt2", "llama"), ("t5", "bart", "marian")


def twins(transformers: ModuleType, name: str) -> tuple[Any, Any]:
    """Ours and theirs."""
    if name == "gpt2":
        return test_gpt2.twins(transformers, STD)
    if name == "llama":
        theirs = randomise(transformers.LlamaForCausalLM(test_llama.config(transformers, False)), STD)
        ours = test_llama.spec(False).build().eval()
        copy(theirs, ours, test_llama.TABLE)
        return ours, theirs
    if name == "t5":
        return test_t5.twins(transformers, "1.0", STD)
    theirs, ours = _peer(transformers, name), _spec(name).build().eval()
    copy(theirs, ours, bart)
    return ours, theirs


def written(peer: Any, prompts: Sequence[Sequence[int]], new: int, **options: Any) -> list[list[int]]:
    """What the peer writes, each prompt (of a translator: each source) in a batch padded as it wants."""
    left = not peer.config.is_encoder_decoder
    longest = max(map(len, prompts))
    tokens, exists = torch.zeros(2, len(prompts), longest, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        at = slice(longest - len(prompt), None) if left else slice(len(prompt))
        tokens[row, at], exists[row, at] = torch.tensor(prompt), 1
    words = peer.generate(
        tokens, attention_mask=exists, max_new_tokens=new, do_sample=False, pad_token_id=0, **options
    ).tolist()
    return [row[longest if left else 1 :] for row in words]


def cut(words: Sequence[int], stop: int | None) -> tuple[int, ...]:
    """Without the stopping token and the padding behind it."""
    return tuple(words[: words.index(stop)] if stop in words else words)


def prompts(lengths: Sequence[int], vocab: int = VOCAB) -> list[list[int]]:
    return [torch.randint(6, vocab, (n,)).tolist() for n in lengths]


def bart(read: Peer) -> Table:
    """BartForConditionalGeneration and MarianMTModel."""
    table = only(read, "encoder.embedding.weight", "model.shared.weight")
    for half, cross in (("encoder", False), ("decoder", True)):
        places = read(f"model.{half}.embed_positions.weight")
        table[f"{half}.position.table.weight"] = (places[-LENGTH:],)  # BART's begins with two that are never used
        if f"model.{half}.layernorm_embedding.weight" in read.tensors:
            table |= norm(read, f"{half}.entry_norm", f"model.{half}.layernorm_embedding")
        for n in range(LAYERS):
            table |= _bart_layer(read, f"{half}.stack.layers.{n}.branches", f"model.{half}.layers.{n}", cross)
    return table


def _bart_layer(read: Peer, ours: str, theirs: str, cross: bool) -> Table:
    look, last = f"{theirs}.self_attn", 2 if cross else 1
    table = linear(read, f"{ours}.0.part.qkv", *(f"{look}.{name}_proj" for name in "qkv"))
    table |= linear(read, f"{ours}.0.part.out", f"{look}.out_proj") | norm(
        read, f"{ours}.0.after", f"{look}_layer_norm"
    )
    if cross:
        look = f"{theirs}.encoder_attn"
        table |= linear(read, f"{ours}.1.part.q", f"{look}.q_proj")
        table |= linear(read, f"{ours}.1.part.kv", f"{look}.k_proj", f"{look}.v_proj")
        table |= linear(read, f"{ours}.1.part.out", f"{look}.out_proj")
        table |= norm(read, f"{ours}.1.after", f"{look}_layer_norm")
    table |= linear(read, f"{ours}.{last}.part.up", f"{theirs}.fc1")
    table |= linear(read, f"{ours}.{last}.part.down", f"{theirs}.fc2")
    return table | norm(read, f"{ours}.{last}.after", f"{theirs}.final_layer_norm")


def _spec(name: str) -> EncoderDecoder:
    look = Attention(heads=HEADS, bias=True)
    think = MLP(hidden=HIDDEN, activation="gelu" if name == "bart" else "relu", bias=True)

    def stack(*parts: PartSpec) -> Stack:
        branches = tuple(Branch(part=part, norm=LayerNorm(), place="post") for part in parts)
        return Stack(blocks={"layer": Block(branches=branches)}, depth=LAYERS)

    entry = LayerNorm() if name == "bart" else None
    words = Plain(scale="one" if name == "bart" else "sqrt_dim")
    reading, writing = stack(look, think), stack(look, Cross(part=look), think)
    place = LearnedPosition()
    return EncoderDecoder(
        encoder=Encoder(
            vocab=VOCAB, dim=DIM, stack=reading, max_len=LENGTH, position=place, entry_norm=entry, embedding=words
        ),
        decoder=Decoder(
            vocab=VOCAB, dim=DIM, stack=writing, max_len=LENGTH, position=place, entry_norm=entry, embedding=words
        ),
    )


def _peer(transformers: ModuleType, name: str) -> Any:
    kind = {"bart": "Bart", "marian": "Marian"}[name]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB,
        d_model=DIM,
        max_position_embeddings=LENGTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=HIDDEN,
        decoder_ffn_dim=HIDDEN,
        activation_function="gelu" if name == "bart" else "relu",
        dropout=0.0,
        scale_embedding=name == "marian",
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
        forced_eos_token_id=None,
        decoder_start_token_id=0,
        attn_implementation="eager",
    )
    model = getattr(transformers, {"bart": "BartForConditionalGeneration", "marian": "MarianMTModel"}[name])(config)
    randomise(model, 1.0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # a constant direction would always win, since the norm comes last
            parameter.mul_(0.1 if name.endswith("bias") else 5.0 if "embed_positions" in name else 1.0)
    return model
