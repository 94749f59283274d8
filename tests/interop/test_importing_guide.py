"""The commands of docs/importing.md work, on small models in place of those that it names."""

import shlex
from pathlib import Path
from types import ModuleType

import pytest
from tests.docs.test_guides import blocks
from tests.interop.folders import CASES, write_tokenizer
from tests.interop.gguf_files import write_gguf
from tests.interop.test_sentence_folders import add_marks, add_modules

from anyformer.cli.main import main

VERBS = ("import", "generate", "embed", "search")


def test_the_commands_of_the_guide_succeed(
    transformers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = pytest.importorskip("gguf", reason="the guide imports a GGUF file")
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("axu byv\ncxw dzu\n")
    CASES["gpt2"].make(transformers, Path("models/gpt2"))
    write_tokenizer(Path("models/gpt2"), "<|endoftext|>")
    llama = CASES["llama"].make(transformers, Path("models/llama"))
    write_gguf(gguf, Path("models/SmolLM2-135M-Instruct.gguf"), llama)
    sentences = Path("models/all-MiniLM-L6-v2")
    CASES["bert_with_pooler"].make(transformers, sentences)
    add_marks(sentences)
    add_modules(sentences, "mean_tokens", unit=True)
    commands = [
        shlex.split(line, comments=True)[1:] for block in blocks("docs/importing.md") for line in block.commands
    ]
    known = [command for command in commands if command[0] in VERBS]
    assert len(known) >= 6
    for command in known:
        assert main(command) == 0, command
