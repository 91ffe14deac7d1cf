"""A kernel as JAX sees it: one primitive, and a derivative that the user gives.

A specialised kernel is `capture.kernel_calls`' primitive inside a jitted function, so
that jit, vmap and the capture of `nj.jit` each meet one operation. `defvjp` works as
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

#: (arrays, key) -> (results, written arguments, faults); see `execution.faults`.
Run = Callable[[list[jax.Array], jax.Array], tuple[list[jax.Array], ...]]


def kernel_function(
    program: KernelProgram,
    plan: KernelPlan,
    for_target: Callable[[Target], KernelFunction],
    devices: int = 0,
    numerics: KernelNumerics = USUAL,
) -> KernelFunction:
    """A specialised kernel as programs hold it.

    Args:
        program: of the kernel.
        plan: of the program.
        for_target: the same kernel for another chip.
        devices: of the mesh around it, which are its ranks if it has collectives.
        numerics: its own, where the program around it has the usual ones.
    """
    run = ranks.runner(plan) if plan.ranks else runner(plan)
    lead = (plan.ranks,) if plan.ranks and not devices else ()

    def flat(
        arrays: Any, key: jax.Array, around: KernelNumerics = USUAL
    ) -> list[jax.Array]:
        found = run(arrays, key, numerics.inside(around))
        return list(itertools.chain.from_iterable(found))

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
    """What a call of the kernel runs; inside another trace it is one operation."""
    count = len(function.program.results)
    end = count + len(plan.written)

    def nki_kernel(arrays: list[jax.Array], key: jax.Array) -> tuple[list, ...]:
        found = kernel_calls.call(function, arrays, key)
        return found[:count], found[count:end], found[end:]

    return jax.jit(nki_kernel, inline=True)


def is_traced(arrays: list[Any]) -> bool:
    """Whether a transformation of JAX looks at the call."""
    return any(isinstance(a, Tracer) for a in arrays)


# -- derivatives -----------------------------------------------------------------------


@dataclass(frozen=True)
class KernelDerivative:
    """What `defvjp` was given."""

    forward: Callable[..., Any]  # arguments -> (results, residuals)
    #: (static arguments, residuals, cotangents) -> cotangents.
    backward: Callable[..., Any]
    static: tuple[int, ...] = ()  # positions of arguments without arrays

    def call(self, name: str, primal: Callable[..., Any], bound: Any) -> Any:
        """Calls a kernel so that JAX finds this derivative.

        Args:
            name: the kernel's.
            primal: the kernel without its derivative.
            bound: its `inspect.BoundArguments`, defaults applied.

        Raises:
            InvalidProgramError: an argument without arrays is not in `static`.
        """
        self._check(name, bound)
        differentiable = jax.custom_vjp(
            functools.wraps(self.forward)(lambda *args: primal(*args)),
            nondiff_argnums=self.static,
        )
        differentiable.defvjp(self.forward, self.backward)
        return differentiable(*kernel_calls.alike(bound.args))

    def _check(self, name: str, bound: Any) -> None:
        if bound.kwargs:
            raise InvalidProgramError(
                f"keyword-only arguments {', '.join(bound.kwargs)} of a kernel with a "
                "derivative",
                op=f"nki.{name}",
                remedy="let its parameters be positional",
            )
        names = list(bound.arguments)
        for n, value in enumerate(bound.args):
            found: list[Any] = []
            arguments.flatten(value, found)
            if not found and n not in self.static:
                raise InvalidProgramError(
                    f"argument {n} ({names[min(n, len(names) - 1)]}) holds no array "
                    "and cannot have a cotangent",
                    op=f"nki.{name}",
                    remedy="name it where the derivative is given: "
                    f"kernel.defvjp(forward, backward, nondiff_argnums=({n},))",
                )
