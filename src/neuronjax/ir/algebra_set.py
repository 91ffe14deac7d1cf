"""Instructions for linear algebra, Fourier transforms, and work of the host.

A NeuronCore has no unit for these. `Cholesky`, `TriangularSolve` and `Fft` represent
library routines of GpSimdE, the engine that can be programmed freely. A complex number
is two operands or results, its real and imaginary part. The routines compute in FP32
and round each result once; `engines.linear_algebra` and `engines.fft` define how.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from neuronjax.ir.host_functions import HostFunction
from neuronjax.ir.instruction import Instruction, Label


@dataclass(frozen=True, kw_only=True)
class Cholesky(Instruction):
    """The triangular factor of symmetric positive definite matrices, [..., n, n].

    operands: a, or its real and imaginary parts; only one triangle is read. A matrix
    that is not positive definite gives NaNs in the factor. The factor's other triangle
    is zero."""

    lower: bool  # whether the factor is L with a = L L^H, and not U with a = U^H U
    label: ClassVar[Label] = "modelled"


@dataclass(frozen=True, kw_only=True)
class TriangularSolve(Instruction):
    """The solution of op(a) x = b, or x op(a) = b, with triangular a, [..., n, n].

    operands: a and b, or (a_re, a_im, b_re, b_im); only one triangle of a is read."""

    left_side: bool  # whether op(a) is left of x
    lower: bool  # whether a's lower triangle is read, not the upper
    unit_diagonal: bool  # whether the diagonal counts as ones and is not read
    transpose_a: str  # op, "NO_TRANSPOSE", "TRANSPOSE" or "ADJOINT"
    label: ClassVar[Label] = "modelled"


@dataclass(frozen=True, kw_only=True)
class Fft(Instruction):
    """A discrete Fourier transform of the last axes (`stablehlo.fft`).

    operands: real and imaginary part, or the real part alone for RFFT; the results are
    a real and an imaginary part too, or the real part alone for IRFFT."""

    fft_type: str  # "FFT", "IFFT", "RFFT" or "IRFFT"
    #: The lengths of the last one to three axes of the complex array or, for RFFT and
    #: IRFFT, of the real array.
    fft_length: tuple[int, ...]
    label: ClassVar[Label] = "modelled"


@dataclass(frozen=True, kw_only=True)
class HostCall(Instruction):
    """A function that the host computes as JAX does, or a callback that only reads
    values.

    The policy must permit it (`host_custom_calls`, `callbacks`), except `jax.debug`."""

    function: HostFunction
    #: For each of its operands, whether it is a complex pair; empty if none is.
    complex_operands: tuple[bool, ...] = ()
    complex_results: tuple[bool, ...] = ()  # likewise for its results
    label: ClassVar[Label] = "host"
