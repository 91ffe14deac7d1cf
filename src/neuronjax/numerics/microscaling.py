"""Microscaling: blocks of narrow floats that share a power-of-two scale.

    value = element * 2^(scale - 127)

The formats of OCP Microscaling (MX) 1.0 that the chips have: MXFP8 (E4M3, E5M2) and
MXFP4 (E2M1), one E8M0 scale for 32 elements along an axis. This file has quantization,
its inverse, and both in one step. All is integer arithmetic on float32 bits, so an
element is rounded once, from the exact quotient, and the bits are the same eagerly,
under `jax.jit`, `jax.vmap` and in loops. The rules for scales are in `mx_scales`, the
layouts of the hardware in `mx_layout`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.exact import kept_apart
from neuronjax.numerics.float_format import (
    FLOAT4_E2M1FN,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT8_E8M0FNU,
    FLOAT32,
    FloatFormat,
    get_format,
    unknown,
)
from neuronjax.numerics.mx_scales import (
    NAN_SCALE,
    ScaleRuleName,
    scale_bytes,
    scale_magnitudes,
    unscale_magnitudes,
)
from neuronjax.numerics.random_bits import random_bits
from neuronjax.numerics.rounding import (
    Overflow,
    Rounding,
    cast,
    encode,
    round_to_codes,
    round_to_format,
)
from neuronjax.numerics.shown import Shown
from neuronjax.numerics.widening import from_codes, widen

BLOCK_SIZE = 32  # OCP MX 1.0, section 5.2; the only size in hardware
INPUT_DTYPES = ("float32", "bfloat16", "float16")

_SIGN = np.uint32(0x8000_0000)
_INF = np.uint32(0x7F80_0000)
_QUIET_NAN = np.uint32(0x7FC0_0000)
_ZERO = np.uint32(0)
_NAN_SCALE = np.uint32(NAN_SCALE)


@dataclasses.dataclass(frozen=True, repr=False)
class MXFormat(Shown):
    """A block format: its name and the format of its elements. Scales are E8M0."""

    name: str
    element: FloatFormat

    def __repr__(self) -> str:
        blocks = f"blocks of {BLOCK_SIZE} {self.element.name}"
        return f"<neuronjax.MXFormat {self.name}: {blocks}, one E8M0 scale>"


MX_FORMATS: dict[str, MXFormat] = {
    fmt.name: fmt
    for fmt in (
        MXFormat("mxfp8_e4m3", FLOAT8_E4M3FN),
        MXFormat("mxfp8_e5m2", FLOAT8_E5M2),
        MXFormat("mxfp4_e2m1", FLOAT4_E2M1FN),
    )
}

# Inputs and outputs of the chip's instruction `nki.isa.quantize_mx`, which has no
# float32 input and no FP4 output. MXFP4 operands are prepared off the device.
ON_DEVICE_INPUTS = ("bfloat16", "float16")
ON_DEVICE_FORMATS = ("mxfp8_e4m3", "mxfp8_e5m2")


def get_mx_format(name: str | MXFormat) -> MXFormat:
    """Return the format of a name; a format is returned as it is.

    Raises:
        InvalidProgramError: no such format; the message lists the nearest names.
    """
    if isinstance(name, MXFormat):
        return name
    if name not in MX_FORMATS:
        raise unknown(name, "an MX format", MX_FORMATS)
    return MX_FORMATS[name]


def on_device(format: str | MXFormat, dtype: DTypeLike) -> bool:
    """Return whether quantize_mx on the chip makes this format from this dtype."""
    name = get_mx_format(format).name
    return name in ON_DEVICE_FORMATS and np.dtype(dtype).name in ON_DEVICE_INPUTS


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("elements", "scales"),
    meta_fields=("axis", "format", "block_size"),
)
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MXArray(Shown):
    """A quantized array, a pytree of its elements and scales.

    Invariant: value = element * 2^(scale - 127); a scale of 255 makes the block NaN.

    Attributes:
        elements: the narrow floats, in the shape of the quantized array.
        scales: float8_e8m0fnu of the same shape except along `axis`, where there is one
            scale for `block_size` elements; the last block may have fewer. Read the
            codes, not the values: code 0 is 2^-127, which XLA would flush to zero.
        axis: the axis along which blocks extend, negative, so that it stays right when
            `jax.vmap` removes a leading axis.
        format: the format of elements and scales.
        block_size: the number of elements that share a scale.
    """

    elements: jax.Array
    scales: jax.Array
    axis: int
    format: MXFormat
    block_size: int = BLOCK_SIZE

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the array."""
        return self.elements.shape

    @property
    def nbytes(self) -> int:
        """Return the bytes on the chip: elements (FP4 two to a byte) and scales."""
        element_bits = self.elements.size * self.format.element.width
        return -(-element_bits // 8) + self.scales.size

    @property
    def bits_per_element(self) -> float:
        """Return the stored bits per element, scales included; 0 for an empty array."""
        return 8 * self.nbytes / max(self.elements.size, 1)

    def __repr__(self) -> str:
        # JAX's transformations may put any object in the place of an array.
        shape = getattr(self.elements, "shape", self.elements)
        blocks = f"blocks of {self.block_size} along axis {self.axis}"
        return f"<neuronjax.MXArray {self.format.name}{shape}, {blocks}>"

    def dequantize(self, dtype: DTypeLike = jnp.float32) -> jax.Array:
        """Return the values.

        They are exact in float32, except that results below 2^-126 are zeros of their
        sign (FTZ) and those from 2^128 on are Inf; then they are rounded to `dtype`
        (nearest, ties to even).

        Args:
            dtype: float32, or a float dtype of `float_format`.

        Raises:
            InvalidProgramError: the dtype is unknown, or elements and scales do not fit
                each other or the format.
        """
        _check_array(self)
        values = neuronjax_dequantize_mx(
            self.elements, self.scales, self.axis, self.block_size
        )
        target = get_format(dtype)
        return values if target is FLOAT32 else cast(values, target)


def quantize_mx(
    x: jax.Array | np.ndarray,
    format: str | MXFormat = "mxfp8_e4m3",
    *,
    axis: int = -1,
    scale_rule: ScaleRuleName = "ocp_floor",
    rounding: Rounding = "rne",
    overflow: Overflow = "saturate",
    seed: jax.Array | int | None = None,
    block_size: int = BLOCK_SIZE,
) -> MXArray:
    """Quantize blocks along an axis, as OCP MX 1.0, section 6.3, describes.

    The scale of a block follows from its largest magnitude by `scale_rule`; an element
    is the exact quotient of value and scale, rounded once.

    - float32 subnormals are read as zeros (FTZ).
    - A block of zeros: scale byte 0, and zeros that keep their signs.
    - A block with a NaN or an Inf: scale byte 255 (NaN), and all element codes 0.
    - A scale below 2^-127 becomes 2^-127 (byte 0).
    - "nki_golden", the vendor's CPU golden, does not keep the last three rules: bytes
      wrap around modulo 256, and a NaN or an Inf is an element like any other. So a
      finite block may get byte 255, with zeros as elements: the golden reads this scale
      as 2^128, `MXArray.dequantize` as NaN.

    Args:
        x: float32, bfloat16 or float16 of rank 1 or more.
        format: "mxfp8_e4m3", "mxfp8_e5m2" or "mxfp4_e2m1".
        axis: the axis along which blocks extend; its length need not be a multiple of
            the block size.
        scale_rule: "ocp_floor", "neuron" (NKI 0.5.0 and later), "ceil", "rceil", "even"
            or "nki_golden"; defined in `mx_scales`.
        rounding: how elements are rounded; see `rounding.round_to_format`.
        overflow: what becomes of elements that the scale leaves too large: "saturate",
            as the standard says, or "ieee", to Inf or NaN if the element format has
            them.
        seed: uint32 scalar or int, for stochastic rounding only; the random bits depend
            on it and on the index of an element in `x`.
        block_size: the number of elements that share a scale; 32 in the standard and in
            hardware.

    Raises:
        InvalidProgramError: the dtype, the rank, the axis or an option is not one of
            the above.
    """
    options = _options(x, format, axis, block_size, scale_rule, rounding, overflow)
    elements, scales = neuronjax_quantize_mx(
        jnp.asarray(x), _seed(rounding, seed), options
    )
    return MXArray(
        elements=elements,
        scales=scales,
        axis=options.axis,
        format=options.format,
        block_size=block_size,
    )


def fake_quantize(
    x: jax.Array | np.ndarray,
    format: str | MXFormat = "mxfp8_e4m3",
    *,
    axis: int = -1,
    scale_rule: ScaleRuleName = "ocp_floor",
    rounding: Rounding = "rne",
    overflow: Overflow = "saturate",
    seed: jax.Array | int | None = None,
    block_size: int = BLOCK_SIZE,
) -> tuple[jax.Array, jax.Array]:
    """Quantize and dequantize in one step, without storing the narrow elements.

    The values are, bit for bit, `quantize_mx(x, ...).dequantize()`. They are
    differentiable by the straight-through estimator: the derivative is one everywhere,
    also where an element saturates or becomes zero. Scales have no derivative.

    Arguments and errors are those of `quantize_mx`.

    Returns:
        The values, float32 of the shape of `x`, and the scales, uint8 E8M0 codes.
    """
    options = _options(x, format, axis, block_size, scale_rule, rounding, overflow)
    x = jnp.asarray(x)
    fixed = lax.stop_gradient(x)
    values, scales = _fake_quantized(fixed, _seed(rounding, seed), options)
    return _straight_through(x, values), scales


def to_codes(x: jax.Array) -> jax.Array:
    """Return the codes of FP8, FP4 or E8M0 elements as uint8, NaN payloads included."""
    fmt = get_format(x.dtype)
    if fmt.width < 8:
        return encode(widen(x), fmt)
    return lax.bitcast_convert_type(x, jnp.uint8)


# ---- Kernels. `kept_apart` keeps XLA from inlining the two kernels that round. If
# inlined they would run again for every consumer, and element by element in the loop in
# which XLA writes 4-bit integers.


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options:
    """The static options of a quantization; `axis` is negative."""

    format: MXFormat
    axis: int
    block_size: int
    scale_rule: ScaleRuleName
    rounding: Rounding
    overflow: Overflow

    @property
    def element(self) -> FloatFormat:
        return self.format.element


# Captured programs show this name, which `timing.library_calls` knows.
@functools.partial(jax.jit, static_argnums=2)
def neuronjax_quantize_mx(
    x: jax.Array, seed: jax.Array | None, options: _Options
) -> tuple[jax.Array, jax.Array]:
    codes, scales = kept_apart(_codes_kernel(x, seed, options))
    return from_codes(codes, options.element), from_codes(scales, FLOAT8_E8M0FNU)


@functools.partial(jax.jit, static_argnums=2)
def _fake_quantized(
    x: jax.Array, seed: jax.Array | None, options: _Options
) -> tuple[jax.Array, jax.Array]:
    return kept_apart(_values_kernel(x, seed, options))


@functools.partial(jax.jit, static_argnums=2)
def _codes_kernel(
    x: jax.Array, seed: jax.Array | None, options: _Options
) -> tuple[jax.Array, jax.Array]:
    quotients, scales = _quotients(x, options)
    codes = round_to_codes(quotients, **_rounding(x.shape, seed, options))
    return unblocked(codes, x.shape, options.axis), _narrow(scales, options)


@functools.partial(jax.jit, static_argnums=2)
def _values_kernel(
    x: jax.Array, seed: jax.Array | None, options: _Options
) -> tuple[jax.Array, jax.Array]:
    quotients, scales = _quotients(x, options)
    rounded = round_to_format(quotients, **_rounding(x.shape, seed, options))
    values = _scaled(rounded, scales)
    return unblocked(values, x.shape, options.axis), _narrow(scales, options)


@functools.partial(jax.jit, static_argnums=(2, 3))
def neuronjax_dequantize_mx(
    elements: jax.Array, scales: jax.Array, axis: int, block_size: int
) -> jax.Array:
    blocks = blocked(widen(elements), axis, block_size)
    per_block = jnp.expand_dims(to_codes(scales).astype(jnp.uint32), axis)
    return unblocked(_scaled(blocks, per_block), elements.shape, axis)


def _quotients(x: jax.Array, options: _Options) -> tuple[jax.Array, jax.Array]:
    """Return x in float32 blocks, divided by their scales, and the scale bytes."""
    axis, size = options.axis, options.block_size
    bits = blocked(lax.bitcast_convert_type(widen(x), jnp.uint32), axis, size)
    magnitude, sign = bits & ~_SIGN, bits & _SIGN
    amax = jnp.max(magnitude, axis=axis, keepdims=True)
    scales = scale_bytes(amax, options.scale_rule, options.element)
    quotient = unscale_magnitudes(magnitude, scales) | sign
    is_nan = (scales == _NAN_SCALE) & (amax >= _INF)
    quotient = jnp.where(is_nan, _ZERO, quotient)
    return lax.bitcast_convert_type(quotient, jnp.float32), scales


def _rounding(
    shape: tuple[int, ...], seed: jax.Array | None, options: _Options
) -> dict[str, Any]:
    random = None
    if seed is not None:
        random = blocked(random_bits(shape, seed), options.axis, options.block_size)
    return dict(
        fmt=options.element,
        rounding=options.rounding,
        overflow=options.overflow,
        random_bits=random,
    )


def _narrow(scales: jax.Array, options: _Options) -> jax.Array:
    return jnp.squeeze(scales, options.axis).astype(jnp.uint8)


def _scaled(blocks: jax.Array, scales: jax.Array) -> jax.Array:
    bits = lax.bitcast_convert_type(blocks, jnp.uint32)
    product = scale_magnitudes(bits & ~_SIGN, scales) | (bits & _SIGN)
    product = jnp.where(scales == _NAN_SCALE, _QUIET_NAN, product)
    return lax.bitcast_convert_type(product, jnp.float32)


# ---- Checks.


def _options(
    x: jax.Array | np.ndarray,
    format: str | MXFormat,
    axis: int,
    block_size: int,
    scale_rule: ScaleRuleName,
    rounding: Rounding,
    overflow: Overflow,
) -> _Options:
    if np.dtype(x.dtype).name not in INPUT_DTYPES:
        raise InvalidProgramError(
            f"MX quantization does not take {x.dtype}",
            remedy=f"convert to one of: {', '.join(INPUT_DTYPES)}",
        )
    if not -x.ndim <= axis < x.ndim:
        legal = f"from {-x.ndim} to {x.ndim - 1}" if x.ndim else "of x.reshape(1)"
        raise InvalidProgramError(
            f"axis={axis} of an array of shape {x.shape}", remedy=f"use an axis {legal}"
        )
    if block_size < 1:
        remedy = f"use {BLOCK_SIZE}"
        raise InvalidProgramError(f"block_size={block_size}", remedy=remedy)
    return _Options(
        format=get_mx_format(format),
        axis=axis if axis < 0 else axis - x.ndim,
        block_size=block_size,
        scale_rule=scale_rule,
        rounding=rounding,
        overflow=overflow,
    )


def _seed(rounding: Rounding, seed: jax.Array | int | None) -> jax.Array | None:
    if rounding != "stochastic":
        return None
    if isinstance(seed, int) and 0 <= seed < 1 << 32:
        return jnp.uint32(seed)
    if isinstance(seed, jax.Array) and seed.dtype == jnp.uint32 and not seed.shape:
        return seed
    raise InvalidProgramError(
        f"stochastic rounding with seed={seed}",
        remedy="pass an int from 0 to 2^32 - 1 or a uint32 scalar",
    )


def _check_array(array: MXArray) -> None:
    """Check that the fields of an MXArray, which users may make, are consistent."""
    shape, axis = array.elements.shape, array.axis
    if not -len(shape) <= axis < 0:
        raise InvalidProgramError(
            f"axis={axis} of an MXArray of shape {shape}",
            remedy=f"count the axis from the end, from {-len(shape)} to -1",
        )
    expected = replaced(shape, axis, -(-shape[axis] // array.block_size))
    types = {
        "elements": (array.elements.dtype, array.format.element.dtype),
        "scales": (array.scales.dtype, FLOAT8_E8M0FNU.dtype),
        "scales' shape": (array.scales.shape, expected),
    }
    for what, (is_, should_be) in types.items():
        if is_ != should_be:
            raise InvalidProgramError(
                f"an MXArray of {array.format.name} whose {what} is {is_}",
                remedy=f"{what} should be {should_be}",
            )


# ---- The straight-through estimator.


@jax.custom_jvp
def _straight_through(x: jax.Array, values: jax.Array) -> jax.Array:
    """Return `values`, with the derivative of `x`."""
    del x
    return values


@_straight_through.defjvp
def _straight_through_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return primals[1], tangents[0].astype(jnp.float32)


def blocked(x: jax.Array, axis: int, size: int) -> jax.Array:
    """Split an axis into blocks, the last filled up with zeros."""
    length = x.shape[axis]
    blocks = -(-length // size)
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, blocks * size - length)
    return jnp.pad(x, padding).reshape(replaced(x.shape, axis, blocks, size))


def unblocked(blocks: jax.Array, shape: tuple[int, ...], axis: int) -> jax.Array:
    """Return the inverse of `blocked`, for an array of this shape."""
    padded = blocks.shape[axis - 1] * blocks.shape[axis]
    flat = blocks.reshape(replaced(shape, axis, padded))
    return lax.slice_in_dim(flat, 0, shape[axis], axis=axis)


def replaced(shape: tuple[int, ...], axis: int, *sizes: int) -> tuple[int, ...]:
    """Return `shape` with `sizes` in place of the size of `axis`, which is negative."""
    index = len(shape) + axis
    return (*shape[:index], *sizes, *shape[index + 1 :])
