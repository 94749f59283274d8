"""Random peers, and what equal means: outputs within 1e-5, gradients within 1e-4 of the largest of their tensor."""

import torch
from tests.equality.copying import Tabulate, gradients_of
from torch import Tensor, nn


@torch.no_grad()
def randomise(model: nn.Module, std: float = 0.15) -> nn.Module:
    """Fills every parameter, biases and gains too, so that nothing is equal because it is zero or one; eval mode."""
    for name, parameter in model.named_parameters():
        gain = parameter.dim() == 1 and name.endswith("weight")
        parameter.normal_(1.0 if gain else 0.0, std)
    return model.eval()


def check_equal(ours: Tensor, theirs: Tensor) -> None:
    """Within 1e-5 everywhere."""
    assert ours.shape == theirs.shape, f"{tuple(ours.shape)} is not {tuple(theirs.shape)}"
    worst = (ours - theirs).abs().max().item()
    assert worst <= 1e-5, f"differ by {worst:.2g}"


def check_gradients(ours: nn.Module, theirs: nn.Module, tabulate: Tabulate) -> None:
    """Of every parameter, after a backward pass of both."""
    for name, pieces in tabulate(gradients_of(theirs)).items():
        gradient = ours.get_parameter(name).grad
        assert gradient is not None, f"{name} has no gradient"
        # a key's bias moves all scores of a query alike, so that its gradient is exactly 0: rounding is allowed there
        rounding = 1e-6 * max(piece.abs().max().item() for piece in pieces)
        for mine, piece in zip(gradient.split([len(piece) for piece in pieces]), pieces, strict=True):
            _check_gradient(name, mine, piece, rounding)


def check_input_gradients(ours: Tensor, theirs: Tensor) -> None:
    """Of vectors that went in."""
    assert ours.grad is not None and theirs.grad is not None
    _check_gradient("input", ours.grad, theirs.grad, 0.0)


def _check_gradient(name: str, mine: Tensor, reference: Tensor, rounding: float) -> None:
    worst, scale = (mine - reference).abs().max().item(), reference.abs().max().item()
    assert worst <= 1e-4 * scale + rounding, f"gradient of {name} differs by {worst:.2g}, its largest is {scale:.2g}"


def backward(ours: Tensor, theirs: Tensor) -> None:
    """The gradients of one random projection of two outputs that should be the same."""
    projection = torch.randn_like(theirs)
    (ours * projection).sum().backward()
    (theirs * projection).sum().backward()


def check_outputs(ours: Tensor, theirs: Tensor) -> None:
    """Equal now; then backward through both, for the gradients."""
    check_equal(ours, theirs)
    backward(ours, theirs)


def twin(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """The same random vectors twice, each to have its own gradient."""
    x = torch.randn(shape, dtype=dtype)
    return x.clone().requires_grad_(), x.clone().requires_grad_()


def lengths_mask(lengths: list[int]) -> Tensor:
    """[b t], true where a token exists: rows of these lengths, filled up on the right."""
    return torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
