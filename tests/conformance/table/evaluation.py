"""Rows evaluated together: one program of many rows compiles faster than many programs.

Three ways: emulated under the policy "fp32", by `jax.jit` on the host, and by the
StableHLO reference interpreter of jaxlib. Arrays in, one list of arrays per row out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import stablehlo

import neuronjax as nj
from tests.conformance.table.case import Case, flushed
from tests.conformance.table.inputs import arrays

#: The reference interpreter stops the process at these.
NOT_INTERPRETED = frozenset(
    f"stablehlo.{name}"
    for name in (
        "batch_norm_grad",
        "batch_norm_inference",
        "batch_norm_training",
        "cholesky",
        "custom_call",
        "fft",
        "reduce_precision_grad",
        "rng",
        "rng_bit_generator",
        "triangular_solve",
    )
)
TO_STABLEHLO = (
    "builtin.module(inline,symbol-dce,func.func(chlo-legalize-to-stablehlo),"
    "canonicalize)"
)
#: The host compiles a table in half the time without optimizations.
FAST_COMPILE = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}

Results = list[list[np.ndarray]]


def program(cases: Sequence[Case]) -> Callable[..., list[list[Any]]]:
    """All rows as one function of a list of argument tuples."""

    def table(inputs: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        return [
            [_raw(leaf) for leaf in jax.tree.leaves(case.function(*args))]
            for case, args in zip(cases, inputs, strict=True)
        ]

    return table


def _raw(leaf: Any) -> Any:
    """Typed keys as their data; an FP8 array as its bits, which NumPy compares."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf


def all_inputs(cases: Sequence[Case]) -> list[tuple[np.ndarray, ...]]:
    return [arrays(case) for case in cases]


def lowered(cases: Sequence[Case]) -> nj.Lowered:
    emulated = nj.jit(program(cases), target=cases[0].target, policy="fp32")
    return emulated.lower(all_inputs(cases))


def emulated(cases: Sequence[Case]) -> Results:
    step = nj.jit(program(cases), target=cases[0].target, policy="fp32")
    return _fetched(step(all_inputs(cases)))


def native(cases: Sequence[Case]) -> Results:
    step = jax.jit(program(cases), compiler_options=FAST_COMPILE)
    return _fetched(step(_expected_inputs(cases)))


def _expected_inputs(cases: Sequence[Case]) -> list[tuple[np.ndarray, ...]]:
    return [
        args if case.subnormals else tuple(map(flushed, args))
        for case, args in zip(cases, all_inputs(cases), strict=True)
    ]


def _fetched(results: Any) -> Results:
    return [[np.asarray(leaf) for leaf in row] for row in results]


# ---- float64


@functools.cache
def _jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Rows of one function and several dtypes share a program."""
    return jax.jit(function, compiler_options=FAST_COMPILE)


def in_float64(case: Case, *, magnitudes: bool = False) -> list[np.ndarray]:
    """The row's reference on float64 inputs, or on their absolute values."""
    inputs = [_widened(array) for array in arrays(case)]
    if magnitudes:
        inputs = [np.abs(a) if a.dtype.kind in "fc" else a for a in inputs]
    with jax.enable_x64(True):
        results = _jitted(case.reference or case.function)(*inputs)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(results)]


def _widened(array: np.ndarray) -> np.ndarray:
    if jnp.issubdtype(array.dtype, jnp.floating):
        return flushed(array).astype(np.float64)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return flushed(array).astype(np.complex128)
    return array


# ---- The StableHLO reference interpreter


def interpreted(cases: Sequence[Case]) -> Results:
    """What the reference interpreter of jaxlib makes of the rows.

    Arguments and results cross as unsigned integers of their size: its Python binding
    knows neither the narrow formats nor, since JAX 0.12, complex numbers.
    """
    inputs = _expected_inputs(cases)
    flat, tree = jax.tree.flatten(inputs)
    shapes: list[Any] = []

    def on_bits(*bits: Any) -> list[Any]:
        values = [_from_bits(b, a.dtype) for b, a in zip(bits, flat, strict=True)]
        results = program(cases)(jax.tree.unflatten(tree, values))
        shapes.append([[(r.shape, r.dtype) for r in row] for row in results])
        return [_to_bits(leaf) for row in results for leaf in row]

    numbers = [_numpy_bits(array) for array in flat]
    found = iter(_evaluate(on_bits, numbers))
    return [
        [_numpy_value(next(found), shape, dtype) for shape, dtype in row]
        for row in shapes[0]
    ]


def _from_bits(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    if dtype.kind == "b":
        return bits != 0
    if dtype == np.complex64:
        parts = lax.bitcast_convert_type(bits, jnp.float32)
        return lax.complex(parts[..., 0], parts[..., 1])
    return bits if dtype == bits.dtype else lax.bitcast_convert_type(bits, dtype)


def _to_bits(value: jax.Array) -> jax.Array:
    if value.dtype == bool:
        return value.astype(jnp.uint8)
    if value.dtype == jnp.complex64:
        value = jnp.stack([value.real, value.imag], axis=-1)
    if jnp.issubdtype(value.dtype, jnp.integer):
        return value
    return lax.bitcast_convert_type(value, f"uint{value.dtype.itemsize * 8}")


def _numpy_bits(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    if array.dtype == np.complex64:
        parts = np.stack([array.real, array.imag], axis=-1)
        return np.ascontiguousarray(parts).view(np.uint32)
    if array.dtype.kind in "iu":
        return array
    return array.view(f"u{array.dtype.itemsize}")


def _numpy_value(bits: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    bits = np.asarray(bits)
    if dtype.kind == "b":
        return bits.astype(bool).reshape(shape)
    return np.ascontiguousarray(bits).view(dtype).reshape(shape)


def _evaluate(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> list[Any]:
    module = _module(function, arrays)
    with module.context:
        stablehlo.register_stablehlo_passes()
        passmanager.PassManager.parse(TO_STABLEHLO).run(module.operation)
        refused = NOT_INTERPRETED & _names(module.operation)
        assert not refused, f"rows of {sorted(refused)} need interpreter=False"
        dense = [
            ir.DenseElementsAttr.get(a, type=_element(a), shape=a.shape) for a in arrays
        ]
        return stablehlo.eval_module(module, dense)


def _element(array: np.ndarray) -> Any:
    size = array.dtype.itemsize * 8
    signless = array.dtype.kind == "i"
    make = ir.IntegerType.get_signless if signless else ir.IntegerType.get_unsigned
    return make(size)


def _module(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Any:
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    jitted = jax.jit(function, keep_unused=True)
    lowered = jitted.trace(*shapes).lower(lowering_platforms=("neuron",))
    return lowered.compiler_ir("stablehlo")


def _names(operation: Any) -> set[str]:
    names = {operation.name}
    for region in operation.regions:
        for block in region:
            names.update(*(_names(inner.operation) for inner in block))
    return names
