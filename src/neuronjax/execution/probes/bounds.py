"""Bounds that clip for a quantizer: which they are, and where their formats end.

A bound is one side of a clip, a minimum or maximum with a number of the program. It is
a quantizer's if that number is where a format of 8 bits ends, and what it bounds goes
on to a cast to that format; or, of an integer that is kept in floats, if it is rounded
too. Every other bound is meant, as those of relu6, of a hard tanh and of gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from neuronjax.ir.instruction import Instruction, InstructionProgram, View
from neuronjax.ir.instruction_set import DmaCopy, TensorCopy, TensorScalar, TensorTensor
from neuronjax.ir.provenance import Provenance
from neuronjax.ir.traversal import DataFlow, Functions, entries
from neuronjax.numerics.float_format import FORMATS, INTEGERS, IntFormat, get_format

_BOUNDS = ("maximum", "minimum")
_ROUNDS = ("round_nearest_even", "round_nearest_afz", "floor")
_ARITHMETIC = ("add", "subtract", "multiply", "divide")
#: Widths of integers that quantizers keep in floats; those of fewer bits are choices.
_WIDTHS = range(4, 9)


class End(NamedTuple):
    """The largest magnitude of one sign.

    Attributes:
        value: the magnitude.
        limit: what is above it is not rounded to it, but clipped.
    """

    value: float
    limit: float


class Bound(NamedTuple):
    """The last side of a clip.

    Attributes:
        before: number of the buffer with what is clipped.
        ends: at which it clips.
    """

    before: int
    ends: frozenset[End]


def quantizing_bounds(
    program: InstructionProgram, provenance: Provenance
) -> dict[int, Bound]:
    """Return the clips of quantizers, by the identity of their last instruction.

    Args:
        program: the instructions.
        provenance: which numbers its buffers repeat.
    """
    sides = _sides(program, provenance)
    if not sides:
        return {}
    finder = _BoundFinder(program.functions, sides)
    finder.block(program.main, [finder.nothing] * len(program.main.arguments))
    outer = {side.inner: n for n, side in sides.items() if side.inner is not None}
    found: dict[int, Bound] = {}
    for n, ends in finder.ends.items():
        last = outer.get(n, n)
        known = found.get(last, Bound(_first(sides, last), frozenset()))
        found[last] = known._replace(ends=known.ends | ends)
    return found


class _ClipSide(NamedTuple):
    """A minimum or maximum with a constant.

    Attributes:
        value: what it bounds.
        numbers: the magnitudes that it is bounded to.
        inner: the side of the same clip before it, by its identity.
    """

    value: View
    numbers: frozenset[float]
    inner: int | None


def _sides(program: InstructionProgram, provenance: Provenance) -> dict[int, _ClipSide]:
    """The sides of clips that are at the end of a format."""
    found: dict[int, _ClipSide] = {}
    written: dict[int, int] = {}
    for i in program.walk():
        if getattr(i, "op", "") not in _BOUNDS or len(i.operands) != 2:
            continue
        numbers = list(map(provenance.numbers, i.operands))
        is_float = i.results[0].type.dtype.name in FORMATS
        if isinstance(i, TensorTensor) and is_float and any(numbers) != all(numbers):
            value = i.operands[0 if numbers[1] else 1]
            magnitudes = frozenset(map(abs, numbers[0] or numbers[1]))
            found[id(i)] = _ClipSide(
                value, magnitudes, written.get(value.buffer.number)
            )
            written[i.results[0].number] = id(i)
    at_end = {end.value for end in _all_ends()}
    return found if any(side.numbers & at_end for side in found.values()) else {}


def _first(sides: Mapping[int, _ClipSide], last: int) -> int:
    """The buffer with what a clip is given."""
    inner = sides[last].inner
    return sides[last if inner is None else inner].value.buffer.number


class _Clipped(NamedTuple):
    """What a value has gone through last: sides of clips, by identity, and a rounding
    to whole numbers."""

    sides: frozenset[int] = frozenset()
    rounded: bool = False


class _BoundFinder(DataFlow[_Clipped]):
    """Attributes:
    ends: of the sides that are a quantizer's, those of its formats.
    """

    nothing = _Clipped()

    def __init__(self, functions: Functions, sides: Mapping[int, _ClipSide]) -> None:
        super().__init__(functions)
        self.ends: dict[int, frozenset[End]] = {}
        self._sides = sides

    def join(self, one: _Clipped, other: _Clipped) -> _Clipped:
        return _Clipped(one.sides | other.sides, one.rounded or other.rounded)

    def transfer(self, i: Instruction) -> Sequence[_Clipped] | None:
        if entries(i, self.functions):
            return None
        found, op = self.nothing, getattr(i, "op", "")
        if id(i) in self._sides:
            inner = self.of(self._sides[id(i)].value)
            found = inner._replace(sides=inner.sides | {id(i)})
        elif op in _ROUNDS:
            found = self.of(i.operands[0])._replace(rounded=True)
        elif isinstance(i, DmaCopy | TensorCopy) and len(i.operands) == 1:
            found = self._moved(i, self.of(i.operands[0]))
        elif isinstance(i, TensorTensor | TensorScalar) and op in _ARITHMETIC:
            for given in map(self.of, i.operands):
                self._quantizes(given, _whole_ends() if given.rounded else frozenset())
        return [found] * len(i.results)

    def nested(self, i: Instruction) -> Sequence[_Clipped]:
        return super().nested(i) or [self.nothing] * len(i.results)

    def _moved(self, i: Instruction, given: _Clipped) -> _Clipped:
        written = np.dtype(i.results[0].type.dtype)
        if isinstance(i, DmaCopy) or i.operands[0].type.dtype == written:
            return given
        self._quantizes(given, ends_of(written))
        # What indexes is meant to end at the last place.
        return given._replace(rounded=given.rounded and written.kind not in "iu")

    def _quantizes(self, given: _Clipped, ends: frozenset[End]) -> None:
        for n in given.sides:
            at = frozenset(e for e in ends if e.value in self._sides[n].numbers)
            if at:
                self.ends[n] = self.ends.get(n, frozenset()) | at


@functools.cache
def ends_of(dtype: np.dtype) -> frozenset[End]:
    """Return where a format of 8 bits or fewer ends: of a float also where others with
    its bits do, for float8_e4m3fn is clipped at 240 for a core that has no more."""
    if dtype.itemsize > 1 or dtype.name not in FORMATS | INTEGERS:
        return frozenset()
    if dtype.name in INTEGERS:
        return _integer_ends(INTEGERS[dtype.name])
    bits = _bits(dtype.name)
    alike = [fmt for fmt in FORMATS.values() if _bits(fmt.name) == bits]
    halves = [2.0 ** (f.max_exponent - f.mantissa_bits - 1) for f in alike]
    return frozenset(
        End(f.max_finite, f.max_finite + h) for f, h in zip(alike, halves, strict=True)
    )


def _bits(name: str) -> tuple[int, int]:
    fmt = get_format(name)
    return fmt.exponent_bits, fmt.mantissa_bits


def _integer_ends(fmt: IntFormat) -> frozenset[End]:
    return frozenset(End(x, x + 0.5) for x in (float(fmt.max), -float(fmt.min)) if x)


@functools.cache
def _whole_ends() -> frozenset[End]:
    """Of the integers that quantizers keep in floats."""
    formats = [IntFormat(w, signed) for w in _WIDTHS for signed in (True, False)]
    return frozenset().union(*map(_integer_ends, formats))


@functools.cache
def _all_ends() -> frozenset[End]:
    return _whole_ends().union(*(ends_of(f.dtype) for f in FORMATS.values()))
