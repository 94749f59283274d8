"""How text becomes numbers. Trained by the `tokenizers` library, stored as its tokenizer.json."""
