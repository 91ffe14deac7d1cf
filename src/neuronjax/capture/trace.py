"""A JAX function captured as a StableHLO program for platform "neuron".

Lowering for `neuron` works without the vendor's plugin and is independent of the host:
the cpu and cuda lowerings put LAPACK and cuSOLVER calls and other threefry forms into
the program. Capture always runs with `jax.disable_jit(False)`: under `disable_jit`
scans would be unrolled and calls inlined, which is another program.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from neuronjax.capture import partition
from neuronjax.capture.decode import decode_module
from neuronjax.capture.host_calls import keep_linear_algebra_whole
from neuronjax.capture.refusals import explicit_mesh, refusal
from neuronjax.capture.scaled_matmul import keep_whole
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.ir.program import Program

PLATFORM = "neuron"


@dataclass(frozen=True)
class Capture:
    """A captured function of flat arguments.

    Attributes:
        program: the decoded program; main takes and returns flat leaves.
        out_tree: the pytree of the results.
        out_avals: shape, dtype and weak type of each flat result.
    """

    program: Program
    out_tree: Any
    out_avals: tuple[jax.ShapeDtypeStruct, ...]


class ClosesOverTracersError(InvalidProgramError):
    """The function uses values of an enclosing trace that are not its arguments."""


_state = threading.local()


def capturing() -> bool:
    """Whether this thread is inside `capture` (an inner nj.jit is then a scope)."""
    return getattr(_state, "depth", 0) > 0


@contextlib.contextmanager
def _capture_scope() -> Iterator[None]:
    _state.depth = getattr(_state, "depth", 0) + 1
    try:
        with jax.disable_jit(False):
            yield
    finally:
        _state.depth -= 1


def trace(function: Callable[..., Any], leaves: Sequence[Any]) -> ClosedJaxpr:
    """The jaxpr of a function of flat arrays, traced as `capture` would."""
    with _capture_scope():
        return jax.make_jaxpr(function)(*leaves)


def capture(
    function: Callable[..., Any],
    leaves: tuple[jax.ShapeDtypeStruct, ...],
    names: tuple[str, ...],
) -> Capture:
    """Captures `function(*leaves)`, whose result may be any pytree of arrays.

    Args:
        function: takes flat leaves.
        leaves: shape and dtype of each argument.
        names: the pytree path of each argument, for rules and errors.

    Raises:
        UnsupportedError: 64-bit floats, or complex numbers of them, in the arguments.
    """
    for leaf, name in zip(leaves, names, strict=True):
        check_argument(leaf, name)
    with _capture_scope():
        keep_whole(PLATFORM)
        keep_linear_algebra_whole(PLATFORM)
        traced = _traced(function, leaves)
        try:
            lowered = traced.lower(lowering_platforms=(PLATFORM,))
        except (NotImplementedError, ValueError) as error:
            raise refusal(traced.jaxpr, error) from error
        module = lowered.compiler_ir()
    program = decode_module(module, names)
    if partition.needs_partitioner(program):
        program = partition.partition(program, module)
    out_leaves, out_tree = jax.tree.flatten(traced.out_info)
    if len(program.entry.body.arguments) != len(leaves):
        raise ClosesOverTracersError(
            f"captured {len(program.entry.body.arguments)} arguments of "
            f"{len(leaves)}: the function closes over traced values",
            remedy="pass the values as arguments",
        )
    avals = tuple(
        jax.ShapeDtypeStruct(o.shape, o.dtype, weak_type=o.weak_type)
        for o in out_leaves
    )
    return Capture(program, out_tree, avals)


def _traced(function: Callable[..., Any], leaves: tuple) -> Any:
    try:
        return jax.jit(function, keep_unused=True).trace(*leaves)
    except ValueError as error:
        if named := explicit_mesh(error) or partition.uneven(error):
            raise named from error
        raise


def check_argument(leaf: Any, name: str) -> None:
    """Refuses dtypes that no NeuronCore has.

    Raises:
        UnsupportedError: names the argument and the dtype to use.
    """
    dtype = leaf.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return
    instead = _INSTEAD.get(dtype)
    if instead is not None:
        raise UnsupportedError(
            f"argument {name} has dtype {dtype}, which no NeuronCore has",
            remedy=f"cast it to {instead}",
        )


_INSTEAD = {np.dtype(np.float64): "float32", np.dtype(np.complex128): "complex64"}
