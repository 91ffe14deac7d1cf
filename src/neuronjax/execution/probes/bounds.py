"""Find the clips that belong to a quantizer, and the largest numbers of its format.

A bound is one side of a clip: a minimum or maximum with a constant. It belongs to a
quantizer if the constant is the largest or smallest number of a format of 8 bits and
the bounded value is later cast to that format, or, for integers kept in floats, if the
value is also rounded. Every other bound is intended by the user, as in relu6, a hard
tanh or gradient clipping.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from neuronjax.ir.instruction import Block, Instruction, InstructionProgram
from neuronjax.ir.instruction_set import DmaCopy, TensorCopy, TensorScalar, TensorTensor
from neuronjax.ir.provenance import Provenance
from neuronjax.ir.traversal import DataFlow, Functions, entries
from neuronjax.numerics.float_format import FORMATS, INTEGERS, IntFormat, get_format

_BOUNDS = ("maximum", "minimum")
_ROUNDS = ("round_nearest_even", "round_nearest_afz", "floor")
_ARITHMETIC = ("add", "subtract", "multiply", "divide")
#: Widths of integers that quantizers keep in floats. A clip to fewer bits does not
#: count as part of a quantizer.
_WIDTHS = range(4, 9)


class End(NamedTuple):
    """The largest magnitude of a format on one side of zero.

    Attributes:
        limit: the magnitude above which a number is clipped, not rounded, to `value`.
    """

    value: float
    limit: float


class Clip(NamedTuple):
    """A clip, described by its last instruction (a minimum or a maximum).

    Attributes:
        before: the number of the buffer that is clipped.
        ends: the magnitudes at which it clips.
    """

    before: int
    ends: frozenset[End]


def quantizing_bounds(
    program: InstructionProgram, provenance: Provenance
) -> dict[int, Clip]:
    """Return the clips of quantizers, by the `id` of their last instruction."""
    finder = _BoundFinder(program.functions, provenance)
    finder.block(program.main, [finder.nothing] * len(program.main.arguments))
    return finder.found


class _Clipped(NamedTuple):
    """The last clip and rounding of a value.

    Attributes:
        bounds: (instruction's `id`, clipped buffer) of the last minima or maxima.
        numbers: the magnitudes at which they clip.
        rounded: whether the value is also rounded to whole numbers.
        before: the clipped buffer, if no other operation follows the clip.
    """

    bounds: frozenset[tuple[int, int]] = frozenset()
    numbers: frozenset[float] = frozenset()
    rounded: bool = False
    before: int | None = None


class _BoundFinder(DataFlow[_Clipped]):
    nothing = _Clipped()

    def __init__(self, functions: Functions, provenance: Provenance) -> None:
        super().__init__(functions)
        self.found: dict[int, Clip] = {}
        self._numbers = provenance.numbers

    def join(self, one: _Clipped, other: _Clipped) -> _Clipped:
        return _Clipped(
            one.bounds | other.bounds,
            one.numbers | other.numbers,
            one.rounded or other.rounded,
        )

    def block(self, block: Block, arguments: Sequence[_Clipped]) -> list[_Clipped]:
        """Analyse a block; a clip is not followed across a call, because the numbers of
        buffers hold only inside a function."""
        given = [fact._replace(before=None) for fact in arguments]
        return [fact._replace(before=None) for fact in super().block(block, given)]

    def transfer(self, i: Instruction) -> Sequence[_Clipped] | None:
        if entries(i, self.functions):
            return None
        bound, op = self.nothing, getattr(i, "op", "")
        if op in _BOUNDS and len(i.operands) == 2:
            bound = self._bounded(i)
        elif op in _ROUNDS:
            bound = self.of(i.operands[0])._replace(rounded=True, before=None)
        elif isinstance(i, DmaCopy | TensorCopy) and len(i.operands) == 1:
            bound = self._moved(i, self.of(i.operands[0])._replace(before=None))
        elif isinstance(i, TensorTensor | TensorScalar) and op in _ARITHMETIC:
            for given in map(self.of, i.operands):
                self._quantizes(given, _whole_ends() if given.rounded else frozenset())
        return [bound] * len(i.results)

    def _bounded(self, i: Instruction) -> _Clipped:
        numbers = list(map(self._numbers, i.operands))
        is_float = i.results[0].type.dtype.name in FORMATS
        one_constant = any(numbers) and not all(numbers)
        if not (isinstance(i, TensorTensor) and is_float and one_constant):
            return self.nothing
        value = i.operands[0 if numbers[1] else 1]
        given = self.of(value)
        before = value.buffer.number if given.before is None else given.before
        others = given.bounds if given.before is None else frozenset()
        magnitudes = given.numbers.union(*(map(abs, found) for found in numbers))
        return _Clipped(others | {(id(i), before)}, magnitudes, given.rounded, before)

    def _moved(self, i: Instruction, given: _Clipped) -> _Clipped:
        written = np.dtype(i.results[0].type.dtype)
        if isinstance(i, DmaCopy) or i.operands[0].type.dtype == written:
            return given
        self._quantizes(given, ends_of(written))
        # A program clips an index to the last position on purpose.
        return given._replace(rounded=given.rounded and written.kind not in "iu")

    def _quantizes(self, given: _Clipped, ends: frozenset[End]) -> None:
        at = frozenset(end for end in ends if end.value in given.numbers)
        for n, before in given.bounds if at else ():
            known = self.found.get(n, Clip(before, frozenset()))
            self.found[n] = known._replace(ends=known.ends | at)


@functools.cache
def ends_of(dtype: np.dtype) -> frozenset[End]:
    """Return the largest magnitudes of a format of 8 bits or fewer. For a float dtype
    they include those of formats with the same fields: float8_e4m3fn is clipped at 240
    for a core whose format has no larger number."""
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
    formats = [IntFormat(w, signed) for w in _WIDTHS for signed in (True, False)]
    return frozenset().union(*map(_integer_ends, formats))
