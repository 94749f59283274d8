"""How learning rates follow from the shapes of tensors."""
