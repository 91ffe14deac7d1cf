"""Questions about values: multiply-adds, division, NaNs, integers, transposition, sums
over ranks, and ScalarE's functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import INSTANCES, resolve_target
from neuronjax.ir.collectives.algorithms import ALGORITHMS, ALL_REDUCE, fold_plan
from neuronjax.ir.collectives.placement import Placement
from neuronjax.ir.collectives.selection import select
from neuronjax.ir.fold_plan import FoldPlan
from neuronjax.numerics.float_format import FloatFormat, get_format
from neuronjax.testing.silicon import functions, probes
from neuronjax.testing.silicon.cases import ProbeCase, flushed, fused, toward_zero
from neuronjax.testing.silicon.question import (
    WORDS,
    Answer,
    Answers,
    Question,
    ask,
    each,
    same_bits,
)
from neuronjax.testing.silicon.roundings import to_integer

F32 = np.float32
_ELEMENTWISE = "integers, comparison, selection"
_MOVED = "movement, gather, sort, top-k, control flow"


def values() -> Iterator[Question]:
    for family in (_arithmetic, _specials, _integers, _transposed, _ranks):
        yield from family()
    for name in probes.FUNCTIONS:
        yield _function(name)


def _arithmetic() -> Iterator[Question]:
    # The instructions: tensor_scalar on VectorE, activation on ScalarE.
    claims = {"vector": _ELEMENTWISE, "scalar": "elementary functions"}
    for engine, claim in claims.items():
        alternatives: dict[str, Answer] = {
            "rounded twice": lambda c: c["x"] * c["c"] + c["y"],
            "multiply-add": lambda c: fused(c["x"], c["c"], c["y"]),
        }
        yield ask(f"{WORDS[engine]}: a * b + c", claim, f"fused_{engine}", alternatives)
    one, claim = np.float64(1), "elementary functions"
    alternatives = {
        "correctly rounded": lambda c: (one / c["x"]).astype(F32),
        "cut off": lambda c: toward_zero(one / c["x"]),
    }
    yield ask("VectorE: reciprocal", claim, "reciprocal", alternatives)
    alternatives = {
        "correctly rounded": lambda c: c["x"] / c["y"],
        "times the reciprocal": lambda c: c["x"] * (F32(1) / c["y"]),
        "cut off": lambda c: toward_zero(c["x"].astype(np.float64) / c["y"]),
    }
    yield ask("VectorE: division", claim, "divide", alternatives)


def _specials() -> Iterator[Question]:
    for op, better in (("maximum", np.greater), ("minimum", np.less)):
        name, probe = f"VectorE: {op}", f"special_{op}"
        alternatives = each(
            {"the NaN": getattr(np, op), "the number": getattr(np, f"f{op[:3]}")},
            lambda function, c: function(c["x"], c["y"]),
        )
        alternatives |= each(
            {"the first": "yx", "the second": "xy"},
            lambda order, c, f=better: _kept(f, c[order[0]], c[order[1]]),
        )
        numbers: Any = {"where": lambda c: ~_both_zero(c)}
        yield ask(f"{name} with NaN", "NaNs", probe, alternatives, **numbers)
        zeros: dict[str, Answer] = {
            "-0 is below +0": lambda c, op=op: _of_zeros(op, c["x"], c["y"]),
            "the first": lambda c: c["x"],
            "the second": lambda c: c["y"],
        }
        yield ask(f"{name} of zeros", "NaNs", probe, zeros, where=_both_zero)
    payloads = each(
        {"0x7fc00000": 0x7FC00000, "0x7fffffff": 0x7FFFFFFF, "0xffc00000": 0xFFC00000},
        lambda bits, c: np.full(c["x"].shape, bits, np.uint32).view(F32),
    )
    payloads["the first operand's"] = lambda c: _payload(c["x"], c["y"])
    payloads["the second operand's"] = lambda c: _payload(c["y"], c["x"])
    name, probe = "VectorE: bits of a NaN sum", "special_add"
    yield ask(name, "NaNs", probe, payloads, "", where=_has_nan, agrees=same_bits)


def _kept(better: np.ufunc, other: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return `other` where `better(other, kept)`; elsewhere, and at a NaN, `kept`."""
    return np.where(better(other, kept), other, kept)


def _has_nan(case: ProbeCase) -> np.ndarray:
    return np.isnan(case["x"]) | np.isnan(case["y"])


def _both_zero(case: ProbeCase) -> np.ndarray:
    return (case["x"] == 0) & (case["y"] == 0)


def _of_zeros(op: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    both = np.logical_and if op == "maximum" else np.logical_or
    return np.where(both(np.signbit(x), np.signbit(y)), F32(-0.0), F32(0))


def _payload(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return `first` where it is a NaN and `second` elsewhere, as quiet NaNs."""
    chosen = np.where(np.isnan(first), first.view(np.uint32), second.view(np.uint32))
    return (chosen | np.uint32(0x00400000)).view(F32)


def _integers() -> Iterator[Question]:
    for engine, op, _ in probes.INTEGERS:
        alternatives: dict[str, Answer] = {
            "exact, lower 32 bits": lambda c, op=op: _wrapped(op, c),
            "by way of FP32": lambda c, op=op: _by_float(op, c),
        }
        name, probe = f"{WORDS[engine]}: int32 {op}", f"integers_{engine}_{op}"
        ours = list(alternatives)[engine == "vector"]
        yield ask(name, _ELEMENTWISE, probe, alternatives, ours)


def _wrapped(op: str, case: ProbeCase) -> np.ndarray:
    return getattr(np, op)(case["x"], case["y"]).astype(np.int32).astype(np.int64)


def _by_float(op: str, case: ProbeCase) -> np.ndarray:
    x, y = (case[name].astype(F32) for name in "xy")
    return to_integer(getattr(np, op)(x, y), "int32", np.rint)


def _transposed() -> Iterator[Question]:
    alternatives: dict[str, Answer] = {
        "the same bits": lambda c: c["x"].T,
        "by way of FP32": lambda c: _quiet(flushed(c["x"].T)),
        "times the identity": _through_identity,
    }
    name, probe = "VectorE: transposition", "transpose_vector"
    yield ask(name, _MOVED, probe, alternatives, agrees=same_bits)
    name, probe = "TensorE: transposition", "transpose_tensor"
    yield dataclasses.replace(
        ask(name, _MOVED, probe, alternatives, agrees=same_bits),
        where=lambda c: ~(np.abs(c["x"].T) < F32(2.0**-90)),
        ours=lambda case: list(alternatives)[2 * (case.chip == "trn1")],
    )


def _quiet(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), F32(np.nan), x)


def _through_identity(case: ProbeCase) -> np.ndarray:
    """Return the transpose by an identity matmul: a NaN or Inf makes its column NaN."""
    x = case["x"].T
    finite = np.isfinite(x).all(axis=1, keepdims=True)
    return np.where(finite, flushed(x), F32(np.nan))


def _ranks() -> Iterator[Question]:
    for dtype in ("float32", "bfloat16"):
        yield Question(
            name=f"all-reduce, {dtype}",
            claim="reductions over devices",
            probes=tuple(n for n, (_, d) in probes.REDUCTIONS.items() if d == dtype),
            answers=lambda case, dtype=dtype: _reductions(case, dtype),
            ours=lambda case, dtype=dtype: _chosen(case, dtype),
        )


def _placement(case: ProbeCase) -> Placement:
    alike = [i for i in INSTANCES.values() if i.chip.name == case.chip]
    largest = max(alike, key=lambda instance: (-instance.hosts, instance.chips))
    return Placement.of(resolve_target(largest.name))


def _chosen(case: ProbeCase, dtype: str) -> str:
    ranks, elements = case["x"].shape
    size_bytes = elements * get_format(dtype).storage_bits // 8
    groups = [range(ranks)]
    plan = select(ALL_REDUCE, size_bytes, groups, _placement(case), environ={})
    return plan.algorithm


def _reductions(case: ProbeCase, dtype: str) -> Answers:
    group = _placement(case).group(range(len(case["x"])))
    sums = {}
    for name in (n for n in ALGORITHMS if n != "left_fold"):  # XLA's own fold
        try:
            plan = fold_plan(name, ALL_REDUCE, group)
        except InvalidProgramError:
            continue  # the algorithm cannot run over this group
        sums[name] = _folded(plan, case["x"], dtype)
    return sums


def _folded(plan: FoldPlan, x: np.ndarray, dtype: str) -> np.ndarray:
    """Return the sum over ranks by `plan`, with partial sums stored in `dtype`."""
    chunks = np.array_split(np.arange(x.shape[1]), plan.chunks)
    size = -(-x.shape[1] // plan.chunks)
    assert all(len(chunk) == size for chunk in chunks)  # the sizes divide 4,096
    fmt = get_format(dtype)
    total = np.empty(x.shape[1], F32)
    for chunk, order in zip(chunks, plan.order, strict=True):
        parts = [x[rank, chunk] for rank in order]
        for stage in plan.stages:
            starts = range(0, len(parts), stage.width)
            groups = [parts[s : s + stage.width] for s in starts]
            parts = [_stored_sum(group, stage.hop, fmt) for group in groups]
        total[chunk] = parts[0]
    return total


def _stored_sum(parts: list[np.ndarray], hop: int, fmt: FloatFormat) -> np.ndarray:
    """Return a left fold that is rounded to `fmt` after every `hop` terms."""
    total = parts[0]
    for number, part in enumerate(parts[1:], 2):
        total = total + part
        if number % hop == 0:
            total = total.astype(fmt.dtype).astype(F32)
    return total


def _function(name: str) -> Question:
    return Question(
        name=f"ScalarE: {name}",
        claim="elementary functions",
        probes=(f"function_{name}",),
        answers=lambda case: functions.answers(name, case["x"]),
        ours=lambda case: functions.OURS,
        where=lambda case: functions.compared(name, case["x"]),
    )
