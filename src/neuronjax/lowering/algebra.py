"""Rules of linear algebra, of Fourier transforms, and of calls to the host.

Complex operands arrive as pairs of real ones, in ops of dialect "neuronjax" that the
rewriting of complex numbers makes; otherwise these ops are StableHLO's.
"""

from __future__ import annotations

import numpy as np

from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.ir import host_functions
from neuronjax.ir.algebra_set import Cholesky, Fft, HostCall, TriangularSolve
from neuronjax.ir.host_functions import HostFunction
from neuronjax.ir.instruction_set import Memset
from neuronjax.ir.program import Op
from neuronjax.lowering.complex_rewriting import COMPLEX
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.registry import lowers
from neuronjax.policy import Policy

_REAL: tuple[tuple[bool, ...], tuple[bool, ...]] = ((), ())


@lowers("stablehlo.cholesky", "neuronjax.complex_cholesky")
def cholesky(op: Op, context: Context) -> Instructions:
    lower = bool(op.attributes.get("lower", False))
    yield context.whole(op, Cholesky, "gpsimd", rounds=True, lower=lower)


@lowers("stablehlo.triangular_solve", "neuronjax.complex_triangular_solve")
def triangular_solve(op: Op, context: Context) -> Instructions:
    a = op.attributes
    flags = {n: bool(a[n]) for n in ("left_side", "lower", "unit_diagonal")}
    fields = dict(flags, transpose_a=a["transpose_a"])
    yield context.whole(op, TriangularSolve, "gpsimd", rounds=True, **fields)


@lowers("neuronjax.fft")
def fft(op: Op, context: Context) -> Instructions:
    kind, length = op.attributes["fft_type"], tuple(op.attributes["fft_length"])
    fields = dict(fft_type=kind, fft_length=length)
    yield context.whole(op, Fft, "gpsimd", rounds=True, **fields)


def host_call(op: Op, context: Context) -> Instructions:
    """Lower a custom call of target `host_functions.CALL`, if the policy allows it and
    this process captured the program."""
    text = str(op.attributes.get("backend_config", ""))
    function = host_functions.find(text)
    if function is None:
        what = text or host_functions.CALL
        raise _refused(op, what, "capture the program again, in this process")
    if function.kind == "callback" and context.policy.callbacks != "host":
        yield from _left_out(op, function, context)
        return
    if function.kind == "algebra" and not context.policy.host_custom_calls:
        raise _refused(
            op,
            function.name,
            "compute it outside the emulated function, or let the host do it inside: "
            f"{_changed(context.policy, 'host_custom_calls', True)}",
        )
    complex_operands, complex_results = op.attributes.get(COMPLEX, _REAL)
    yield context.whole(
        op,
        HostCall,
        "host",
        function=function,
        complex_operands=complex_operands,
        complex_results=complex_results,
    )


def _left_out(op: Op, function: HostFunction, context: Context) -> Instructions:
    """Lower a callback that does not run: raise an error, or fill its results."""
    if context.policy.callbacks == "error":
        on_host = _changed(context.policy, "callbacks", "host")
        raise _refused(
            op,
            f"{function.name}, which here calls {function.shown} ({function.line})",
            "return the values and call it outside; or run it on the host, "
            f'{on_host}; or leave it out, callbacks="drop"'
            f"{_EQUINOX if 'equinox' in function.line else ''}",
        )
    for result in context.results(op):
        value = np.broadcast_to(_unmistakable(result.type.dtype), result.type.shape)
        yield context.make(Memset, (), (result,), engine="gpsimd", value=value)


def _changed(policy: Policy, field: str, value: object) -> str:
    """Return how a user writes this policy with one field changed."""
    if policy == Policy():
        words = f"{field}={value}"
    elif _is_its_name(policy):
        words = f"{policy.name},{field}={value}"
    else:
        return f"policy=dataclasses.replace(policy, {field}={value!r})"
    return f'policy="{words}" (--policy {words})'


def _is_its_name(policy: Policy) -> bool:
    try:
        return policy == Policy.preset(policy.name or "")
    except InvalidProgramError:
        return False


_EQUINOX = (
    "; or, for equinox.error_if, start Python with EQX_ON_ERROR=nan (or =off) in the "
    "environment"
)


def _unmistakable(dtype: np.dtype) -> np.ndarray:
    """Return the recognizable fill value of a result that was not computed."""
    if dtype == np.bool_:
        return np.ones((), dtype)
    largest = np.iinfo(dtype).max if dtype.kind in "iu" else np.nan
    return np.asarray(largest).astype(dtype)


def _refused(op: Op, what: str, remedy: str) -> UnsupportedError:
    return op.error(UnsupportedError, f"no NeuronCore has {what}", remedy)
