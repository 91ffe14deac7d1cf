"""Questions about rounding: casts, subnormals, stochastic rounding, scales."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from neuronjax.numerics.float_format import FORMATS, FloatFormat, get_format
from neuronjax.numerics.microscaling import MXArray, quantize_mx, to_codes
from neuronjax.policy.values import LEGAL
from neuronjax.testing.silicon import probes
from neuronjax.testing.silicon.cases import ProbeCase, flushed
from neuronjax.testing.silicon.question import WORDS, Question, ask, each
from neuronjax.testing.silicon.roundings import (
    OVERFLOWS,
    ROUNDINGS,
    to_float,
    to_integer,
    wrapped,
)

F32 = np.float32
_NEAREST = ROUNDINGS["nearest even"]


def casts() -> Iterator[Question]:
    for engine, dtypes in probes.CASTS.items():
        for dtype in dtypes:
            name, probe = f"{WORDS[engine]}: to {dtype}", f"cast_{engine}_{dtype}"
            if dtype in FORMATS:
                yield from _float_casts(name, probe, get_format(dtype))
            else:
                yield from _integer_casts(name, probe, dtype)


def _float_casts(name: str, probe: str, fmt: FloatFormat) -> Iterator[Question]:
    claim, most, least = "casts to nearest even", fmt.max_finite, fmt.min_normal
    half = 2.0 ** (fmt.max_exponent - fmt.mantissa_bits - 1)

    def between(low: float, high: float) -> dict[str, Any]:
        return {"where": lambda c: (_size(c) > low) & (_size(c) < high)}

    alternatives = each(ROUNDINGS, lambda how, c: to_float(c["x"], fmt, how))
    yield ask(
        f"{name}, rounding", claim, probe, alternatives, **between(least, most / 2)
    )
    alternatives = each(
        OVERFLOWS, lambda beyond, c: to_float(c["x"], fmt, _NEAREST, beyond(fmt))
    )
    beyond = between(most + half, np.inf)
    yield ask(f"{name}, overflow", claim, probe, alternatives, **beyond)
    if least > 2.0**-126:
        kept = {f"kept, {key}": how for key, how in ROUNDINGS.items()}
        alternatives = each(kept, lambda how, c: to_float(c["x"], fmt, how))
        alternatives["signed zeros"] = lambda case: np.copysign(F32(0), case["x"])
        alternatives["zeros"] = lambda case: np.zeros_like(case["x"])
        below = between(2.0**-126, least * 0.75)
        yield ask(f"{name}, subnormals", claim, probe, alternatives, **below)


def _size(case: ProbeCase) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.abs(case["x"].astype(np.float64))


def _integer_casts(name: str, probe: str, dtype: str) -> Iterator[Question]:
    info, claim = np.iinfo(dtype), "integers, comparison, selection"
    cut = ROUNDINGS["toward zero"]

    def inside(case: ProbeCase) -> np.ndarray:
        return (case["x"] > F32(info.min + 1)) & (case["x"] < F32(info.max - 1))

    def outside(case: ProbeCase) -> np.ndarray:
        beyond = (case["x"] > F32(info.max + 1)) | (case["x"] < F32(info.min - 1))
        return beyond & np.isfinite(case["x"])

    alternatives = each(ROUNDINGS, lambda how, c: to_integer(c["x"], dtype, how))
    yield ask(f"{name}, rounding", claim, probe, alternatives, where=inside)
    ends = {"0": 0, "smallest": info.min, "largest": info.max}
    constants = each(
        {key: end for key, end in ends.items() if end or key == "0"},
        lambda end, c: np.full(c["x"].shape, end, np.int64),
    )
    alternatives = {
        "nearest end": lambda case: to_integer(case["x"], dtype, cut),
        "lower bits": lambda case: wrapped(case["x"], dtype),
        **constants,
    }
    yield ask(f"{name}, overflow", claim, probe, alternatives, where=outside)
    nan = f"{name}, NaN"
    yield ask(nan, claim, probe, constants, where=lambda c: np.isnan(c["x"]))


# Name -> (subnormals are read as zeros, are written as zeros, zeros lose their sign).
_FLUSHES = {
    "signed zeros": (True, True, False),
    "kept": (False, False, False),
    "read as zeros, written as is": (True, False, False),
    "read as is, written as zeros": (False, True, False),
    "zeros": (True, True, True),
}


def subnormals() -> Iterator[Question]:
    claim = "FP32 subnormals"
    for engine in ("vector", "scalar", "gpsimd"):
        alternatives = each(_FLUSHES, lambda how, c: _scaled(how, c["x"], c["y"]))
        probe = f"subnormals_{engine}"
        yield ask(f"{WORDS[engine]}: subnormals", claim, probe, alternatives)
    # TensorE adds products to +0, so no zero keeps its sign.
    signed = {name: (*how[:2], True) for name, how in list(_FLUSHES.items())[:-1]}
    signed = {name.removeprefix("signed "): how for name, how in signed.items()}
    alternatives = each(signed, lambda how, c: _scaled(how, c["x"].T, c["y"]))
    yield ask("TensorE: subnormals", claim, "subnormals_tensor", alternatives)
    fmt = get_format("bfloat16")
    alternatives = {
        "signed zeros": lambda c: to_float(flushed(c["x"]), fmt, _NEAREST),
        "kept": lambda c: to_float(c["x"], fmt, _NEAREST),
        "zeros": lambda c: to_float(flushed(c["x"]), fmt, _NEAREST) + F32(0),
    }
    yield ask("DMA: subnormals in casts", claim, "subnormals_dma", alternatives)


def _scaled(how: tuple[bool, bool, bool], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return `x` times powers of two `y`; the product is exact unless it is flushed."""
    reads, writes, unsigned = how
    product = (flushed(x) if reads else x) * y
    product = flushed(product) if writes else product
    return product + F32(0) if unsigned else product


_STEPS = 12  # column c is 2^-(1 + c % 12) of a step above a BF16 number
_FRACTIONS = np.exp2(-1.0 - np.arange(_STEPS))
_CHANCES = {
    "in proportion": _FRACTIONS,
    "in proportion, 8 random bits": np.floor(_FRACTIONS * 256) / 256,
    "in proportion, 4 random bits": np.floor(_FRACTIONS * 16) / 16,
    "up or down equally often": np.full(_STEPS, 0.5),
    "not at all": np.zeros(_STEPS),
}


def others() -> Iterator[Question]:
    for engine in ("vector", "scalar"):
        name, claim = f"{WORDS[engine]}: stochastic rounding", "stochastic rounding"
        chances = each(_CHANCES, lambda p, c: np.append(p, p[8:].mean()))
        how: Any = {"observed": _share_raised, "agrees": _within_chance}
        yield ask(name, claim, f"stochastic_{engine}", chances, **how)
    rules = {str(rule): str(rule) for rule in LEGAL["mx_scale_rule"]}
    name, claim = "VectorE: scales of quantize_mx", "microscaling"
    alternatives = each(rules, _quantized)
    yield ask(
        *(name, claim, "mx_quantize", alternatives, "neuron"),
        observed=lambda case: _codes(case["xq"], case["xs"]),
    )


def _share_raised(case: ProbeCase) -> np.ndarray:
    """Return the share of numbers that were rounded up: for each fraction, and then one
    share for the last 4 fractions together."""
    up = (case["out"] > 1).reshape(-1, _STEPS)
    return np.append(up.mean(axis=0), up[:, 8:].mean())


def _within_chance(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return whether shares of 8,192 numbers are within 5 deviations of `expected`."""
    count = np.append(np.full(_STEPS, 8192.0), 4 * 8192.0)
    return np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / count)


@functools.partial(jax.jit, static_argnums=1)
def _quantize(blocks: np.ndarray, rule: Any) -> MXArray:
    return quantize_mx(blocks, "mxfp8_e4m3", scale_rule=rule)


def _quantized(rule: str, case: ProbeCase) -> np.ndarray:
    groups = case["x"].reshape(4, 8, 16, 4)
    blocks = np.swapaxes(groups, 1, 2).reshape(4, 16, 32)
    array = _quantize(blocks, rule)
    elements = np.asarray(to_codes(array.elements)).reshape(4, 16, 8, 4)
    rows = np.swapaxes(elements, 1, 2).reshape(32, 64)
    return _codes(rows, np.asarray(to_codes(array.scales)))


def _codes(elements: np.ndarray, scales: np.ndarray) -> np.ndarray:
    codes = np.ascontiguousarray(elements).view(np.uint8).reshape(-1)
    return np.append(codes, scales.astype(np.uint8).reshape(-1))
