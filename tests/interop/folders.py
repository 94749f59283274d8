"""Folders of small random models of every family, as transformers writes them."""

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tests.equality.comparing import randomise
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB, LONGEST = 300, 24
NO_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


@dataclass(frozen=True)
class Case:
    """A small model of transformers: its class, and the options of its config."""

    model: str
    options: dict[str, Any] = field(default_factory=dict)
    config: str = ""
    """Class of the config, if it is not that of the model's name."""
    within: float = 1e-5
    """Largest difference of the outputs."""

    def make(self, transformers: ModuleType, folder: Path) -> Any:
        """Writes the folder of a random model, and returns the model."""
        torch.manual_seed(0)
        name = self.config or self.model.partition("For")[0].removesuffix("Model").removesuffix("LMHead")
        config = getattr(transformers, f"{name}Config")(**{"vocab_size": VOCAB, **self.options})
        config._attn_implementation = "eager"
        model = randomise(getattr(transformers, self.model)(config), 0.1)
        model.save_pretrained(folder)
        return model


GPT = {"n_positions": LONGEST, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
CASES = {
    "gpt2": Case("GPT2LMHeadModel", GPT),
    "gpt2_untied": Case("GPT2LMHeadModel", {**GPT, "tie_word_embeddings": False, "n_inner": 48}),
    "gpt2_body": Case("GPT2Model", GPT),
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
