"""One row of the conformance table: a small program, its inputs, how exact it must be.

A row says nothing about the emulator. Its expectation comes from `jax.jit` on the host
(FP32 and integers, or float64 as the reference of a bound) and, where it knows the op,
from the StableHLO reference interpreter. Two documented differences hold for all rows
(section 5 of the design): subnormals of FP32 and BF16 are zeros, NaNs have no payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

#: Formats with the exponents of FP32: their subnormals are subnormals of FP32.
FLUSHED = (np.dtype(np.float32), np.dtype(jnp.bfloat16))


Function = Callable[..., Any]


@dataclass(frozen=True)
class Input:
    """An argument of a row; `kind` is a key of `inputs.KINDS`."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    kind: str = "normal"


@dataclass(frozen=True)
class Exact:
    """The bits that JAX gives on the host."""


@dataclass(frozen=True)
class Ulp:
    """At most `limit` units in the last place from a float64 reference.

    A unit is that of the row's own output format, at the reference.
    """

    limit: float


@dataclass(frozen=True)
class Sum:
    """A sum of products in any order: |error| <= gamma_terms * sum of magnitudes.

    The sum of magnitudes is the same program, in float64, on absolute inputs; one unit
    in the last place more is for the rounding to the output format. gamma_n = n u /
    (1 - n u), u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
    """

    terms: int


@dataclass(frozen=True)
class Close:
    """|error| <= rtol * |expected| + atol against the host's FP32: compositions."""

    rtol: float = 2e-5
    atol: float = 1e-6


Check = Exact | Ulp | Sum | Close


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row.

    Attributes:
        name: unique; "op-attributes-dtype".
        function: of the inputs, a JAX function that returns a pytree of arrays.
        inputs: made from the row's name, see `inputs.arrays`.
        check: how near the expectation the results must be.
        reference: what `Ulp` and `Sum` evaluate in float64, where `function` names a
            float dtype itself.
        subnormals: whether the row works on bits, so that subnormals are kept; the
            expectation of others is made with zeros for them.
        interpreter: whether the reference interpreter can evaluate it. It stops the
            whole process at an op that it does not know.
        target: the chip, where dtypes depend on it.
        slow: left to `make slow`.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Input, ...]
    check: Check = Exact()
    reference: Callable[..., Any] | None = None
    subnormals: bool = False
    interpreter: bool = True
    target: str = "trn2"
    slow: bool = False


def rows(
    table: Mapping[str, Function | tuple[Function, Check]],
    dtypes: Sequence[str],
    inputs: Callable[[str], tuple[Input, ...]],
    check: Check = Exact(),
) -> Iterator[Case]:
    """Every function of `table` for every dtype, on `inputs(dtype)`."""
    for dtype in dtypes:
        for name, entry in table.items():
            function, own = entry if isinstance(entry, tuple) else (entry, check)
            yield Case(
                name=f"{name}-{dtype}",
                function=function,
                inputs=inputs(dtype),
                check=own,
            )


def only_native(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The rows without the reference interpreter."""
    return tuple(replace(case, interpreter=False) for case in cases)


def flushed(array: np.ndarray) -> np.ndarray:
    """The array with subnormals of FP32 as zeros of their sign."""
    if array.dtype == np.complex64:
        parts = flushed(array.view(np.float32).reshape(-1))
        return parts.view(np.complex64).reshape(array.shape)
    if array.dtype not in FLUSHED:
        return array
    tiny = float(jnp.finfo(array.dtype).tiny)
    with np.errstate(invalid="ignore"):
        small = np.abs(array.astype(np.float32)) < tiny
    return np.where(small, np.copysign(array.dtype.type(0), array), array)


def is_float(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


def is_nan(array: np.ndarray) -> np.ndarray:
    if jnp.issubdtype(array.dtype, jnp.floating):
        return np.isnan(array.astype(np.float32))
    return np.isnan(array)


def exact_difference(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Where bits differ, but for NaN payloads and subnormals of FP32."""
    if jnp.issubdtype(got.dtype, jnp.complexfloating):
        return exact_difference(got.real, want.real) | exact_difference(
            got.imag, want.imag
        )
    if not is_float(got.dtype):
        return got != want
    got, want = flushed(got), flushed(want)
    size = got.dtype.itemsize
    bits = [np.ascontiguousarray(a).view(f"u{size}") for a in (got, want)]
    return (bits[0] != bits[1]) & ~(is_nan(got) & is_nan(want))


def unit(reference: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The last place of `dtype` at float64 values."""
    info = jnp.finfo(dtype)
    magnitude = np.clip(np.abs(reference), float(info.tiny), float(info.max))
    return np.exp2(np.floor(np.log2(magnitude))) * float(info.eps)


def flush_error(reference: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """How far a zero is from a reference that is no normal number of `dtype`."""
    tiny = float(jnp.finfo(dtype).tiny) if dtype in FLUSHED else 0.0
    return np.where(np.abs(reference) < tiny, np.abs(reference), 0.0)


def beyond(got: np.ndarray, want: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Where |got - want| > allowed, infinities and NaNs taken for what they are.

    A result that rounds to infinity may be the largest finite value plus `allowed`.
    """
    largest = float(jnp.finfo(got.dtype).max)
    dtype = got.dtype
    wide = got.astype(np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(wide - want)
        over = np.isinf(want.astype(dtype).astype(np.float64))
        overflowed = over & np.isfinite(want)
        same = (wide == want) | (np.isnan(wide) & np.isnan(want))
        near_top = (
            np.isinf(wide) & (np.abs(want) + allowed > largest) & (wide * want > 0)
        )
        bad = ~(error <= allowed + flush_error(want, dtype))
    return bad & ~same & ~(overflowed & np.isinf(wide) & (wide * want > 0)) & ~near_top
