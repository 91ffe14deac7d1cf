"""One large matmul against native FP32: the cost of the order of addition.

The native side is always XLA's FP32 dot, which adds in its own order. The emulated side
rounds the operands as its policy says and adds tile by tile along the array's rows.
Only run time is measured; the host's kernels are compiled before.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.harness import Effort, Result, compare_calls, row

SIZE = 1024


class Case(NamedTuple):
    """An emulated matmul and the target of its run-time ratio, if any."""

    target: str
    policy: str | nj.Policy
    ratio: float | None


SPARSE = nj.Policy(auto_cast="matmult", auto_cast_type="bf16", sparsity="4:16")
# The MX cases quantize both operands, the sparse one prunes the right one.
CASES: dict[str, Case] = {
    "bf16": Case("trn2", "bf16", 1.3),
    "fp8": Case("trn2", "fp8", 2.0),
    "mxfp8": Case("trn3", "mxfp8", 2.2),
    "mxfp4": Case("trn3", "mxfp4", 2.2),
    "sparse": Case("trn2", SPARSE, 2.0),
    "tf32": Case("trn2", "tf32", None),
    "fp32": Case("trn2", "fp32", 4.5),
}


def matmul(case: Case, effort: Effort) -> Result:
    """Measure emulated over native run time of a square product of FP32 arrays."""
    generator = np.random.default_rng(0)
    lhs, rhs = (
        jnp.asarray(generator.standard_normal((SIZE, SIZE), np.float32))
        for _ in range(2)
    )
    dot = lambda x, w: jnp.dot(x, w)  # noqa: E731
    emulated = nj.jit(dot, target=case.target, policy=case.policy)
    sizes = {"m": SIZE, "k": SIZE, "n": SIZE, "dtype": "float32", "on": case.target}
    return compare_calls(jax.jit(jnp.dot), emulated, (lhs, rhs), effort, sizes=sizes)


for _name, _case in CASES.items():
    row(f"matmul/{_name}", target=_case.ratio)(functools.partial(matmul, _case))
