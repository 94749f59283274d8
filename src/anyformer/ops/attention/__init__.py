"""Softmax attention: one entry, `attend`, and the kernels it chooses from."""
