"""One op of a comparison: what it is, and how far it is off.

Two errors belong to an op. "isolation" is its error when it is fed the reference's
values, "accumulation" its error in the run, in which errors propagate.
"""

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
#: What leaves a constant one.
CONSTANT = MOVING | {"stablehlo.convert"}


def figures(of: Any, *kinds: str) -> dict[str, Any]:
    """Return the figures of some errors, those that there are, by kind and name."""
    errors = {kind: getattr(of, kind) for kind in kinds}
    return {
        f"{kind}_{name}": value
        for kind, found in errors.items()
        if found is not None
        for name, value in found.as_dict().items()
    }


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """The errors of one execution of an op inside loops.

    Attributes:
        index: of the loops around it, the outermost first, from 0.
    """

    index: tuple[int, ...]
    isolation: Errors | None
    accumulation: Errors | None


@dataclass(frozen=True, kw_only=True, repr=False)
class OpRecord:
    """One op of the program.

    Attributes:
        number: in program order, from 0.
        op: "stablehlo.dot_general".
        scope: the JAX name stack, those of the calls in front.
        source: `file:line`, or "".
        module: the part of the model that it belongs to, as in every report.
        phase: "forward", "backward", "optimizer", or "" where that is not known.
        result: the types of its results.
        executions: how often it ran.
        isolation: fed the reference's values.
        accumulation: in the run.
        expected, actual: of reference and actual run against the baseline; None without
            one.
        iterations: of an op in a loop, the executions with an error.
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

    def __repr__(self) -> str:
        return f"<neuronjax.OpRecord {self.number} {self.short_op} at {self.line}>"

    @property
    def label(self) -> str:
        """The module and the pass: "mlp (backward)"."""
        return f"{self.module} ({self.phase})" if self.phase else self.module

    @property
    def errs(self) -> bool:
        """Whether it has an error of its own."""
        return self.isolation.differing > 0

    @property
    def only_rounds(self) -> bool:
        """Whether all it does wrong, against a wider reference, is to be rounded to its
        declared format."""
        return not self.errs and self.isolation.sum_error2 > 0

    @property
    def is_arithmetic(self) -> bool:
        """Whether it computes, rather than moves what others have computed."""
        rounds = self.errs or self.only_rounds  # an iota may
        return self.op not in MOVING or rounds

    @property
    def short_op(self) -> str:
        """ "dot_general"."""
        return self.op.rpartition(".")[2]

    @property
    def line(self) -> str:
        """`file:line` without folders; a notebook's cell by its number."""
        return place(self.source)

    @property
    def ratio(self) -> float | None:
        """Actual over expected relative L2 error against the baseline (R-ratio)."""
        if self.expected is None or self.actual is None:
            return None
        low = self.expected.relative_l2
        high = self.actual.relative_l2
        if low == 0 or math.isinf(low):
            return 1.0 if high == low else math.inf
        return high / low

    def as_dict(self) -> dict[str, Any]:
        """Flat: `isolation_max_ulp`, `accumulation_relative_l2`, ..."""
        names = ("number", "op", "scope", "module", "phase", "source", "result")
        out = {name: getattr(self, name) for name in (*names, "executions")}
        return out | figures(self, "isolation", "accumulation", "expected", "actual")


@dataclass(frozen=True, kw_only=True)
class FirstDivergence:
    """The first op, in the order of execution, whose error exceeds the tolerance.

    Attributes:
        record: the op.
        iteration: of the loops around it; () outside of loops.
        errors: of that execution, in accumulation.
        causes: the smallest set found of ops that explain it: the op alone, if it
            exceeds the tolerance on the reference's values too; else ops with which
            the error is within the tolerance once the reference's instructions are in
            their place. The op alone, not verified, if the verdict says that it
            amplifies and these are many, or round as every FP32 op does. Empty where
            none was found.
        verified: whether a run has shown that.
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
