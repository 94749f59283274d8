"""Faster decoding steps: CUDA graphs, fused steps, weight layouts."""
