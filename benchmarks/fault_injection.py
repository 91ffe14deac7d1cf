"""Faults that are injected into programs, to count those that `compare` names.

A fault changes at least one bit of the result of one op in a program of 200 to 2,000
ops: by a wrong rounding, another order of accumulation, an overflow, or a sign in one
iteration of a scan. The faulty run is compared with a run of the same policy without
the fault, where the op must be named as the first divergence and its only cause, and
with FP32, where the fault is hidden among the errors of the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from neuronjax.capture.trace import capture
from neuronjax.diagnostics.compare import Setting, compare_sides
from neuronjax.diagnostics.comparison import Comparison
from neuronjax.diagnostics.executors import Position, RoundingKey
from neuronjax.diagnostics.lane_errors import Compared
from neuronjax.diagnostics.op_walk import ParallelWalk
from neuronjax.diagnostics.parallel_runs import Executor, OpPath, Side
from neuronjax.hardware import resolve_target
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    Activation,
    NcMatmul,
    TensorReduce,
    TensorTensor,
)
from neuronjax.policy import Policy

TARGET = "trn2"
KINDS = ("rounding", "order", "overflow", "sign")
SIZES = (200, 500, 1000, 2000)
SHAPE = (12, 12)
TRIPS = 40
FAULTY_ITERATION = 37
# The path of an op in the walk, and the iteration with the fault.
Where = tuple[OpPath, tuple[int, ...]]

# ---- Programs.

_STEPS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda a, b: a + b,
    lambda a, b: a - 0.5 * b,
    lambda a, b: jnp.tanh(a) * b,
    lambda a, b: a @ b * 0.3,
    lambda a, b: jax.nn.sigmoid(a) + b,
    lambda a, b: jnp.maximum(a, b),
    lambda a, b: a - jnp.mean(b, axis=-1, keepdims=True),
    lambda a, b: a / (1.0 + jnp.sum(b * b, axis=-1, keepdims=True)),
    lambda a, b: jnp.where(a > b, a, 0.7 * b),
    lambda a, b: jnp.exp(-jnp.abs(a)) * b.T,
)


def random_program(size: int, seed: int) -> Callable[[Any, Any], Any]:
    """Return a program of about `size` StableHLO ops on two matrices, with a scan."""
    generator = np.random.default_rng(seed)
    count = max((size - 20) // 17, 12)  # a step has about sixteen ops
    choices = generator.integers(0, len(_STEPS), count)
    picks = generator.random(count)

    def body(carry: Any, _: Any) -> tuple[Any, Any]:
        a, b = carry
        return (b, _normal(_STEPS[3](a, b) + jnp.tanh(a))), jnp.sum(a * b)

    def program(a: Any, b: Any) -> Any:
        (a, b), sums = jax.lax.scan(body, (a, b), None, length=TRIPS)
        values = [a, b]
        for choice, pick in zip(choices, picks, strict=True):
            other = values[int(pick * len(values))]
            values.append(_normal(_STEPS[choice](values[-1], other)))
        return sum(values), sums

    return program


def _normal(x: Any) -> Any:
    """Return `x` scaled to unit size, so that values of long programs do not vanish."""
    return x * jax.lax.rsqrt(jnp.mean(x * x) + 1e-3)


def arguments(seed: int) -> list[jax.Array]:
    """Return two matrices of normal numbers."""
    generator = np.random.default_rng(seed)
    return [jnp.asarray(generator.normal(size=SHAPE), jnp.float32) for _ in range(2)]


# ---- Faults.


@dataclass(frozen=True)
class Fault:
    """A wrong execution of one op; `kind` is one of `KINDS`."""

    kind: str
    path: OpPath
    iteration: tuple[int, ...]

    def is_at(self, position: Position) -> bool:
        """Return whether the walk is at the op and the iteration of the fault."""
        return position.path == self.path and position.iterations == self.iteration


class Faulty:
    """An executor that makes a fault.

    Attributes:
        changed: whether the fault has changed a bit.
    """

    def __init__(self, inner: Executor, fault: Fault) -> None:
        self._inner, self._fault = inner, fault
        self.first_key, self.stochastic = inner.first_key, inner.stochastic
        self.is_wide = inner.is_wide
        self.changed = False

    def identity(
        self, i: Instruction, key: RoundingKey, position: Position
    ) -> Hashable:
        """Return an identity that no other instruction shares, for the faulty op."""
        if self._fault.is_at(position):
            return "faulty", self._inner.identity(i, key, position)
        return self._inner.identity(i, key, position)

    def execute(
        self,
        i: Instruction,
        operands: Sequence[Any],
        key: RoundingKey,
        position: Position,
    ) -> Sequence[Any]:
        """Return the results of an instruction, wrong at the fault."""
        right = self._inner.execute(i, operands, key, position)
        if not (self._fault.is_at(position) and is_suitable(i, self._fault.kind)):
            return right
        wrong = self._wrong(i, operands, right, key, position)
        pairs = zip(wrong, right, strict=True)
        self.changed |= any(
            bytes(np.asarray(w)) != bytes(np.asarray(r)) for w, r in pairs
        )
        return wrong

    def _wrong(
        self,
        i: Instruction,
        operands: Sequence[Any],
        right: Sequence[Any],
        key: RoundingKey,
        position: Position,
    ) -> Sequence[Any]:
        kind = self._fault.kind
        if kind == "order":
            return self._inner.execute(i, _reversed(i, operands), key, position)
        x = np.array(right[0], np.float32)
        return [jnp.asarray(_SPOILED[kind](x).astype(right[0].dtype)), *right[1:]]

    def enter(self, array: Any) -> Any:
        """Return the array unchanged."""
        return array

    def leave(self, array: Any, dtype: Any) -> Any:
        """Return the array unchanged."""
        return array


def _truncated(x: np.ndarray) -> np.ndarray:
    """Return the numbers rounded toward zero, without their last bit."""
    return (x.view(np.uint32) & np.uint32(0xFFFFFFFE)).view(np.float32)


def _overflowed(x: np.ndarray) -> np.ndarray:
    x.flat[np.argmax(np.abs(x))] = np.inf
    return x


def _negated(x: np.ndarray) -> np.ndarray:
    at = np.argmax(np.abs(x))
    x.flat[at] = -x.flat[at]
    return x


_SPOILED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rounding": _truncated,
    "overflow": _overflowed,
    "sign": _negated,
}


def _reversed(i: Instruction, operands: Sequence[Any]) -> list[Any]:
    """Return the operands in reverse order of summation."""
    if isinstance(i, NcMatmul):
        d = i.dimensions
        axes = (d.lhs_contract, d.rhs_contract)
        return [jnp.flip(x, a) for x, a in zip(operands, axes, strict=True)]
    assert isinstance(i, TensorReduce)
    return [jnp.flip(operands[0], i.axes), operands[1]]


def is_suitable(i: Instruction, kind: str) -> bool:
    """Return whether an instruction can have this kind of fault."""
    if i.results[0].type.dtype not in (np.float32, ml_dtypes.bfloat16):
        return False
    if kind == "order":
        return isinstance(i, NcMatmul) or (
            isinstance(i, TensorReduce) and i.op == "add"
        )
    return isinstance(i, NcMatmul | TensorReduce | TensorTensor | Activation)


# ---- Trials.


@dataclass(frozen=True)
class Case:
    """A program, its sides, the places where a fault may be, by kind, and the numbers
    of the ops in the records."""

    setting: Setting
    actual: Side
    same: Side
    float32: Side
    arguments: Sequence[Any]
    places: dict[str, list[Where]]
    numbers: dict[OpPath, int]

    @property
    def ops(self) -> int:
        """The number of ops that the walk reaches."""
        return len(self.numbers)

    @classmethod
    def of(cls, size: int, seed: int, policy: Policy) -> Case:
        """Return the case of a random program of this size, under a policy."""
        values = arguments(seed)
        avals = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in values)
        program = random_program(size, seed)
        captured = capture(
            lambda a, b: jax.tree.leaves(program(a, b)), avals, ("a", "b")
        )
        setting = Setting(program=captured.program, target=resolve_target(TARGET))
        sides = [setting.emulated(policy), setting.emulated(policy)]
        found: list[Where] = []

        def heard(path: OpPath, iterations: tuple[int, ...], errors: Compared) -> None:
            found.append((path, iterations))

        ParallelWalk(sides[0], sides[1], heard, isolates=False).run(values)
        return cls(
            setting,
            sides[0],
            sides[1],
            setting.side("float32", policy),
            values,
            {kind: list(_places(sides[0], found, kind)) for kind in KINDS},
            {path: n for n, path in enumerate(dict.fromkeys(s for s, _ in found))},
        )

    def faulty(self, fault: Fault) -> Side:
        """Return the actual side with a fault."""
        return replace(self.actual, executor=Faulty(self.actual.executor, fault))

    def compare(self, actual: Side, reference: Side, tolerance: float) -> Comparison:
        """Return the comparison of two sides, without names."""
        fields = ("name", "setting", "target", "policy", "reference", "baseline")
        names: dict[str, str] = dict.fromkeys(fields, "")
        return compare_sides(
            self.setting,
            actual,
            reference,
            self.arguments,
            tolerance=tolerance,
            explain=tolerance == 0,
            names=names,
        )


def _places(side: Side, found: Sequence[Where], kind: str) -> Iterator[Where]:
    suitable = {
        op
        for block, lowered in side.regions.items()
        for op, span in zip(lowered.region.ops, side.spans(block), strict=True)
        if any(is_suitable(i, kind) for i in span.instructions if not i.blocks)
    }
    for path, iterations in found:
        in_time = not iterations or iterations[0] == FAULTY_ITERATION
        if path.op in suitable and in_time:
            yield path, iterations


@dataclass(frozen=True)
class Trial:
    """The result of one injected fault.

    Attributes:
        named: whether the same policy names it first, with iteration and cause.
        stands_out: whether it is the worst outlier in isolation against FP32.
        diverges: whether it is the first op beyond the default tolerance against FP32.
    """

    kind: str
    ops: int
    named: bool
    stands_out: bool
    diverges: bool


def trials(
    faults: int, sizes: Sequence[int] = SIZES, seed: int = 0, policy: str = "bf16"
) -> Iterator[Trial]:
    """Inject faults of every kind and size in turn, and yield the results."""
    generator = np.random.default_rng(seed)
    cases = [
        Case.of(size, seed + n, Policy.preset(policy)) for n, size in enumerate(sizes)
    ]
    done = 0
    while done < faults:
        case = cases[done % len(cases)]
        kind = KINDS[done // len(cases) % len(KINDS)]
        trial = _trial(case, kind, generator)
        if trial is not None:
            done += 1
            yield trial


def _trial(case: Case, kind: str, generator: np.random.Generator) -> Trial | None:
    """Return the result of one fault, or None if it has changed no bit."""
    places = case.places[kind]
    if kind == "sign":
        places = [p for p in places if p[1]]
    path, iteration = places[generator.integers(len(places))]
    side = case.faulty(Fault(kind, path, iteration))
    against_same = case.compare(side, case.same, 0.0)
    assert isinstance(side.executor, Faulty)
    if not side.executor.changed:
        return None
    first = against_same.first_divergence
    number = case.numbers[path]
    against_float32 = case.compare(side, case.float32, 0.1)
    far = against_float32.first_divergence
    outliers = against_float32.outliers()
    return Trial(
        kind,
        case.ops,
        named=first is not None
        and first.record.number == number
        and first.iteration == iteration
        and [c.number for c in first.causes] == [number],
        stands_out=bool(outliers) and outliers[0].number == number,
        diverges=far is not None and far.record.number == number,
    )
