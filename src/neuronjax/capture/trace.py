"""Captures a JAX function as a StableHLO program for platform "neuron".

Lowering for "neuron" works without the vendor's plugin and is the same on every host;
for cpu and cuda it would emit LAPACK or cuSOLVER calls, and other forms of threefry.
Capture always runs with `jax.disable_jit(False)`: under `disable_jit` scans would be
unrolled and calls inlined, which gives another program.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np
from jax import lax
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import dce_jaxpr

from neuronjax.capture import partition
from neuronjax.capture.decode import decode_module
from neuronjax.capture.host_calls import keep_whole, unordered
from neuronjax.capture.refusals import of_mesh, refusal
from neuronjax.errors import InternalError, UnsupportedError, program_line
from neuronjax.ir.program import Program
from neuronjax.numerics.host_kernels.choice import exportable

PLATFORM = "neuron"


@dataclass(frozen=True)
class Capture:
    """A captured function of flat arguments."""

    program: Program  # its main takes and returns flat leaves
    out_tree: Any  # the pytree of the results
    out_avals: tuple[jax.ShapeDtypeStruct, ...]  # types, also weak ones, of the results


_state = threading.local()
_numbers = itertools.count()
#: The number of a capture, as a part of JAX's cache key: without it, a library function
#: would keep the lines of its first caller, which may belong to another capture.
_CAPTURE = jax.make_user_context(default_value=None)


def capturing() -> bool:
    """Return whether this thread is capturing, so that inner jits only set policies."""
    return getattr(_state, "depth", 0) > 0


@contextlib.contextmanager
def _capture_scope(number: int) -> Iterator[None]:
    _state.depth = getattr(_state, "depth", 0) + 1
    try:
        # Inside `exportable`, JAX traces no kernels made for this machine only.
        with jax.disable_jit(False), exportable(), _CAPTURE(number):
            yield
    finally:
        _state.depth -= 1


class _NoTraceback:
    """A stand-in for a traceback. It is false, so JAX takes that of the call itself."""

    def __bool__(self) -> bool:
        return False

    def as_python_traceback(self) -> None:
        """Return None: there are no frames to show."""


def _transposed(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return the transpose rule of a `custom_vjp` whose ops keep their own lines while
    a program is captured; by itself, JAX gives them the line of the call."""

    @functools.wraps(rule)
    def transpose(*args: Any, **params: Any) -> Any:
        if not capturing():
            return rule(*args, **params)
        stack = source_info_util.current_name_stack()
        no_traceback: Any = _NoTraceback()
        with source_info_util.user_context(no_traceback, name_stack=stack):
            return rule(*args, **params)

    return transpose


for _primitive in [p for p in ad.primitive_transposes if p.name == "custom_lin"]:
    _rule = ad.primitive_transposes[_primitive]
    ad.primitive_transposes[_primitive] = _transposed(_rule)


def trace(function: Callable[..., Any], leaves: Sequence[Any]) -> ClosedJaxpr:
    """Return the jaxpr of a function of flat arrays, traced as `capture` traces it."""
    with _capture_scope(next(_numbers)):
        return jax.make_jaxpr(function)(*leaves)


def with_closure(
    function: Callable[..., list[Any]], leaves: Sequence[Any]
) -> tuple[Callable[..., list[Any]], list[Any]]:
    """Return a function of (*closed-over values, *leaves), and the values."""
    # Inside `trace`, as in a capture, an nj.jit sets a policy and emulates nothing.
    closed = trace(function, leaves)
    jaxpr = closed.jaxpr

    def converted(*leaves: Any) -> list[Any]:
        consts, arguments = leaves[: len(closed.consts)], leaves[len(closed.consts) :]
        return jaxpr_as_fun(ClosedJaxpr(jaxpr, consts))(*arguments)

    return converted, list(closed.consts)


@dataclass(frozen=True)
class Traced:
    """A traced function of flat arguments, the first half of a capture."""

    types: tuple[jax.ShapeDtypeStruct, ...]  # of the arguments
    #: The pytree path of each argument, for rules of a policy and for errors.
    names: Sequence[str]
    stage: Any  # the result of `jax.jit(function).trace`
    number: int  # the number of the capture

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        types: tuple[jax.ShapeDtypeStruct, ...],
        names: Sequence[str],
        number: int | None = None,
    ) -> Traced:
        """Trace `function(*types)`, whose result may be any pytree of arrays. With
        the `number` of an earlier capture, JAX may return the trace of that capture.

        Raises:
            UnsupportedError: 64-bit floats, or complex numbers of them.
            InvalidProgramError: a mesh, an axis or a sharding that JAX refuses.
        """
        for leaf, name in zip(types, names, strict=True):
            check_argument(leaf, name)
        number = next(_numbers) if number is None else number
        with _capture_scope(number):
            keep_whole(PLATFORM)
            try:
                stage = jax.jit(function, keep_unused=True).trace(*types)
            except (ValueError, RuntimeError, NameError, AssertionError) as error:
                if refused := of_mesh(error):
                    raise refused from error
                raise
        return cls(types, names, stage, number)

    @property
    def closes_over_tracers(self) -> bool:
        """Whether the function uses values of an enclosing trace that are not its
        arguments; JAX passes such values in front of the arguments."""
        return len(self.stage.jaxpr.in_avals) != len(self.types)

    @property
    def used(self) -> list[bool]:
        """For each argument, whether results or effects depend on it."""
        jaxpr = self.stage.jaxpr.jaxpr
        return dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1]

    def module(self) -> Any:
        """Return the MLIR module for platform "neuron"."""
        with _capture_scope(self.number):
            try:
                lowered = self._without_tokens().lower(lowering_platforms=(PLATFORM,))
            except (NotImplementedError, ValueError, IndexError) as error:
                raise refusal(self.stage.jaxpr, error) from error
            return lowered.compiler_ir()

    def _without_tokens(self) -> Any:
        """Return the stage, with effects made unordered if there are any."""
        closed = self.stage.jaxpr
        if not closed.effects:
            return self.stage

        def function(*leaves: Any) -> list[Any]:
            return jaxpr_as_fun(unordered(closed))(*leaves)

        return jax.jit(function, keep_unused=True).trace(*closed.in_avals)

    @functools.cached_property
    def captured(self) -> Capture:
        """The captured program of a function that closes over no tracers."""
        module = self.module()
        program = decode_module(module, tuple(self.names))
        if program.meshes and partition.needs_partitioner(program):
            program = partition.partition(program, module)
        count = len(program.entry.body.arguments)
        if count != len(self.types):
            raise InternalError(
                f"the captured program has {count} arguments, not {len(self.types)}",
                remedy="pass the values that the function closes over as arguments",
            )
        out_leaves, out_tree = jax.tree.flatten(self.stage.out_info)
        avals = tuple(
            jax.ShapeDtypeStruct(o.shape, o.dtype, weak_type=o.weak_type)
            for o in out_leaves
        )
        return Capture(program, out_tree, avals)


def capture(
    function: Callable[..., Any],
    types: tuple[jax.ShapeDtypeStruct, ...],
    names: Sequence[str],
) -> Capture:
    """Capture a function of flat arguments; see `Traced`."""
    return Traced.of(function, types, names).captured


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return shape, dtype and weak type of an array, tracer or Python scalar."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False)
    )


def is_key(dtype: Any) -> bool:
    """Return whether a dtype is that of typed PRNG keys."""
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def float0(leaf: Any) -> np.ndarray:
    """Return zeros of dtype float0, the gradient of an integer argument."""
    return np.zeros(leaf.shape, jax.dtypes.float0)


def as_declared(array: jax.Array, aval: jax.ShapeDtypeStruct) -> jax.Array:
    """Return a result with the key type or weak type of `aval`."""
    if is_key(aval.dtype):
        return jax.random.wrap_key_data(array, impl=aval.dtype._impl)  # type: ignore
    if aval.weak_type:
        return lax.convert_element_type_p.bind(
            array, new_dtype=np.dtype(aval.dtype), weak_type=True, sharding=None
        )
    return array


def check_argument(leaf: Any, name: str) -> None:
    """Refuse dtypes that no NeuronCore has; the error names the argument and the dtype
    to use."""
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


# -- derivatives that are refused ------------------------------------------------------

# JAX refuses forward mode of a `custom_vjp` with its own message, and only when it
# computes the tangents, which may be long after the call, in another `jax.jit`. So the
# arguments pass through an identity whose tangent is an operation that raises our error
# when it is computed. Reverse mode transposes that operation to the identity; forward
# mode computes it before it reaches the `custom_vjp`. `jax.linear_transpose` transposes
# a function from its results on and computes no tangents, and JAX cannot transpose a
# `custom_vjp`. So the results pass through another identity, which raises our error
# when it is transposed, and which a gradient ignores.
primal_p = Primitive("no_forward_mode")
tangent_p = Primitive("no_forward_mode_tangent")
result_p = Primitive("no_transpose")


def reverse_mode_only(x: jax.Array, name: str) -> jax.Array:
    """Return `x`, an argument of the emulated function `name`; its tangent raises."""
    return primal_p.bind(x, name=name)


def not_transposed(x: jax.Array, name: str) -> jax.Array:
    """Return `x`, a result of the emulated function `name`; transposing it raises."""
    return result_p.bind(x, name=name)


def _refuse_transpose(*_: Any, name: str) -> NoReturn:
    raise UnsupportedError(
        f"jax.linear_transpose of {name}: an emulated function has only a "
        "reverse-mode derivative",
        location=program_line(),
        remedy="use the second result of jax.vjp(f, *arguments), which is the same for "
        "a linear function; or emulate the transpose, "
        "nj.jit(lambda y: jax.linear_transpose(f, *arguments)(y))",
    )


def _refuse_forward_mode(*_: Any, name: str) -> NoReturn:
    raise UnsupportedError(
        "forward-mode differentiation (jvp, linearize, jacfwd, hessian) of "
        f"{name}: an emulated function has only a reverse-mode derivative",
        location=program_line(),
        remedy="use jax.grad, jax.vjp or jax.jacrev; jacrev(jacrev(f)) for a Hessian; "
        "or emulate forward mode too, nj.jit(lambda x, t: jax.jvp(f, (x,), (t,)))",
    )


def _primal_derivative(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    zero = isinstance(t, ad.Zero)
    return primal_p.bind(x, **params), t if zero else tangent_p.bind(t, **params)


def _result_derivative(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    return result_p.bind(*primals, **params), *tangents


for primitive in (primal_p, tangent_p, result_p):
    primitive.def_abstract_eval(lambda x, **_: x)
for primitive in (primal_p, result_p):
    batching.defvectorized(primitive)
    primitive.def_impl(lambda x, **_: x)
    mlir.register_lowering(primitive, lambda _context, x, **_: [x])
batching.primitive_batchers[tangent_p] = _refuse_forward_mode
ad.primitive_jvps[primal_p] = _primal_derivative
ad.primitive_jvps[result_p] = _result_derivative
ad.primitive_transposes[result_p] = _refuse_transpose
tangent_p.def_impl(_refuse_forward_mode)
mlir.register_lowering(tangent_p, _refuse_forward_mode)
ad.deflinear2(tangent_p, lambda cotangent, _, **params: [cotangent])
