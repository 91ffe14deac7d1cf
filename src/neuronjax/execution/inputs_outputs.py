"""The arguments of a program, opaque to XLA, and its results, with one NaN pattern.

Besides arguments and results, a call carries what stochastic rounding, delayed scaling
and probes need and return, as named fields. Both records are pytrees, so they pass
unchanged through `jax.jit`, `custom_vjp`, `custom_vmap` and `shard_map`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.errors import InvalidProgramError
from neuronjax.ir.instruction import Block, InstructionProgram
from neuronjax.ir.instruction_set import (
    Activation,
    NcMatmul,
    NcMatmulMx,
    NcMatmulSparse,
    TensorReduce,
)
from neuronjax.numerics.exact import kept_apart, opaque_by, opaque_zero, zero_bits


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CallContext:
    """The values that accompany the arguments of a call.

    Attributes:
        call_index: uint32 scalar, part of every stochastic rounding key.
        amax_history: float32 [amax_history_length, amax_slots], newest step first, for
            delayed scaling.
    """

    call_index: Any = None
    amax_history: Any = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        results: one array per result of the program.
        amax_history: the history for the next call, if this call had one.
        statistics: the counts of the probes: arrays by name, with a leading axis of
            probes; see `Statistics.arrays`.
    """

    results: Sequence[Any]
    amax_history: Any = None
    statistics: Any = None


def split_complex(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Return arrays with the real and the imaginary part in place of a complex one."""
    return [
        part
        for x in arrays
        for part in ((lax.real(x), lax.imag(x)) if jnp.iscomplexobj(x) else (x,))
    ]


def joined_complex(
    parts: Iterable[jax.Array], is_complex: Iterable[bool]
) -> list[jax.Array]:
    """Return the inverse of `split_complex`, given which of its arrays are complex."""
    rest = iter(parts)
    return [
        lax.complex(next(rest), next(rest)) if c else next(rest) for c in is_complex
    ]


def check_history(program: InstructionProgram, history: Any) -> None:
    """Refuse an amax history whose shape is not the program's."""
    expected = (program.amax_history_length, program.amax_slots)
    if tuple(history.shape) != expected:
        raise InvalidProgramError(
            f"the amax history has shape {tuple(history.shape)}, but the program needs "
            f"{expected} (steps, tensors)",
            remedy="make the history with step.init_amax_history(*args)",
        )


Arrays = Sequence[jax.Array]


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Keep `jax_debug_nans` and `jax_debug_infs` from checking constants and copies.

    These options stop at the first result that is NaN or Inf. Op by op every
    instruction has results, including constants: the -Inf from which a maximum starts,
    or the NaN that `jnp.var` may choose. Such constants, and copies of them, do not
    come from arithmetic; results computed from them are checked.
    """
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


def make_zero(eager: bool) -> jax.Array:
    """Return the opaque zero of a run, which is made once."""
    zero = jax.jit(opaque_zero)()
    # Otherwise XLA computes the zero again in every kernel.
    return zero if eager else kept_apart(zero)


def entering(main: Block, arguments: Arrays, zero: jax.Array) -> Arrays:
    """Return the arguments, made opaque where XLA could fold them in its own order.
    Arguments may be constants of an outer jit. To save a pass over memory, arguments
    read only by elementary functions (kernels of their own) and sums (which have an
    opaque operand) stay as they are."""
    read = {
        view.buffer.number
        for i in main.instructions
        if not isinstance(i, Activation | TensorReduce)
        for view in i.operands
    }
    nested = any(i.blocks for i in main.instructions)  # a block may capture any
    hidden = zero_bits(zero)
    with unchecked():
        return [
            opaque_by(a, hidden) if nested or b.number in read else a
            for b, a in zip(main.arguments, arguments, strict=True)
        ]


_CANONICAL = (Activation, NcMatmul, NcMatmulMx, NcMatmulSparse)


def leaving(main: Block, results: Arrays) -> list[jax.Array]:
    """Return the results with canonical NaNs, which some instructions already write."""
    written = {
        buffer.number
        for i in main.instructions
        if isinstance(i, _CANONICAL) and i.label != "host"
        for buffer in i.results
    }
    return [
        x if view.buffer.number in written else canonical_nan(x)
        for view, x in zip(main.results, results, strict=True)
    ]


@functools.partial(jax.jit, inline=True)  # inlined: the NaN stays a literal
def canonical_nan(x: jax.Array) -> jax.Array:
    """Return `x` with one bit pattern for every NaN. The patterns that the host's
    processor returns depend on the code that XLA generates."""
    if x.dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        return lax.select(lax.ne(x, x), lax.full_like(x, np.nan), x)
    bits = jax.dtypes.itemsize_bits(x.dtype)
    if bits != 8 or not jnp.issubdtype(x.dtype, jnp.floating):
        return x  # FP4 has no NaN
    # Selected as integers, because XLA selects FP8 numbers by way of FP16.
    nan = np.asarray(np.nan, x.dtype).view(np.uint8)
    codes = lax.bitcast_convert_type(x, jnp.uint8)
    return lax.bitcast_convert_type(jnp.where(x != x, nan, codes), x.dtype)
