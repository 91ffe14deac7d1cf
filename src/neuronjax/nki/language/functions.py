"""Unary functions of `nki.language`: activations of ScalarE and compositions of them.

Functions of ScalarE are one `nki.isa.activation` each. sin, cos and tan first reduce
their argument, as nki.language documents. floor, ceil and trunc convert to int32, so
they are exact below 2^31.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.nki.documentation import describer, named
from neuronjax.nki.isa import activation, tensor_scalar
from neuronjax.nki.language.arithmetic import apply, copied
from neuronjax.nki.language.creation import ndarray
from neuronjax.nki.tensor import NkiTensor

Unary = Callable[..., NkiTensor]

described = describer(x="a tile", dtype="of the result; by default that of x")


def _activated(name: str, x: NkiTensor, dtype: Any) -> NkiTensor:
    out = ndarray(x.shape, dtype or x.dtype)
    activation(out, name, x)
    return out


def _function(name: str, meaning: str) -> Unary:
    def function(x: NkiTensor, dtype: Any = None) -> NkiTensor:
        return _activated(name, x, dtype)

    use = "computed by ScalarE; also for `op=` in ScalarE's instructions"
    return described()(named(function, name, f"{meaning}, {use}."))


def _on_vector(name: str, meaning: str) -> Unary:
    def function(x: NkiTensor, dtype: Any = None) -> NkiTensor:
        out = ndarray(x.shape, dtype or x.dtype)
        tensor_scalar(out, x, name, None)
        return out

    return described()(named(function, name, meaning))


exp = _function("exp", "The exponential")
log = _function("log", "The natural logarithm")
sqrt = _function("sqrt", "The square root")
rsqrt = _function("rsqrt", "1 / sqrt(x)")
tanh = _function("tanh", "The hyperbolic tangent")
sigmoid = _function("sigmoid", "1 / (1 + exp(-x))")
relu = _function("relu", "max(x, 0)")
gelu = _function("gelu", "x times the cumulative normal distribution of x")
gelu_dx = _function("gelu_dx", "The derivative of gelu")
gelu_apprx_tanh = _function("gelu_apprx_tanh", "gelu, approximated by tanh")
gelu_apprx_sigmoid = _function("gelu_apprx_sigmoid", "x sigmoid(1.702 x)")
gelu_apprx_sigmoid_dx = _function(
    "gelu_apprx_sigmoid_dx", "The derivative of gelu_apprx_sigmoid"
)
silu = _function("silu", "x sigmoid(x)")
silu_dx = _function("silu_dx", "The derivative of silu")
softplus = _function("softplus", "log(1 + exp(x))")
mish = _function("mish", "x tanh(softplus(x))")
erf = _function("erf", "The error function")
erf_dx = _function("erf_dx", "The derivative of erf")
arctan = _function("arctan", "The inverse tangent of x from -pi/2 to pi/2")
sign = _function("sign", "The sign of x, -1, 0 or 1")
square = _function("square", "x times x")
abs = _on_vector("abs", "The magnitude, on VectorE.")
reciprocal = _on_vector("reciprocal", "1 / x, on VectorE.")
invert = _on_vector("invert", "The inverted bits of integers, on VectorE.")


@described(x="a tile in SBUF or PSUM")
def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return a copy in SBUF; as an instruction's `op=`, `copy` is the identity."""
    return copied(x, dtype or x.dtype)


@described()
def negative(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return -x."""
    return apply("multiply", x, -1.0, dtype)


@described()
def logical_not(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return 1 where x is 0, else 0."""
    return apply("equal", x, 0.0, dtype)


_TURN = 2 * math.pi


@described()
def sin(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the sine; the argument is first reduced to -pi to pi in FP32."""
    return _activated("sin", _reduced(x, math.pi), dtype or x.dtype)


@described()
def cos(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the cosine, sin(x + pi / 2)."""
    return _activated("sin", _reduced(x, 1.5 * math.pi), dtype or x.dtype)


@described()
def tan(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the tangent, sin(x) / cos(x)."""
    return apply("divide", sin(x, "float32"), cos(x, "float32"), dtype or x.dtype)


def _reduced(x: NkiTensor, shift: float) -> NkiTensor:
    """Return ((x + shift) mod 2 pi) - pi, which is between -pi and pi."""
    out = ndarray(x.shape, "float32")
    tensor_scalar(out, x, "add", shift, op1="mod", operand1=_TURN)
    tensor_scalar(out, out, "subtract", math.pi)
    return out


@described()
def floor(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the largest integer that is not larger than x."""
    return _stepped(x, "greater", "subtract", dtype)


@described()
def ceil(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the smallest integer that is not smaller than x."""
    return _stepped(x, "less", "add", dtype)


def _stepped(x: NkiTensor, beyond: str, back: str, dtype: Any) -> NkiTensor:
    """Return x rounded to nearest, then moved `back` by 1 where it is `beyond` x."""
    if not dtypes.info(x.dtype).is_float:
        return copy(x, dtype)
    nearest = copy(copy(x, "int32"), "float32")
    over = apply(beyond, nearest, x, "float32")
    return apply(back, nearest, over, dtype or x.dtype)


@described()
def trunc(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the integer part of x, rounded towards zero."""
    size = floor(abs(x, "float32"))
    return apply("multiply", size, sign(x, "float32"), dtype or x.dtype)
