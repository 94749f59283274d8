"""One file for each family of models, named after its `model_type`: its `FAMILY` maps config and tensors both ways."""
