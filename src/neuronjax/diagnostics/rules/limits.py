"""Rules about whole programs: memory, instruction count, 64-bit mode.

The number of instructions is estimated from the tiles of the engines. Counted loops are
unrolled, as by the compiler. Nothing is fused, so the number is a rough upper bound.
"""

from __future__ import annotations

import math

import numpy as np

from neuronjax.diagnostics.op_contexts import OpContext, Settings
from neuronjax.diagnostics.rule import ProgramRule, read_entries
from neuronjax.ir.instruction_set import DotDimensions

# "over the threshold (5000000)": aws-neuron-sdk, issue 987.
MOST_INSTRUCTIONS = 5_000_000

_ROWS, _COLUMNS = 128, 512  # partitions, elements in a partition [A2: matmul tiles]
_FREE = ("func.call", "stablehlo.composite", "stablehlo.constant", "stablehlo.while")


def instructions(context: OpContext) -> int:
    """Return the number of engine instructions of an op, in all loop iterations.

    ASSUMPTION: every engine computes tiles of 128 rows by 512 elements."""
    op = context.op
    if op.name in _FREE or (op.regions and not op.name.startswith("stablehlo.reduce")):
        return 0
    if op.name == "stablehlo.dot_general":
        return context.trips * _dot_tiles(context)
    elements = max((math.prod(r.type.shape) for r in op.results), default=0)
    return context.trips * math.ceil(elements / (_ROWS * _COLUMNS))


def _dot_tiles(context: OpContext) -> int:
    lhs, rhs = (v.type.shape for v in context.op.operands)
    d = DotDimensions.of(context.op)
    batch, m, n, k = d.sizes(lhs, rhs)
    if not d.is_matmul(lhs, rhs, _ROWS):
        return math.ceil(batch * m * n * k / (_ROWS * _COLUMNS))
    tiles = math.ceil(k / _ROWS) * math.ceil(m / _ROWS) * math.ceil(n / _COLUMNS)
    return batch * tiles


def _memory(settings: Settings, count: int) -> str | None:
    program = settings.program
    values = [*program.entry.body.arguments, *program.entry.body.results]
    ops = (op for op in program.walk() if op.name == "stablehlo.constant")
    constants = (result for op in ops for result in op.results)
    needed = sum(
        math.prod(v.type.shape) * v.type.dtype.itemsize for v in (*values, *constants)
    )
    target, lnc = settings.target, settings.policy.lnc
    held = target.chip.hbm_bytes * target.chips // target.logical_cores(lnc)
    if needed <= held:
        return None
    return f"{needed / 2**30:.1f} GiB, but the HBM has {held / 2**30:g} GiB"


def _too_many(settings: Settings, count: int) -> str | None:
    if count <= MOST_INSTRUCTIONS:
        return None
    return f"about {count / 1e6:.0f} million, the limit is 5 million"


def _x64(settings: Settings, count: int) -> str | None:
    body = settings.program.entry.body
    wide = (np.int64, np.uint64, np.float64, np.complex128)
    dtypes = (v.type.dtype for v in (*body.arguments, *body.results))
    return next((str(dtype) for dtype in dtypes if dtype in wide), None)


_TEXT = """
hbm-capacity: error
arguments, results and constants alone do not fit in the HBM of one device
> shard the arrays over devices, or use a narrower dtype
[ERR/EVRF009, EOOM001, EOOM002]

instruction-count: warning
more instructions than the compiler accepts
> smaller batches or shorter loops per program; -O1; more devices
[ERR/EVRF007, EXTP004, EBVF030]

x64-mode: info
64-bit arguments or results: jax_enable_x64 is on
> jax.config.update("jax_enable_x64", False); the device computes in 32 bits
[CLI, DT]
"""
_CHECKS = {"hbm-capacity": _memory, "instruction-count": _too_many, "x64-mode": _x64}

PROGRAM_RULES = tuple(
    ProgramRule(**entry.fields, check=_CHECKS[entry.fields["id"]])
    for entry in read_entries(_TEXT)
)
