"""Rewrite programs of complex64 as programs of float32.

This pass `Program -> Program` runs only if a program holds a complex type, so engines
and costs never see one. Every complex value becomes two, its real and its imaginary
part, including arguments and results of functions; the caller of a program splits and
joins those of main. complex64 is in the vendor's compiler since Neuron SDK 2.32
(compiler release notes, "Supported Operators"); complex128 is not.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

import numpy as np

from neuronjax.errors import UnsupportedError
from neuronjax.ir.program import Function, Location, Program
from neuronjax.lowering.complex_builder import Builder
from neuronjax.lowering.complex_rewriting import (
    ComplexRewriting,
    defined_values,
    is_complex,
    per_part,
)

FIRST_SDK = "2.32"


def real_program(program: Program, *, sdk: str) -> Program:
    """Return the same program without complex types. The new main takes and returns two
    float32 tensors for each complex64 one; an argument "x" becomes "x.real", "x.imag".
    Refuse complex128, an SDK without complex numbers, and ops not defined for them."""
    _check(program, sdk)
    values = (v for f in program.functions.values() for v in defined_values(f.body))
    numbers = itertools.count(1 + max(value.number for value in values))
    functions = {
        name: Function(name, ComplexRewriting().region(f.body, Builder(numbers)))
        for name, f in program.functions.items()
    }
    body = program.entry.body
    return dataclasses.replace(
        program,
        functions=functions,
        argument_names=_argument_names(program),
        argument_shardings=per_part(program.argument_shardings, body.arguments),
        result_shardings=per_part(program.result_shardings, body.results),
    )


def _argument_names(program: Program) -> tuple[str, ...]:
    # There may be fewer names than arguments: a program of unnamed arguments has none.
    names = itertools.chain(program.argument_names, itertools.repeat(""))
    return tuple(
        name + end
        for value, name in zip(program.entry.body.arguments, names, strict=False)
        for end in ((".real", ".imag") if is_complex(value) else ("",))
    )


def real_indices(program: Program, indices: Iterable[int]) -> frozenset[int]:
    """Return the indices that arguments of main have in the rewritten program."""
    sizes = [1 + is_complex(value) for value in program.entry.body.arguments]
    starts = list(itertools.accumulate(sizes, initial=0))
    return frozenset(s for i in indices for s in range(starts[i], starts[i + 1]))


def _check(program: Program, sdk: str) -> None:
    ops = [(op.name, op.location, op.results + op.operands) for op in program.walk()]
    main = ("func.func", Location(), program.entry.body.arguments)
    sites = [
        (name, location, value.type.dtype)
        for name, location, values in (*ops, main)
        for value in values
        if is_complex(value)
    ]
    # A value of the widest complex dtype.
    name, location, dtype = max(sites, key=lambda site: site[2].itemsize)
    source = location.source or None
    if dtype == np.complex128:
        raise UnsupportedError(
            "dtype complex128 does not exist on any NeuronCore",
            op=name,
            location=source,
            remedy="use complex64 (jax_enable_x64 must be off)",
        )
    if _version(sdk) < _version(FIRST_SDK):
        raise UnsupportedError(
            f"the compiler of Neuron SDK {sdk} has no complex64",
            op=name,
            location=source,
            remedy=f"use a pair of float32 arrays, or a policy with sdk={FIRST_SDK!r}, "
            "the first with complex64",
        )


def _version(sdk: str) -> tuple[int, ...]:
    return tuple(map(int, sdk.split(".")))
