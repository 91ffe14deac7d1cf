"""MX emulation in plain PyTorch, as its users write it: floats and powers of two.

It follows the OCP recipe of the published PyTorch emulations, which are not on PyPI:
block maximum, floor of its logarithm, divide, round, clamp, multiply. The matmul of the
FP32 values adds in the host library's order.
"""

from __future__ import annotations

from typing import Any

import torch

BLOCK = 32
#: Element format -> (exponent of the largest value, mantissa bits, lowest exponent,
#: largest value).
ELEMENTS = {"e4m3": (8, 3, -6, 448.0), "e5m2": (15, 2, -14, 57344.0)} | {
    "e2m1": (2, 1, 0, 6.0)
}


def round_to(x: torch.Tensor, element: str) -> torch.Tensor:
    """Return `x` rounded to nearest even in an element format, saturating."""
    _, mantissa, lowest, largest = ELEMENTS[element]
    _, exponent = torch.frexp(x)
    step = torch.exp2(torch.clamp(exponent - 1, min=lowest) - mantissa)
    return torch.clamp(torch.round(x / step) * step, -largest, largest)


def fake_quantize(x: torch.Tensor, element: str) -> torch.Tensor:
    """Return `x` after quantization in blocks of 32 along the last axis."""
    largest_exponent = ELEMENTS[element][0]
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    amax = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.floor(torch.log2(amax)) - largest_exponent
    scale = torch.exp2(torch.clamp(exponent, -127, 127))
    return (round_to(blocks / scale, element) * scale).reshape(x.shape)


class MXMatmul(torch.autograd.Function):
    """The product x @ w with operands quantized along K, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, element: str) -> Any:
        ctx.save_for_backward(x, w)
        ctx.element = element
        return matmul(x, w, element)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        (gradient,) = grads
        own = matmul(gradient, w.T, ctx.element)
        return own, matmul(x.T, gradient, ctx.element), None


def matmul(x: torch.Tensor, w: torch.Tensor, element: str) -> torch.Tensor:
    """Return the product [M, K] x [K, N] with both operands quantized along K."""
    return fake_quantize(x, element) @ fake_quantize(w.T, element).T
