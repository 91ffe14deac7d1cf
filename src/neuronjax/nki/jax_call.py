"""Calls of a kernel from JAX: one primitive, with a derivative if the user gives one.

A specialised kernel is a primitive of `capture.kernel_calls` inside a jitted function,
so jit, vmap and the capture of `nj.jit` each see one operation. `defvjp` works like
that of `jax.custom_vjp`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from neuronjax.capture import kernel_calls
from neuronjax.errors import InvalidProgramError
from neuronjax.execution.kernels import ranks
from neuronjax.execution.kernels.running import KernelPlan, runner
from neuronjax.hardware import Target
from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.kernel import KernelProgram
from neuronjax.ir.kernel_call import KernelFunction
from neuronjax.ir.kernel_numerics import USUAL, KernelNumerics
from neuronjax.ir.program import TensorType
from neuronjax.nki import arguments

#: (arrays, key) -> (results, written arguments, faults); see
#: `execution.kernels.faults`.
Run = Callable[[list[jax.Array], jax.Array], tuple[list[jax.Array], ...]]


def kernel_function(
    program: KernelProgram,
    plan: KernelPlan,
    for_target: Callable[[Target], KernelFunction],
    devices: int = 0,
    numerics: KernelNumerics = USUAL,
) -> KernelFunction:
    """Return a specialised kernel as the object that captured programs contain.

    Args:
        for_target: returns the same kernel for another chip.
        devices: how many devices the surrounding mesh has; they are the ranks of a
            kernel with collectives.
        numerics: the kernel's own numerics; a field of the surrounding program's that
            is not the default overrides the kernel's.
    """
    run = ranks.runner(plan) if plan.ranks else runner(plan)
    lead = (plan.ranks,) if plan.ranks and not devices else ()

    def flat(
        arrays: Any, key: jax.Array, around: KernelNumerics = USUAL
    ) -> list[jax.Array]:
        outputs = run(arrays, key, numerics.inside(around))
        return list(itertools.chain.from_iterable(outputs))

    written = [program.arguments[n] for n in plan.written]
    types = [_type(lead + a.shape, a.dtype) for a in (*program.results, *written)]
    types += [TensorType((), np.dtype(np.int32))] * plan.checks_bounds
    return KernelFunction(
        program=program,
        arguments=tuple(_type(lead + s.shape, s.dtype) for s in program.arguments),
        results=tuple(types),
        run=flat,
        for_target=for_target,
        devices=devices and plan.ranks,
        numerics=numerics,
    )


def _type(shape: tuple[int, ...], dtype: str) -> TensorType:
    return TensorType(tuple(shape), np.dtype(dtypes.info(dtype).numeric))


def jitted(function: KernelFunction, plan: KernelPlan) -> Run:
    """Return a kernel as a function of arrays and a key; it is one op in a trace."""
    count = len(function.program.results)
    end = count + len(plan.written)

    def nki_kernel(arrays: list[jax.Array], key: jax.Array) -> tuple[list, ...]:
        outputs = kernel_calls.call(function, arrays, key)
        return outputs[:count], outputs[count:end], outputs[end:]

    return jax.jit(nki_kernel, inline=True)


def is_traced(arrays: list[Any]) -> bool:
    """Return whether one of the arrays is a tracer of a JAX transformation."""
    return any(isinstance(a, Tracer) for a in arrays)


@dataclass(frozen=True)
class KernelDerivative:
    """The derivative that a user gave to `defvjp`."""

    forward: Callable[..., Any]  # arguments -> (results, residuals)
    #: (static arguments, residuals, cotangents) -> cotangents.
    backward: Callable[..., Any]
    static: tuple[int, ...] = ()  # positions of arguments without arrays

    def call(self, name: str, primal: Callable[..., Any], bound: Any) -> Any:
        """Call a kernel; `jax.grad` of the call uses this derivative. `primal` is the
        kernel without it, `bound` the `inspect.BoundArguments` with defaults applied.
        Every argument without arrays must be in `static`."""
        if bound.kwargs:
            raise InvalidProgramError(
                f"keyword-only arguments {', '.join(bound.kwargs)} of a kernel with a "
                "derivative",
                op=f"nki.{name}",
                remedy="pass positional arguments",
            )
        names = list(bound.arguments)
        for n, value in enumerate(bound.args):
            arrays: list[Any] = []
            arguments.flatten(value, arrays)
            if not arrays and n not in self.static:
                raise InvalidProgramError(
                    f"argument {n} ({names[min(n, len(names) - 1)]}) holds no array "
                    "and cannot have a cotangent",
                    op=f"nki.{name}",
                    remedy="declare this argument non-differentiable: "
                    f"kernel.defvjp(forward, backward, nondiff_argnums=({n},))",
                )
        differentiable = jax.custom_vjp(
            functools.wraps(self.forward)(lambda *args: primal(*args)),
            nondiff_argnums=self.static,
        )
        differentiable.defvjp(self.forward, self.backward)
        return differentiable(*kernel_calls.alike(bound.args))
