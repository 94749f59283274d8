"""Folders of small random models of every family, as transformers writes them."""

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tests.equality.comparing import randomise
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

VOCAB, LONGEST = 300, 24


@dataclass(frozen=True)
class Case:
    """A small model of transformers: its class, and the options of its config."""

    model: str
    options: dict[str, Any] = field(default_factory=dict)
    config: str = ""
    """Class of the config, if it is not that of the model's name."""
    untied: bool = False
    """True: the matrix of words is not the embedding, though the config may say so."""
    within: float = 1e-5
    """Largest difference of the outputs."""

    def make(self, transformers: ModuleType, folder: Path) -> Any:
        """Writes the folder of a random model, and returns the model."""
        torch.manual_seed(0)
        name = self.config or self.model.partition("For")[0].removesuffix("Model").removesuffix("LMHead").removesuffix(
            "MT"
        )
        config = getattr(transformers, f"{name}Config")(**{"vocab_size": VOCAB, **self.options})
        kind = getattr(transformers, self.model)
        model = kind(config)
        if self.untied:  # newer releases tie it whatever the config says
            model.lm_head.weight = nn.Parameter(torch.empty(VOCAB, config.hidden_size))
        randomise(model, 0.1)
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.normal_()
        model.save_pretrained(folder)
        return kind.from_pretrained(folder, attn_implementation="eager").eval()


GPT = {"n_positions": LONGEST, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LONGEST,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
EUROBERT = {**LLAMA, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "mask_token_id": 0}
BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": LONGEST,
}
UNTIED = {"tie_word_embeddings": False}
T5 = {"d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": LONGEST,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": 2,
}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "tie_word_embeddings": True}
CASES = {
    "gpt2": Case("GPT2LMHeadModel", GPT),
    "gpt2_untied": Case("GPT2LMHeadModel", {**GPT, "tie_word_embeddings": False, "n_inner": 48}),
    "gpt2_body": Case("GPT2Model", GPT),
    "gpt": Case("OpenAIGPTLMHeadModel", {**GPT, "afn": "gelu"}),
    "llama": Case("LlamaForCausalLM", LLAMA),
    "llama_tied_with_biases": Case(
        "LlamaForCausalLM", {**LLAMA, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
    ),
    "mistral": Case("MistralForCausalLM", {**LLAMA, "sliding_window": 5, "head_dim": 6}),
    "mistral_without_window": Case("MistralForCausalLM", {**LLAMA, "sliding_window": None}),
    "qwen2": Case("Qwen2ForCausalLM", LLAMA),
    "bert": Case("BertForMaskedLM", {**BERT, "hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "bert_with_pooler": Case("BertModel", BERT),
    "bert_classifier": Case("BertForSequenceClassification", {**BERT, "num_labels": 3}),
    "bert_tagger": Case("BertForTokenClassification", {**BERT, "num_labels": 5}),
    "roberta_classifier": Case(
        "RobertaForSequenceClassification", {**BERT, "max_position_embeddings": LONGEST + 2, "num_labels": 3}
    ),
    "albert_classifier": Case("AlbertForSequenceClassification", {**BERT, "embedding_size": 16, "num_labels": 3}),
    "distilbert_tagger": Case(
        "DistilBertForTokenClassification",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": LONGEST, "num_labels": 5},
    ),
    "electra_tagger": Case("ElectraForTokenClassification", {**BERT, "embedding_size": 16, "num_labels": 5}),
    "eurobert": Case("EuroBertForMaskedLM", EUROBERT),
    "eurobert_tied": Case("EuroBertForMaskedLM", {**EUROBERT, "tie_word_embeddings": True, "attention_bias": True}),
    "eurobert_tagger": Case("EuroBertForTokenClassification", {**EUROBERT, "num_labels": 5}),
    "eurobert_body": Case("EuroBertModel", EUROBERT),
    "roberta": Case("RobertaForMaskedLM", {**BERT, "max_position_embeddings": LONGEST + 2, "type_vocab_size": 1}),
    "distilbert": Case(
        "DistilBertForMaskedLM",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": LONGEST},
    ),
    "albert": Case("AlbertForMaskedLM", {**BERT, "embedding_size": 16, "num_hidden_layers": 3}),
    "electra_discriminator": Case("ElectraForPreTraining", {**BERT, "embedding_size": 16}),
    "electra_generator": Case("ElectraForMaskedLM", {**BERT, "embedding_size": 16}),
    "electra_body": Case("ElectraModel", {**BERT, "embedding_size": 32}),
    "big_bird": Case("BigBirdForMaskedLM", {**BERT, "attention_type": "original_full", "rescale_embeddings": True}),
    "xlnet": Case("XLNetLMHeadModel", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
    "t5": Case("T5ForConditionalGeneration", T5),
    "t5_1_1": Case("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu", **UNTIED}, untied=True),
    "t5_1_1_tied": Case("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-silu", **UNTIED}),
    "marian": Case("MarianMTModel", {**BART, "scale_embedding": True, "activation_function": "silu"}),
    "bart": Case("BartForConditionalGeneration", BART),
    "mamba": Case("MambaForCausalLM", {**MAMBA, "state_size": 8}, within=1e-4),
    "mamba2": Case(
        "Mamba2ForCausalLM",
        {**MAMBA, "state_size": 12, "head_dim": 8, "num_heads": 8, "n_groups": 2, "chunk_size": 16},
        within=1e-4,
    ),
}


def write_tokenizer(folder: Path, *special: str) -> None:
    """A byte-level tokenizer.json of VOCAB tokens, with these special tokens at its first ids."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    words = " ".join(f"{first}{second}{third}" for first in "abcde" for second in "xyz" for third in "uvw")
    library.train_from_iterator([words] * 3, trainer)
    assert library.get_vocab_size() == VOCAB
    library.save(str(folder / "tokenizer.json"))
