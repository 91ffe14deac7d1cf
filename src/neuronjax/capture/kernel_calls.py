"""Defines the JAX primitive for kernels of `neuronjax.nki`; it takes arrays and a key.

For platform "neuron", for which programs are captured, the primitive is the custom call
`neuronjax.nki`; for every other platform it runs the kernel. `jax.vmap` runs one
example after the other, so that each has the bits of the kernel alone. The primitive
has no derivative. Inside `jax.shard_map` a kernel with collectives is one operation of
all devices of the mesh, and only exists for platform "neuron".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from neuronjax.capture.host_calls import custom_call, on_platform
from neuronjax.capture.trace import PLATFORM
from neuronjax.errors import UnsupportedError
from neuronjax.ir import kernel_call
from neuronjax.ir.kernel_call import Arrays, KernelFunction

kernel_p = Primitive("nki_kernel")
kernel_p.multiple_results = True


def call(function: KernelFunction, arrays: Arrays, key: jax.Array) -> list[jax.Array]:
    """Bind the primitive; return its results, then the arguments that it writes."""
    results = kernel_p.bind(*arrays, key, function=function)
    axes = frozenset(manual_axes()) if function.devices else _varying(arrays)
    return [_cast(x, axes) for x in results]


def alike(values: Any) -> Any:
    """Return a tree with all its arrays cast to vary along every mesh axis along which
    any of the arrays varies. For an argument that was the same on all devices,
    `jax.shard_map` then sums the cotangent over the devices."""
    arrays = [x for x in jax.tree.leaves(values) if isinstance(x, jax.Array)]
    axes = _varying(arrays)
    if not axes:
        return values
    cast = lambda x: _cast(x, axes) if isinstance(x, jax.Array) else x  # noqa: E731
    return jax.tree.map(cast, values)


def _varying(arrays: Arrays) -> frozenset[Any]:
    """Return the mesh axes along which arrays may differ, as `jax.shard_map` checks."""
    return frozenset().union(*map(_axes, arrays))


def _axes(x: jax.Array) -> frozenset[Any]:
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def _cast(x: jax.Array, axes: frozenset[Any]) -> jax.Array:
    missing = tuple(sorted(axes - _axes(x)))
    return lax.pcast(x, missing, to="varying") if missing else x


def manual_axes() -> tuple[str, ...]:
    """Return the axes of the mesh if the surrounding `jax.shard_map` is over all of
    them, else ()."""
    mesh = jax.sharding.get_abstract_mesh()
    every = tuple(mesh.axis_names)
    return every if set(mesh.manual_axes) == set(every) else ()


def surrounding_devices() -> int:
    """Return the number of devices of the surrounding `jax.shard_map`, 0 outside."""
    return jax.sharding.get_abstract_mesh().size if manual_axes() else 0


def _run(*operands: jax.Array, function: KernelFunction) -> list[jax.Array]:
    if function.devices:
        raise UnsupportedError(
            f"the kernel {function.name} has collectives, but neuronjax.jit did not "
            "compile the jax.shard_map around it",
            op=f"nki.{function.name}",
            remedy="compile the jax.shard_map with neuronjax.jit; or, without "
            f"jax.shard_map, call kernel.with_ranks({function.devices})(x), where "
            "every array has a leading axis of ranks",
        )
    *arrays, key = operands
    return list(function.run(arrays, key))


@kernel_p.def_abstract_eval
def _types(*operands: Any, function: KernelFunction) -> list[Any]:
    return [ShapedArray(t.shape, t.dtype) for t in function.results]


def _lowered(context: Any, *operands: Any, function: KernelFunction) -> Any:
    text = kernel_call.register(function)
    return custom_call(text, kernel_call.CALL)(context, *operands)


def _batched(
    operands: Sequence[Any], axes: Sequence[Any], *, function: KernelFunction
) -> tuple[list[jax.Array], list[int]]:
    moved = [x if a is None else jnp.moveaxis(x, a, 0) for x, a in zip(operands, axes)]
    mapped = [x for x, a in zip(moved, axes) if a is not None]

    def one(examples: list[jax.Array]) -> list[jax.Array]:
        own = iter(examples)
        every = [x if a is None else next(own) for x, a in zip(moved, axes)]
        return kernel_p.bind(*every, function=function)

    results = lax.map(one, mapped)
    return results, [0] * len(results)


def _no_derivative(
    primals: Any, tangents: Any, *, function: KernelFunction
) -> tuple[Any, Any]:
    raise UnsupportedError(
        f"the kernel {function.name} has no derivative",
        op=f"nki.{function.name}",
        remedy="define one as for jax.custom_vjp: kernel.defvjp(forward, backward), "
        "where forward returns (results, residuals) and backward takes (residuals, "
        "cotangents); for no gradient, pass jax.lax.stop_gradient(x)",
    )


kernel_p.def_impl(jax.jit(_run, static_argnames="function"))
mlir.register_lowering(kernel_p, mlir.lower_fun(_run, multiple_results=True))
on_platform(PLATFORM, kernel_p, _lowered)
batching.primitive_batchers[kernel_p] = _batched
ad.primitive_jvps[kernel_p] = _no_derivative
