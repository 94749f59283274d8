"""How text becomes token ids. Trained by the `tokenizers` library, stored as its tokenizer.json."""
