"""Smaller models from trained ones: pruning, quantisation, averaging, distillation."""
