"""How a model is laid out for decoding: few rows a step, for which other products are fast than for training.

On a CPU they run up to twice as fast on weights by columns. On a GPU they have kernels of their own: `ops.products`.
"""

from anyformer.core import Linear, Model
from anyformer.ops.decode_linear import product


def for_writing(model: Model) -> Model:
    """The same model, ready to write where it is: the same shapes and values, and it can still learn."""
    for module in model.modules():
        if isinstance(module, Linear):
            _lay_out(module)
    return model


def _lay_out(matrix: Linear) -> None:
    weight = matrix.weight
    if weight.is_cuda:
        matrix.product = product
    elif weight.device.type == "cpu":
        weight.data = weight.data.t().contiguous().t()
