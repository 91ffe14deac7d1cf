"""`BoundCall`: the arguments of one call of a kernel, and the form of its results."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import jax
import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.ir.kernel import KernelProgram
from neuronjax.ir.nki_dtypes import as_dtype
from neuronjax.nki import arguments
from neuronjax.nki.jax_call import is_traced


class TracedKernel(NamedTuple):
    """A kernel traced for one specialisation."""

    program: KernelProgram  # its instructions
    tree: Any  # its return value, with slots for the results
    dtypes: tuple[str, ...]  # nki dtypes of the results


class BoundCall(NamedTuple):
    """The arguments of one call, with arrays separated from static values."""

    tree: Any  # the arguments, with slots in place of arrays
    #: The arrays as the caller gave them; with ranks, each is a stack of one per rank.
    arrays: list[Any]
    dtypes: list[str]  # the NKI data types of the arrays
    ranks: int  # how many ranks run the kernel, or 0 without ranks

    @classmethod
    def of(cls, bound: inspect.BoundArguments, ranks: int) -> BoundCall:
        arrays: list[Any] = []
        tree = arguments.flatten((list(bound.args), dict(bound.kwargs)), arrays)
        for array in arrays:
            if ranks and tuple(array.shape)[:1] != (ranks,):
                raise InvalidProgramError(
                    f"an array of shape {tuple(array.shape)} for {ranks} ranks",
                    remedy=f"give shape [{ranks}, ...]: an array per rank, stacked",
                )
        return cls(tree, arrays, [as_dtype(a.dtype) for a in arrays], ranks)

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of array `number`, without the axis of ranks."""
        shape = tuple(self.arrays[number].shape)
        return shape[1:] if self.ranks else shape

    def key(self) -> Any:
        """Return a value that is equal for calls with the same specialisation."""
        shapes = tuple(
            (tuple(a.shape), d) for a, d in zip(self.arrays, self.dtypes, strict=True)
        )
        return (shapes, arguments.cache_key(self.tree))

    def of_types(self) -> BoundCall:
        """Return the call with its arrays replaced by their types."""
        types = [jax.ShapeDtypeStruct(tuple(a.shape), np.bool_) for a in self.arrays]
        return self._replace(arrays=types)

    def finish(
        self, traced: TracedKernel, results: Any, written: Any, numbers: list[int]
    ) -> Any:
        """Return the results as arrays of the caller's framework, and copy `written`
        into the arguments with these numbers."""
        for number, value in zip(numbers, written, strict=True):
            array = self.arrays[number]
            if is_traced([value]) and not isinstance(array, jax.Array):
                raise InvalidProgramError(
                    f"writes its argument {number}, a NumPy array, under a "
                    "transformation of JAX, where arrays have no values yet",
                    op=f"nki.{traced.program.name}",
                    remedy="return the array from the kernel, or pass a JAX array",
                )
            arguments.store_in_place(array, value)
        framework = arguments.framework_of(self.arrays)
        values = [
            arguments.to_framework(value, dtype, framework)
            for value, dtype in zip(results, traced.dtypes, strict=True)
        ]
        return arguments.unflatten(traced.tree, values)


def canonical(array: Any) -> jax.Array:
    """Return an argument in the form that kernels take: booleans become bytes."""
    array = arguments.to_jax(array)
    return array.view(np.uint8) if array.dtype == np.bool_ else array
