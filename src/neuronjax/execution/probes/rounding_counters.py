"""Counters of what a write did to the numbers of one tensor, by integer arithmetic.

`count_rounding` reads a tensor before and after its rounding once. It counts overflow,
saturation, underflow to zero, subnormals, NaN, Inf, and updates that changed nothing,
and sums the rounding errors. Only bit patterns are compared, so the counts are the same
eagerly, compiled and on every host, and the program's results do not change. Where 128
elements (32 of an MX block) are summed, four flags share a word; all sums take one
pass. Counts have 64 bits, as two words.

    effective bits = -log2(2 * mean(|x - y| / 2^floor(log2 |x|)))

over the nonzero x, with each error at most 1. Errors of rounding to nearest are uniform
in an ulp (Widrow and Kollar, "Quantization Noise", 2008), so |error| / 2^e is 2^-(p +
1) on average, with p the bits of the significand: 8 for bfloat16, 4 for e4m3, in range.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.probes.collect import Collect, Probe, element_format
from neuronjax.execution.probes.signs import LOWEST_EXPONENT
from neuronjax.numerics.float_format import FloatFormat
from neuronjax.numerics.widening import widen

COUNTERS = (
    "elements",
    "nonzero",
    "underflow",
    "subnormal",
    "overflow",
    "saturated",
    "nan_in",
    "nan",
    "inf",
    "updates",
    "stagnant",
    "error_units",
    "blocks",
    "blocks_underflow",
    "blocks_saturated",
    "blocks_nan",
)
"""The rows of `Counters.counts`; `Statistics` explains them."""


#: An error of a whole binade, in `error_units`.
ERROR_UNIT = 1 << 15
SCALES = 256  # codes of an E8M0 scale

_CHUNK = 128  # flags are summed in 8 bits
_BLOCK = 32
_MAGNITUDE = np.uint32(0x7FFF_FFFF)
_INF = np.uint32(0x7F80_0000)
_BINADE = np.uint32(1 << 23)
_ZERO = np.uint32(0)
_ROUNDED = np.uint32(2)  # most ulps of FP32 that two products and their sum are off by
_SHIFT = np.uint32(8)  # from units of 2^-23 binades to those of 2^-15


class Counters(NamedTuple):
    """The counters of one probe.

    Attributes:
        counts: uint32 [len(COUNTERS), 2], the low word first; None if elements are not
            counted.
        amax: uint32, the bits of the largest finite magnitude; for a probe whose
            elements are not counted, the result of `watching.watch`.
        exponents: uint32 [bins, 2], or None.
        scales: uint32 [256, 2] for an MX probe, or None.
    """

    counts: jax.Array | None
    amax: jax.Array
    exponents: jax.Array | None = None
    scales: jax.Array | None = None


@dataclass(frozen=True)
class CounterLayout:
    """The properties of a probe that `count_rounding` uses and kernels share."""

    format: FloatFormat
    compared: bool
    never_zero: bool
    updates: tuple[int, ...]
    advances: bool
    ends: tuple[tuple[float, float], ...]
    blocked: int | None
    bins: int
    every: int

    @classmethod
    def of(cls, probe: Probe, collect: Collect) -> CounterLayout:
        names = "compared never_zero updates advances ends blocked".split()
        return cls(
            format=element_format(probe),
            bins=collect.bins if collect.histogram else 0,
            every=collect.every,
            **{name: getattr(probe, name) for name in names},
        )


def empty_counters(probe: Probe, collect: Collect) -> Counters:
    """Return the counters of a probe that was not run."""
    if not probe.counted:
        return Counters(None, jnp.uint32(0))
    bins = collect.bins if collect.histogram else 0
    has_scales = bins and probe.blocked is not None
    return Counters(
        counts=jnp.zeros((len(COUNTERS), 2), jnp.uint32),
        amax=jnp.uint32(0),
        exponents=jnp.zeros((bins, 2), jnp.uint32) if bins else None,
        scales=jnp.zeros((SCALES, 2), jnp.uint32) if has_scales else None,
    )


def exponent_bins(fmt: FloatFormat, bins: int) -> tuple[int, int]:
    """Return (lowest exponent, width in binades) of the second bin; the first bin
    counts all smaller numbers."""
    low = max(math.frexp(fmt.min_subnormal)[1] - 1, -126)
    span, inner = fmt.max_exponent - low + 1, bins - 2
    binades = -(-span // inner)
    return max(low - (inner * binades - span) // 2, -126), binades


@functools.partial(jax.jit, static_argnums=0)
def count_rounding(
    layout: CounterLayout,
    before: jax.Array,
    after: jax.Array,
    operands: Sequence[jax.Array] = (),
    scales: jax.Array | None = None,
) -> Counters:
    """Count what rounding did to a written array. `before` has the numbers before
    rounding; if they are not known, pass `after` twice. Of an MX array `after` has the
    elements and `scales` the scales, in float8_e8m0fnu. `operands` are those of a sum
    whose updates are counted; for any other write of a state, its old numbers."""
    cut = _Cut.of(before.shape, layout)
    codes = None if scales is None else cut.scale_codes(scales)
    x, element = _magnitude(cut.rows(before)), _magnitude(cut.rows(after))
    y = element if codes is None else _scaled(element, codes[:, None], cut.filled)
    flags = _flags(layout, x, element, y)
    if layout.updates:
        flags |= _stagnation(layout, [cut.rows(a) for a in operands], cut.rows(after))
    if layout.advances:
        flags |= _stays(cut.rows(operands[0]), cut.rows(before), cut.rows(after))
    names, words = list(flags), _packed(list(flags.values()))
    words += _histogram_words(layout, x)
    if layout.compared:
        # In units of 2^-15 of the binade of x, at most the whole binade.
        distance = jnp.where(x > y, x - y, y - x)
        distance = jnp.where((x < _INF) & (y >= _INF), _BINADE, distance)
        distance = jnp.where(x < _INF, jnp.minimum(distance, _BINADE), _ZERO)
        words.append((distance + np.uint32(128)) >> _SHIFT)
    words.append(jnp.where(x < _INF, x, _ZERO))
    *sums, amax = _reduced(words)
    return _row(layout, cut, names, sums, amax, codes)


@jax.jit
def revived(y: jax.Array, x: jax.Array) -> jax.Array:
    """Return the results y of a never-zero function of x, with zeros that float64 would
    not give replaced by the smallest normal number, so that they count as underflows.
    """
    flushed = (y == 0) & (x > LOWEST_EXPONENT) & (x < np.inf)
    return jnp.where(flushed, jnp.finfo(y.dtype).smallest_normal, y)


def _row(
    layout: CounterLayout,
    cut: _Cut,
    names: Sequence[str],
    sums: list[jax.Array],
    amax: jax.Array,
    codes: jax.Array | None,
) -> Counters:
    counts: dict[str, jax.Array] = {"elements": _pair(np.uint32(cut.elements))}
    if layout.compared:
        counts["error_units"] = _sum_long(sums.pop())
    fields = _unpacked(sums)
    flagged, bins = fields[:, : len(names)], fields[:, len(fields[0]) - layout.bins :]
    totals = jnp.sum(flagged, axis=0, dtype=jnp.uint32)
    counts |= {name: _pair(totals[n]) for n, name in enumerate(names)}
    exponents = scales = None
    if layout.bins:
        exponents = _pair(jnp.sum(bins, axis=0, dtype=jnp.uint32))
        if codes is not None:
            scales = _pair(jnp.zeros(SCALES, jnp.uint32).at[codes].add(np.uint32(1)))
    if codes is not None:
        counts["blocks"] = _pair(np.uint32(cut.kept))
        for name in ("underflow", "saturated", "nan"):
            hit = flagged[:, names.index(name)] != 0
            counts[f"blocks_{name}"] = _pair(jnp.sum(hit, dtype=jnp.uint32))
    nothing = _pair(np.uint32(0))
    return Counters(
        counts=jnp.stack([counts.get(name, nothing) for name in COUNTERS]),
        amax=jnp.max(amax, initial=0),
        exponents=exponents,
        scales=scales,
    )


def _pair(low: jax.Array | np.uint32) -> jax.Array:
    low = jnp.asarray(low, jnp.uint32)
    return jnp.stack([low, jnp.zeros_like(low)], axis=-1)


@dataclass(frozen=True)
class _Cut:
    """A tensor whose lines run along `axis`, that of MX blocks; None: the tensor is one
    line. Lines are cut into rows of `width`; one row of `every` many is measured."""

    axis: int | None
    lines: int
    length: int
    width: int
    every: int

    @classmethod
    def of(cls, shape: tuple[int, ...], layout: CounterLayout) -> _Cut:
        size = math.prod(shape)
        if layout.blocked is None:
            return cls(None, 1, size, _CHUNK, layout.every)
        length = shape[layout.blocked]
        return cls(layout.blocked, size // max(length, 1), length, _BLOCK, layout.every)

    @property
    def per_line(self) -> int:
        """Return the number of rows of a line; the last row may not be full."""
        return -(-self.length // self.width)

    @property
    def kept(self) -> int:
        return -(-self.lines * self.per_line // self.every)

    @property
    def elements(self) -> int:
        """Return the number of elements of the tensor in the rows that are measured."""
        rows = np.arange(0, self.lines * self.per_line, self.every)
        last = int(np.sum(rows % max(self.per_line, 1) == self.per_line - 1))
        return self.kept * self.width - last * (-self.length % self.width)

    def rows(self, x: jax.Array) -> jax.Array:
        """Return the float32 bits of x as [rows, width], filled up with zeros."""
        if self.axis is not None:
            x = jnp.moveaxis(x, self.axis, -1)
        bits = lax.bitcast_convert_type(widen(x), jnp.uint32)
        x = bits.reshape(self.lines, self.length)
        x = jnp.pad(x, ((0, 0), (0, -self.length % self.width)))
        return x.reshape(-1, self.width)[:: self.every]

    @property
    def filled(self) -> np.ndarray | bool:
        """Return the mask [rows, width] without padding; True if nothing is padded."""
        if self.length % self.width == 0:
            return True
        places = np.arange(self.per_line * self.width) < self.length
        lines = np.broadcast_to(places, (self.lines, places.size))
        return lines.reshape(-1, self.width)[:: self.every]

    def scale_codes(self, scales: jax.Array) -> jax.Array:
        codes = lax.bitcast_convert_type(scales, jnp.uint8)
        assert self.axis is not None
        codes = jnp.moveaxis(codes, self.axis, -1).reshape(-1)
        return codes[:: self.every].astype(jnp.uint32)


def _magnitude(bits: jax.Array) -> jax.Array:
    return bits & _MAGNITUDE


def _bits_of(value: float) -> np.uint32:
    return np.float32(value).view(np.uint32)


def _flags(
    layout: CounterLayout, x: jax.Array, element: jax.Array, y: jax.Array
) -> dict[str, jax.Array]:
    """Return booleans by counter from the magnitudes before and after rounding. `y` is
    `element` with its scale, which differs for MX elements only."""
    normal = max(_bits_of(layout.format.min_normal), _bits_of(2.0**-126))
    largest = _bits_of(layout.format.max_finite)
    seen = {
        "nonzero": x != 0,
        "subnormal": (element != 0) & (element < normal),
        "nan": y > _INF,
        "inf": y == _INF,
    }
    if layout.ends:
        clipped = [
            (y == _bits_of(end)) & (x > _bits_of(limit)) for end, limit in layout.ends
        ]
        seen["saturated"] = functools.reduce(lax.bitwise_or, clipped)
    if layout.never_zero:
        seen["underflow"] = (x != 0) & (element == 0)
    if not layout.compared:
        return seen
    return seen | {
        "underflow": (x != 0) & (element == 0) & (y <= _INF),
        "overflow": (x < _INF) & (y >= _INF),
        "saturated": (x > y) & (x <= _INF) & (element == largest),
        "nan_in": x > _INF,
    }


def _stagnation(
    layout: CounterLayout, operands: Sequence[jax.Array], y: jax.Array
) -> dict[str, jax.Array]:
    updates = stagnant = jnp.bool_(False)
    for n in layout.updates:
        nonzero = _magnitude(operands[1 - n]) != 0
        updates |= nonzero
        stagnant |= nonzero & (operands[n] == y) & (_magnitude(y) < _INF)
    return {"updates": updates, "stagnant": stagnant}


def _stays(state: jax.Array, x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    """Return which elements of a state x = state + step, before rounding, have a step,
    and which of these lose it in y. The rounding of two products and their sum in FP32
    does not count as a step."""
    step = jnp.where(x > state, x - state, state - x)
    updates = (step > _ROUNDED) & (_magnitude(state) < _INF)
    return {"updates": updates, "stagnant": updates & (y == state)}


def _scaled(y: jax.Array, codes: jax.Array, filled: np.ndarray | bool) -> jax.Array:
    """Return magnitudes of MX elements with their scales; a NaN scale gives NaNs."""
    exponent = codes.astype(jnp.int32) - np.int32(127)
    scaled = y.astype(jnp.int32) + (exponent << np.int32(23))
    finite = jnp.clip(scaled, 0, np.int32(_INF)).astype(jnp.uint32)
    value = jnp.where(y == 0, _ZERO, finite)
    is_nan = ((codes == 0xFF) | (y > _INF)) & filled
    return jnp.where(is_nan, _MAGNITUDE, value)


def _histogram_words(layout: CounterLayout, x: jax.Array) -> list[jax.Array]:
    """Return words of four 8-bit bins, with a one in the bin of each exponent."""
    if not layout.bins:
        return []
    low, binades = exponent_bins(layout.format, layout.bins)
    exponent = (x >> np.uint32(23)).astype(jnp.int32) - np.int32(127 + low)
    inner = jnp.clip(lax.div(exponent, np.int32(binades)), 0, layout.bins - 3)
    outside = jnp.where(exponent < 0, 0, layout.bins - 1)
    above = exponent >= binades * (layout.bins - 2)
    bin = jnp.where((exponent < 0) | above, outside, inner + 1).astype(jnp.uint32)
    one = jnp.where((x != 0) & (x < _INF), np.uint32(1), _ZERO)
    one = one << ((bin & np.uint32(3)) << np.uint32(3))
    return [
        jnp.where(bin >> np.uint32(2) == n, one, _ZERO) for n in range(layout.bins // 4)
    ]


# -- four flags in a word --------------------------------------------------------------


def _packed(flags: Sequence[jax.Array]) -> list[jax.Array]:
    words = []
    for first in range(0, len(flags), 4):
        fields = [
            flag.astype(jnp.uint32) << np.uint32(8 * n)
            for n, flag in enumerate(flags[first : first + 4])
        ]
        words.append(functools.reduce(lax.bitwise_or, fields))
    return words


def _reduced(words: Sequence[jax.Array]) -> list[jax.Array]:
    """Return each row's sum, or maximum for the last word, in one pass."""

    def combine(first: tuple, second: tuple) -> tuple:
        sums = [a + b for a, b in zip(first[:-1], second[:-1], strict=True)]
        return (*sums, jnp.maximum(first[-1], second[-1]))

    zeros = (jnp.uint32(0),) * len(words)
    return list(lax.reduce(tuple(words), zeros, combine, (1,)))


def _unpacked(sums: Sequence[jax.Array]) -> jax.Array:
    """Return the sums of the four fields of every word, [rows, 4 * words]."""
    fields = lax.bitcast_convert_type(jnp.stack(sums, axis=1), jnp.uint8)
    return fields.reshape(len(sums[0]), 4 * len(sums)).astype(jnp.uint32)


def _sum_long(rows: jax.Array) -> jax.Array:
    """Return the 64-bit sum of row sums of errors, each at most 2^22."""
    if rows.size > 2**15:
        rows = jnp.pad(rows, (0, -rows.size % _CHUNK)).reshape(-1, _CHUNK)
        rows = jnp.sum(rows, axis=1, dtype=jnp.uint32)
    return sum_words(rows)


def sum_words(words: jax.Array) -> jax.Array:
    """Return 64-bit sums over the first axis, [n <= 65536, ...] -> [..., 2]."""
    half = np.uint32(16)
    low = jnp.sum(words & np.uint32(0xFFFF), axis=0, dtype=jnp.uint32)
    high = jnp.sum(words >> half, axis=0, dtype=jnp.uint32) + (low >> half)
    word = (low & np.uint32(0xFFFF)) | (high << half)
    return jnp.stack([word, high >> half], axis=-1)
