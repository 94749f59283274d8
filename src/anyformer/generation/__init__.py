"""Writing with a model: token ids in, token ids out, whatever it is made of."""
