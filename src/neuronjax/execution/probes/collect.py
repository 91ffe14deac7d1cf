"""The measurements that a user selects for a run: `Collect`, and its probes.

A `Collect` selects among the results of a program: casts, MX quantizations, matmuls,
other writes that round, and updates that rounding may lose. A `Probe` is a selected
result as a report names it. `plan` finds the probes of a program, and
`rounding_counters` counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.execution.probes.signs import NEVER_ZERO
from neuronjax.ir.program import Location
from neuronjax.numerics.float_format import FloatFormat, get_format
from neuronjax.numerics.microscaling import get_mx_format
from neuronjax.policy.values import check_pattern

KINDS: Mapping[str, str] = {
    "cast": "casts to a narrower format, also of matmul operands",
    "mx": "quantizations to MX blocks; elements and blocks are counted",
    "quantize": "clips to the range of an 8-bit or narrower format, before casts to it",
    "matmul": "results of matmuls, as they leave PSUM",
    "write": "results of other arithmetic that are narrower than FP32",
    "update": "additions to an argument or to a loop's carry (p - lr * g); also sums "
    "narrower than FP32 that replace an argument or a carry (b * m + g)",
    "add": "every other addition and subtraction of floats",
    "result": "FP32 results of all other arithmetic",
    "finite": 'largest "add" and "result" magnitudes; the op that makes Inf or NaN',
    "integer": "sums, products and conversions of integers that wrap around",
}
"""What can be measured."""

DEFAULT_KINDS = tuple(kind for kind in KINDS if kind not in ("add", "result"))
#: The kinds of probes that do not count elements.
WATCHED = frozenset(("finite", "integer"))

_SELECTORS = ("op", "param", "scope", "source")
_BINS = (4, 128)


@dataclass(frozen=True, kw_only=True)
class Collect:
    """A selection of statistics that a run returns with its results (`neuronjax.jit`).

    The patterns are regular expressions, found anywhere in the text (`re.search`); all
    given patterns must match, as in a `Rule`.

    Attributes:
        kinds: names from `KINDS`; the default is all but "add" and "result", which
            count the elements of every FP32 result and cost more.
        op: the name of the instruction, "tensor_copy", "quantize_mx", "nc_matmul".
        param: the pytree path of a program argument that an operand descends from.
        scope: the name stack, "jit(step)/transpose(jvp(head))/dot_general".
        source: the user's source line, "model.py:42".
        histogram: count exponents, and the scales of MX blocks, too.
        bins: the number of bins of an exponent histogram; they cover the range of the
            format, and the outer two hold what is below and above it.
        every: measure one of `every` blocks of 128 neighbouring elements (or MX
            blocks); 8 measures an eighth. Counts are those of the measured blocks; amax
            is a lower bound.

    Raises:
        InvalidProgramError: an unknown kind, a pattern that is no regular expression, a
            number out of range.
    """

    kinds: tuple[str, ...] = DEFAULT_KINDS
    op: str | None = None
    param: str | None = None
    scope: str | None = None
    source: str | None = None
    histogram: bool = False
    bins: int = 64
    every: int = 1

    def __post_init__(self) -> None:
        kinds = (self.kinds,) if isinstance(self.kinds, str) else tuple(self.kinds)
        object.__setattr__(self, "kinds", kinds)
        unknown = sorted(set(kinds) - KINDS.keys())
        if unknown or not kinds:
            raise InvalidProgramError(
                f"Collect.kinds is {kinds!r}", remedy=f"use some of {', '.join(KINDS)}"
            )
        for name, pattern in self.selectors.items():
            check_pattern(f"Collect.{name}", pattern)
        _check_range("bins", self.bins, *_BINS, multiple=4)
        _check_range("every", self.every, 1, 2**16)

    @classmethod
    def of(cls, given: Any) -> Collect | None:
        """Return the `Collect` for `collect=`: a bool, None, a kind or a Collect."""
        if given is None or given is False:
            return None
        if isinstance(given, Collect):
            return given
        if given is True:
            return cls()
        if isinstance(given, (str, tuple, list)):
            return cls(kinds=(given,) if isinstance(given, str) else tuple(given))
        raise InvalidProgramError(
            f"collect={given!r}", remedy="use True, a kind or a neuronjax.Collect"
        )

    @property
    def selectors(self) -> Mapping[str, str]:
        """Return the given patterns, by selector."""
        return {s: p for s in _SELECTORS if (p := getattr(self, s)) is not None}

    def matches(self, probe: Probe) -> bool:
        """Return whether the kinds and all patterns select a probe."""
        texts = dict(
            op=(probe.op,),
            param=probe.params,
            scope=(probe.scope,),
            source=(probe.source,),
        )
        return probe.kind in self.kinds and all(
            any(re.search(pattern, text) for text in texts[name])
            for name, pattern in self.selectors.items()
        )


def _check_range(name: str, value: Any, low: int, high: int, multiple: int = 1) -> None:
    integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not integer or not low <= value <= high or value % multiple:
        of = f" that is a multiple of {multiple}" if multiple > 1 else ""
        raise InvalidProgramError(
            f"Collect.{name} is {value!r}",
            remedy=f"use an integer in [{low}, {high}]{of}",
        )


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One measured instruction.

    Attributes:
        kind: one of `KINDS`.
        op: the instruction's name, with its op: "tensor_tensor.add".
        scope: the name stack of the JAX op that it comes from.
        source: "file:line" of the user, or "".
        number: distinguishes probes that are otherwise equal, from 0.
        format: the format to which the result is rounded.
        shape: the shape of the result.
        params: the paths of the program's arguments from which its operands descend.
        module: the part of the model that it belongs to, or "".
        functions: the functions that contain the source line, the outermost first.
        phase: "forward", "backward", "optimizer"; "" if unknown.
        compared: whether the numbers before the rounding are seen, so that overflow,
            underflow, saturation and effective bits are known.
        updates: the operands of a sum that count as updated by the other operand.
        advances: whether it writes the next value of a state that is not one of its
            operands but is compared with the result.
        ends: the magnitudes at which a clip clips, each with the magnitude above which
            a number is clipped and not only rounded.
        blocked: the axis of MX blocks, or None.
        running: whether a loop carries the sum to its next iteration.
    """

    kind: str
    op: str
    scope: str
    source: str
    format: str
    shape: tuple[int, ...]
    number: int = 0
    params: tuple[str, ...] = ()
    # These fields depend on where a program is called; equal probes may differ in them.
    module: str = field(default="", compare=False)
    functions: tuple[str, ...] = field(default=(), compare=False)
    phase: str = field(default="", compare=False)
    compared: bool = True
    updates: tuple[int, ...] = ()
    advances: bool = False
    ends: tuple[tuple[float, float], ...] = ()
    blocked: int | None = None
    running: bool = False

    @property
    def location(self) -> Location:
        """Return the instruction's location, without what differs between its calls."""
        file, _, line = self.source.rpartition(":")
        return Location(
            scope=self.scope,
            file=file,
            line=int(line or 0),
            functions=self.functions,
            module=self.module,
            phase=self.phase,
        )

    @property
    def function(self) -> str:
        """Return the operation: "add", "exponential", "nc_matmul"."""
        return self.op.rpartition(".")[2]

    @property
    def counted(self) -> bool:
        """Return whether its elements are counted."""
        return self.kind not in WATCHED

    @property
    def is_update(self) -> bool:
        """Return whether it is a fault if this op loses its update."""
        return self.kind == "update" or self.advances

    @property
    def never_zero(self) -> bool:
        """Return whether every zero in its result has underflowed."""
        return self.function in NEVER_ZERO and not self.compared

    @property
    def key(self) -> str:
        """Return a name that is unique in the program."""
        place = self.source.rpartition("/")[2] or "?"
        return f"{self.kind}:{place}:{self.op}:{self.scope}#{self.number}"


def place_of(location: Location) -> dict[str, Any]:
    """Return the fields of a probe that say where its instruction is."""
    names = ("scope", "source", "module", "functions", "phase")
    return {name: getattr(location, name) for name in names}


def element_format(probe: Probe) -> FloatFormat:
    """Return the format of a probe's elements."""
    if probe.blocked is None:
        return get_format(probe.format)
    return get_mx_format(probe.format).element
