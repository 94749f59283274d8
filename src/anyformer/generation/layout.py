"""How weights lie in memory. A product of few rows, as in decoding on a CPU, runs up to twice as fast on columns."""

from anyformer.core import Linear, Model


def by_columns(model: Model) -> Model:
    """The same model, each matrix on a CPU laid out by its columns: the same shapes and values, other strides."""
    for module in model.modules():
        if isinstance(module, Linear) and module.weight.device.type == "cpu":
            module.weight.data = module.weight.data.t().contiguous().t()
    return model
