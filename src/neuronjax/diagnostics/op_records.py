"""The record of one op in a comparison (see `comparison`): the op and its errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from neuronjax.diagnostics.op_errors import Errors
from neuronjax.report.places import place

_MOVING = """
bitcast_convert broadcast_in_dim case concatenate constant dynamic_slice gather iota
dynamic_update_slice optimization_barrier pad reshape reverse slice transpose while
"""
MOVING = frozenset(f"stablehlo.{name}" for name in _MOVING.split())
#: Ops whose results are constants if all operands are constants.
CONSTANT = MOVING | {"stablehlo.convert"}


def figures(of: Any, *kinds: str) -> dict[str, Any]:
    return {
        f"{kind}_{name}": value
        for kind in kinds
        if (found := getattr(of, kind)) is not None
        for name, value in found.as_dict().items()
    }


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """The errors of one execution of an op inside loops.

    `index` has the iteration, from 0, of each enclosing loop, the outermost first."""

    index: tuple[int, ...]
    isolation: Errors | None
    accumulation: Errors | None


@dataclass(frozen=True, kw_only=True, repr=False)
class OpRecord:
    """One op of the program.

    Attributes:
        number: position in program order, from 0.
        op: name of the op, "stablehlo.dot_general".
        scope: the JAX name stack, after the name stacks of enclosing calls.
        source: `file:line`, or "".
        callers: the lines that called the function of this line, the innermost first.
        module: the part of the model to which the op belongs.
        phase: "forward", "backward", "optimizer", or "" if not known.
        result: the types of its results.
        expected, actual: errors of reference and actual run against the baseline; None
            without a baseline.
        iterations: executions with an error, if the op is in a loop.
    """

    number: int
    op: str
    scope: str
    source: str
    module: str
    phase: str
    result: str
    executions: int
    isolation: Errors
    accumulation: Errors
    expected: Errors | None = None
    actual: Errors | None = None
    iterations: tuple[Iteration, ...] = ()
    callers: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<neuronjax.OpRecord {self.number} {self.short_op} at {self.line}>"

    @property
    def label(self) -> str:
        """Return the module and the pass: "mlp (backward)"."""
        return f"{self.module} ({self.phase})" if self.phase else self.module

    @property
    def errs(self) -> bool:
        """Return whether the op has an error on the reference's operands: more than
        the rounding to its declared format, or an overflow in this rounding."""
        own = self.isolation
        return own.differing > 0 or math.isinf(own.relative_l2)

    @property
    def only_rounds(self) -> bool:
        """Return whether the op's only error, against a wider reference, is the
        rounding to its declared format."""
        return not self.errs and self.isolation.sum_error2 > 0

    @property
    def is_arithmetic(self) -> bool:
        """Return whether the op computes, rather than only moves numbers."""
        rounds = self.errs or self.only_rounds  # an iota may round its numbers
        return self.op not in MOVING or rounds

    @property
    def short_op(self) -> str:
        """Return the op without its dialect, "dot_general"."""
        return self.op.rpartition(".")[2]

    @property
    def line(self) -> str:
        """Return `file:line` without folders, or a notebook cell by its number."""
        return place(self.source)

    @property
    def ratio(self) -> float | None:
        """Return `actual` over `expected`, in relative L2; None without a baseline."""
        if self.expected is None or self.actual is None:
            return None
        low = self.expected.relative_l2
        high = self.actual.relative_l2
        if low == 0 or math.isinf(low):
            return 1.0 if high == low else math.inf
        return high / low

    def as_dict(self) -> dict[str, Any]:
        """Return a flat dict with keys such as "op" and "isolation_max_ulp"."""
        names = ("number", "op", "scope", "module", "phase", "source", "callers")
        out = {name: getattr(self, name) for name in (*names, "result", "executions")}
        return out | figures(self, "isolation", "accumulation", "expected", "actual")


@dataclass(frozen=True, kw_only=True)
class FirstDivergence:
    """The first op, in the order of execution, whose error exceeds the tolerance.

    Attributes:
        iteration: the iteration of each enclosing loop; () outside of loops.
        errors: errors in the run, of the execution that exceeds the tolerance.
        causes: only the op itself if its error on the reference's operands exceeds the
            tolerance, or if it amplifies roundings to FP32 or the errors of many ops.
            Otherwise a small set of ops: if the reference executes these, the error is
            within the tolerance; empty if no such set was found.
        verified: whether a run has confirmed the causes; False if the op amplifies.
    """

    record: OpRecord
    iteration: tuple[int, ...]
    errors: Errors
    causes: tuple[OpRecord, ...] = ()
    verified: bool = False

    def __str__(self) -> str:
        where = f"op {self.record.number}, {self.record.short_op}"
        if self.iteration:
            where += f", iteration {'.'.join(map(str, self.iteration))}"
        return f"{where}, {self.record.label}, {self.record.line}"
