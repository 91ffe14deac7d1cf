"""Rules of linear algebra and Fourier transforms, and of calls of the host.

Complex operands arrive as pairs of real ones, in ops of dialect "neuronjax" that the
rewriting of complex numbers makes; everything else about them is StableHLO's.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuronjax.errors import UnsupportedError
from neuronjax.ir import host_functions
from neuronjax.ir.algebra_set import Cholesky, Fft, HostCall, TriangularSolve
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.program import Op
from neuronjax.lowering.complex_rewriting import COMPLEX
from neuronjax.lowering.context import Context
from neuronjax.lowering.registry import lowers

Instructions = Iterator[Instruction]

_REAL: tuple[tuple[bool, ...], tuple[bool, ...]] = ((), ())


@lowers("stablehlo.cholesky", "neuronjax.complex_cholesky")
def cholesky(op: Op, context: Context) -> Instructions:
    yield context.arithmetic(
        Cholesky,
        context.operands(op),
        context.results(op),
        engine="gpsimd",
        lower=bool(op.attributes.get("lower", False)),
    )


@lowers("stablehlo.triangular_solve", "neuronjax.complex_triangular_solve")
def triangular_solve(op: Op, context: Context) -> Instructions:
    yield context.arithmetic(
        TriangularSolve,
        context.operands(op),
        context.results(op),
        engine="gpsimd",
        left_side=bool(op.attributes["left_side"]),
        lower=bool(op.attributes["lower"]),
        unit_diagonal=bool(op.attributes["unit_diagonal"]),
        transpose_a=op.attributes["transpose_a"],
    )


@lowers("neuronjax.fft")
def fft(op: Op, context: Context) -> Instructions:
    yield context.arithmetic(
        Fft,
        context.operands(op),
        context.results(op),
        engine="gpsimd",
        fft_type=op.attributes["fft_type"],
        fft_length=tuple(op.attributes["fft_length"]),
    )


def host_call(op: Op, context: Context) -> Instructions:
    """A custom call of target `host_functions.CALL`.

    Raises:
        UnsupportedError: the policy does not allow it, or the program was captured by
            another process.
    """
    text = str(op.attributes.get("backend_config", ""))
    function = host_functions.find(text)
    if function is None:
        raise _refused(
            op,
            text or host_functions.CALL,
            "capture the program again, in this process",
        )
    if not context.policy.host_custom_calls:
        raise _refused(
            op,
            function.name,
            "compute it outside the emulated function, or let the host do it inside: "
            "dataclasses.replace(policy, host_custom_calls=True)",
        )
    complex_operands, complex_results = op.attributes.get(COMPLEX, _REAL)
    yield context.make(
        HostCall,
        context.operands(op),
        context.results(op),
        engine="host",
        function=function,
        complex_operands=complex_operands,
        complex_results=complex_results,
    )


def _refused(op: Op, what: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(
        f"no NeuronCore has {what}",
        op=op.name,
        location=op.location.source,
        remedy=remedy,
    )
