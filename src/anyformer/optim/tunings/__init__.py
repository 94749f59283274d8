"""How much of a model learns: one file for each way."""
