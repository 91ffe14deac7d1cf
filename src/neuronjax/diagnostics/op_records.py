"""One op of a comparison: what it is, and how far it is off.

Two errors belong to an op. "isolation" is its error when it is fed the reference's
values, "accumulation" its error in the run, in which errors propagate.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from neuronjax.diagnostics.op_errors import Errors
from neuronjax.report.places import place

_MOVING = """
bitcast_convert broadcast_in_dim case concatenate constant dynamic_slice gather iota
dynamic_update_slice optimization_barrier pad reshape reverse slice transpose while
"""
MOVING = frozenset(f"stablehlo.{name}" for name in _MOVING.split())


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """The errors of one execution of an op inside loops.

    Attributes:
        index: of the loops around it, the outermost first, from 0.
    """

    index: tuple[int, ...]
    isolation: Errors | None
    accumulation: Errors | None


@dataclass(frozen=True, kw_only=True)
class OpRecord:
    """One op of the program.

    Attributes:
        number: in program order, from 0.
        op: "stablehlo.dot_general".
        scope: the JAX name stack, those of the calls in front.
        source: `file:line`, or "".
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
    result: str
    executions: int
    isolation: Errors
    accumulation: Errors
    expected: Errors | None = None
    actual: Errors | None = None
    iterations: tuple[Iteration, ...] = ()

    @property
    def module(self) -> str:
        """The name stack without the op's own name and JAX's transformations."""
        return module_of(self.scope)

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
        return self.op not in MOVING or self.errs

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
        out: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("number", "op", "scope", "module", "source", "result")
        }
        out["executions"] = self.executions
        kinds = ("isolation", "accumulation", "expected", "actual")
        for kind in kinds:
            errors = getattr(self, kind)
            if errors is not None:
                out.update({f"{kind}_{k}": v for k, v in errors.as_dict().items()})
        return out


def module_of(scope: str) -> str:
    """ "jit(step)/transpose(jvp(mlp))/dot_general" is "grad(mlp)"."""
    parts = map(_bare, scope.split("/")[:-1])
    path = "/".join(name for name in parts if name)
    backward = "transpose(" in scope and "rematted_computation" not in scope
    if backward:
        return f"grad({path})" if path else "grad"
    return path or "(top)"


def _bare(part: str) -> str:
    """A name without the transformations around it; "" for JAX's and our own names."""
    while match := _TRANSFORMED.fullmatch(part):
        part = match[1]
    is_own = part in _JAX_NAMES or part.startswith(_JAX_PREFIXES)
    return "" if is_own else part


_TRANSFORMED = re.compile(
    r"(?:transpose|jvp|vmap|checkpoint|rematted_computation)\((.*)\)"
)
_JAX_PREFIXES = ("jit(", "pjit(", "neuronjax.policy.")
_JAX_NAMES = frozenset(
    """while body cond closed_call eval_jaxpr scan remat checkpoint
    rematted_computation""".split()
)


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
            their place. Empty where no such set was found.
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
        return f"{where}, {self.record.module}, {self.record.line}"
