"""The float64 reference: a core's instructions, executed in double precision.

Every float is a float64, whatever dtype the program declares, so the results are those
of (nearly) real arithmetic. With `rounds`, results are rounded to the declared format
if that is narrower than float32, so the casts of the program take effect. NumPy and
SciPy do the arithmetic, so nothing is compiled for it; the code of the engines moves
elements. If an instruction has no rule here, the emulator executes it in FP32, and
`kept_in_float32` records it. No chip computes like this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.diagnostics.executors import (
    Emulator,
    Position,
    RoundingKey,
    by_device,
    stacked_operands,
)
from neuronjax.diagnostics.reference64_tables import BINARY, REDUCTIONS, UNARY
from neuronjax.errors import InternalError
from neuronjax.execution.arithmetic import comparison
from neuronjax.execution.engines import Registers, execute
from neuronjax.execution.engines.scattering import SCATTERS, scattered
from neuronjax.execution.engines.vector import COMMON
from neuronjax.execution.exchange import exchange, is_same_for_all
from neuronjax.execution.movement import moved
from neuronjax.ir import instruction_set as isa
from neuronjax.ir.algebra_set import Cholesky, Fft, TriangularSolve
from neuronjax.ir.block_set import MapBlock, ReduceBlock
from neuronjax.ir.collective_set import Collective, ReduceScatter, Reduction
from neuronjax.ir.instruction import (
    Block,
    Instruction,
    InstructionProgram,
    SignedInstruction,
    unrepeated,
)

Arrays = Sequence[np.ndarray]


def is_float(dtype: Any) -> bool:
    """Return whether numbers of a declared dtype are computed as float64."""
    return np.dtype(dtype).kind not in "iub"


def converted(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return `x` as `dtype`; elements that a broadcast repeats are converted once."""
    new = unrepeated(x).astype(dtype)
    return new if new.shape == x.shape else np.broadcast_to(new, x.shape)


class Reference64:
    """An executor, in double precision, of a program that is lowered for FP32.

    `kept_in_float32` has the names of the instructions that ran in FP32."""

    is_wide = True

    def __init__(self, program: InstructionProgram, *, rounds: bool = False) -> None:
        self._emulator = Emulator(program)
        self._rounds = rounds
        # Facts by the identity of an instruction, which is kept alive.
        self._known: dict[int, _Executed] = {}
        self.kept_in_float32: set[str] = set()
        self.first_key = self._emulator.first_key
        self.stochastic = False

    def identity(
        self, i: Instruction, key: RoundingKey, position: Position
    ) -> Hashable:
        """Return the key of `Emulator.identity` if `i` has no floats, otherwise a key
        that no other instruction has."""
        if self._execution(i).has_floats:
            return "float64", id(i), key.path
        return self._emulator.identity(i, key, position)

    def _execution(self, i: Instruction) -> _Executed:
        if id(i) not in self._known:
            has_floats = any(is_float(v.type.dtype) for v in (*i.operands, *i.results))
            self._known[id(i)] = _Executed(
                i, has_floats, _rule(i) if has_floats else None
            )
        return self._known[id(i)]

    def execute(
        self,
        i: Instruction,
        operands: Sequence[Any],
        key: RoundingKey,
        position: Position,
    ) -> Sequence[Any]:
        rule = self._execution(i).rule
        if rule is None:
            results = self._emulator.execute(i, self._left(i, operands), key, position)
            return [self.enter(x) for x in results]
        results = rule(i, [np.asarray(x) for x in operands])
        types = [b.type.dtype for b in i.results]
        return [self._held(x, t) for x, t in zip(results, types, strict=True)]

    def exchange(
        self,
        i: Instruction,
        operands: Sequence[Sequence[Any]],
        key: RoundingKey,
        position: Position,
    ) -> list[list[Any]]:
        """Return the results of `i` on every device, floats as float64.

        The emulator executes kernels, and collectives without floats."""
        if not self._execution(i).has_floats or not isinstance(i, Collective):
            declared = [self._left(i, x) for x in operands]
            results = self._emulator.exchange(i, declared, key, position)
            return [[self.enter(x) for x in own] for own in results]
        x = stacked_operands(operands)
        reduces: Any = i if isinstance(i, Reduction) else None
        made = [_reduced(reduces, a) for a in x] if reduces else _moved(i, x)
        pairs = zip(made, i.results, strict=True)
        held = [self._held(a, b.type.dtype) for a, b in pairs]
        return by_device(i, held, len(operands))

    def enter(self, array: Any) -> Any:
        """Return a float array as float64, any other array unchanged."""
        x = np.asarray(array)
        return converted(x, np.dtype(np.float64)) if is_float(x.dtype) else array

    def leave(self, array: Any, dtype: Any) -> Any:
        """Return `array` rounded to nearest even in `dtype` if that is a float."""
        if not is_float(dtype):
            return array
        return converted(np.asarray(array), dtype)

    def _held(self, x: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if not is_float(dtype):
            return x if x.dtype == dtype else x.astype(dtype)
        if self._rounds and dtype.itemsize < 4:
            x = self.leave(x, dtype)
        return x.astype(np.float64, copy=False)

    def _left(self, i: Instruction, operands: Sequence[Any]) -> list[Any]:
        """Return operands in declared dtypes; record that `i` runs in FP32."""
        if self._execution(i).has_floats:
            self.kept_in_float32.add(i.name)
        pairs = zip(operands, i.operands, strict=True)
        return [self.leave(x, v.type.dtype) for x, v in pairs]


Rule = Callable[[Any, Arrays], Sequence[Any]]


class _Executed(NamedTuple):
    instruction: Instruction
    has_floats: bool
    rule: Rule | None  # None if the emulator executes the instruction


@functools.singledispatch
def _double(i: Instruction, x: Arrays) -> Sequence[Any]:
    raise InternalError(f"no float64 rule for {i.name}")


def _rule(i: Instruction) -> Rule | None:
    """Return the rule of `i`; None if `i` or an op in its blocks has no rule."""
    if _double.dispatch(type(i)) is _double.dispatch(object):
        return None
    if not all(_rule(inner) for block in i.blocks for inner in block.instructions):
        return None
    names = _TABLES.get(type(i))
    name = i.function if isinstance(i, isa.Activation) else getattr(i, "op", "")
    return _double if names is None or name in names else None


# -- arithmetic ------------------------------------------------------------------------


#: Rules of instructions with one result; each rule is one expression.
_FUNCTIONS: dict[type[Instruction], Callable[[Any, Arrays], np.ndarray]] = {
    isa.TensorTensor: lambda i, x: BINARY[i.op](*x),
    isa.TensorScalar: lambda i, x: BINARY[i.op](*x),
    isa.Activation: lambda i, x: UNARY[i.function](x[0]),
    isa.Compare: lambda i, x: comparison(i.direction)(*x),
    isa.Select: lambda i, x: np.where(*x),
    isa.ReducePrecision: lambda i, x: x[0],
    isa.Memset: lambda i, x: i.value,
    isa.NcMatmul: lambda i, x: products(i.dimensions, *x).reshape(
        i.results[0].type.shape
    ),
    isa.DmaCopy: moved,
    isa.Im2col: moved,
}
for _kind, _function in _FUNCTIONS.items():
    _double.register(_kind, lambda i, x, f=_function: (f(i, x),))


@_double.register
def _(i: isa.TensorCopy, x: Arrays) -> Sequence[Any]:
    """Convert to the result's dtype; round to integers as `i` states, and saturate."""
    dtype = i.results[0].type.dtype
    if is_float(dtype):
        return (x[0].astype(np.float64),)
    if dtype.kind == "b":
        return (x[0] != 0,)
    info = np.iinfo(dtype)
    whole = np.trunc(x[0]) if i.float_to_int == "truncate" else np.rint(x[0])
    whole = np.where(np.isnan(whole), 0.0, whole)
    # float64 cannot represent the largest 64-bit integer; `np.where` inserts it.
    inside = np.clip(whole, float(info.min), np.nextafter(float(info.max) + 1, 0))
    return (np.where(whole >= info.max, info.max, inside.astype(dtype)),)


@_double.register
def _(i: isa.Iota, x: Arrays) -> Sequence[Any]:
    """Return every index exactly, even if the declared format cannot represent it."""
    shape = i.results[0].type.shape
    indices = np.indices(shape, np.float64, sparse=True)[i.dimension]
    return (np.broadcast_to(indices, shape),)


@_double.register
def _(i: isa.TensorReduce, x: Arrays) -> Sequence[Any]:
    function = REDUCTIONS[i.op]
    return (function(function.reduce(x[0], axis=tuple(i.axes)), x[1]),)


@_double.register
def _(i: isa.TensorTensorScan, x: Arrays) -> Sequence[Any]:
    """Return the reduction of every prefix, or of every suffix if `i.reverse`."""
    ordered = np.flip(x[0], i.axis) if i.reverse else x[0]
    out = REDUCTIONS[i.op].accumulate(ordered, axis=i.axis)
    return (np.flip(out, i.axis) if i.reverse else out,)


def products(d: isa.DotDimensions, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Return one product of the matrices in `lhs` and `rhs` per member of the batch."""
    left = matrix(lhs, d.lhs_batch, d.lhs_contract, k_last=True)
    right = matrix(rhs, d.rhs_batch, d.rhs_contract, k_last=False)
    return left.astype(np.float64, copy=False) @ right.astype(np.float64, copy=False)


def matrix(
    x: Any, batch: Sequence[int], contract: Sequence[int], *, k_last: bool
) -> Any:
    """Return `x` as [batch, free, k] if `k_last`, else as [batch, k, free]."""
    free = [n for n in range(x.ndim) if n not in (*batch, *contract)]
    groups = (batch, free, contract) if k_last else (batch, contract, free)
    sizes = [int(np.prod([x.shape[n] for n in group])) for group in groups]
    return x.transpose([n for group in groups for n in group]).reshape(sizes)


@_double.register
def _(i: MapBlock, x: Arrays) -> Sequence[Any]:
    shapes = [b.type.shape for b in i.results]
    results = run_scalars(i.body, x, _double)
    return [np.broadcast_to(a, s) for a, s in zip(results, shapes, strict=True)]


@_double.register
def _(i: ReduceBlock, x: Arrays) -> Sequence[Any]:
    """Reduce one element after the other; each step computes all results together."""
    n = (len(x) - i.captures) // 2
    kept = [d for d in range(x[0].ndim) if d not in i.axes]
    shape = [x[0].shape[d] for d in kept]
    rows = [a.transpose(*i.axes, *kept).reshape(-1, *shape) for a in x[:n]]
    partial = [np.broadcast_to(a, shape) for a in x[n : 2 * n]]
    for elements in zip(*rows, strict=True):
        partial = run_scalars(i.body, [*partial, *elements, *x[2 * n :]], _double)
    return partial


def run_scalars(
    block: Block, x: Sequence[Any], execute: Callable[[Any, Any], Sequence[Any]]
) -> list[Any]:
    """Execute the instructions of a block of scalars on whole tensors."""
    arrays = dict(zip((b.number for b in block.arguments), x, strict=True))
    for inner in block.instructions:
        results = execute(inner, [arrays[v.buffer.number] for v in inner.operands])
        arrays.update(zip((b.number for b in inner.results), results, strict=True))
    return [arrays[v.buffer.number] for v in block.results]


def _reduced(i: Reduction, x: np.ndarray) -> np.ndarray:
    """Return a reduction over groups of devices, as [devices, *local shape]."""
    if is_same_for_all(i, len(x)):
        total = REDUCTIONS[i.op].reduce(x, axis=0)
        return np.broadcast_to(total, (len(x), *total.shape))
    rows: dict[int, np.ndarray] = {}
    for group in i.groups:
        total = REDUCTIONS[i.op].reduce(x[list(group)], axis=0)
        parts = [total] * len(group)
        if isinstance(i, ReduceScatter):
            parts = np.split(total, len(group), i.dimension)
        rows.update(zip(group, parts, strict=True))
    return np.stack([rows[device] for device in range(len(x))])


# -- movement, as the engines do it ----------------------------------------------------


def _moved(i: Instruction, x: Arrays) -> Sequence[Any]:
    with jax.disable_jit(False), jax.enable_x64(True):
        return [np.asarray(a) for a in _kernel(i.signed)(*x)]


@functools.lru_cache(maxsize=2048)
def _kernel(signed: SignedInstruction) -> Callable[..., Any]:
    i = signed.instruction

    def body(*x: Any) -> Any:
        if isinstance(i, isa.LocalScatter):
            return [scattered(i, *x)]
        if isinstance(i, isa.Pool):
            return [_pool(i, *x)]
        zero, key = jnp.asarray(np.float32(-0.0)), jnp.asarray(np.uint32(0))
        if isinstance(i, Collective):
            return exchange(i, x, len(x[0]), zero, key)
        return execute(i, x, Registers(zero, key))

    return jax.jit(body)


for _class in (isa.LocalGather, isa.NcTranspose, isa.LocalScatter, isa.Pool):
    _double.register(_class, _moved)


def _pool(i: isa.Pool, operand: Any, init: Any) -> Any:
    w = i.window
    sizes = w.sizes, w.strides, w.padding, w.base_dilations, w.window_dilations
    return lax.reduce_window(operand, init, COMMON[i.op], *sizes)


@_double.register
def _(i: isa.Sort, x: Arrays) -> Sequence[Any]:
    """Sort stably by the keys, which come first, and reorder the other operands."""
    shape = x[0].shape
    order = np.broadcast_to(np.indices(shape, sparse=True)[i.dimension], shape)
    for key, descending in reversed([*zip(x, i.descending, strict=False)]):
        along = np.take_along_axis(key, order, i.dimension)
        step = _stable_order(along, i.dimension, descending)
        order = np.take_along_axis(order, step, i.dimension)
    return [np.take_along_axis(a, order, i.dimension) for a in x[len(i.descending) :]]


@_double.register
def _(i: isa.TopK, x: Arrays) -> Sequence[Any]:
    order = _stable_order(x[0], x[0].ndim - 1, True)[..., : i.k]
    return np.take_along_axis(x[0], order, -1), order


def _stable_order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - backwards, axis)


# -- linear algebra and Fourier transforms ---------------------------------------------


def _cholesky(i: Cholesky, a: Any) -> Any:
    if i.lower:
        return lax.linalg.cholesky(a, symmetrize_input=False)
    factor = lax.linalg.cholesky(a.swapaxes(-1, -2).conj(), symmetrize_input=False)
    return factor.swapaxes(-1, -2).conj()


def _triangular_solve(i: TriangularSolve, a: Any, b: Any) -> Any:
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=i.left_side,
        lower=i.lower,
        unit_diagonal=i.unit_diagonal,
        transpose_a=i.transpose_a != "NO_TRANSPOSE",
        conjugate_a=i.transpose_a == "ADJOINT",
    )


_ALGEBRA: dict[type[Instruction], tuple[int, Callable[..., Any]]] = {
    Cholesky: (1, _cholesky),
    TriangularSolve: (2, _triangular_solve),
    Fft: (1, lambda i, a: lax.fft(a, i.fft_type, i.fft_length)),
}
"""For each instruction, its number of arrays, and its function of real or complex
arrays in double precision."""


def _algebraic(i: Instruction, x: Arrays) -> Sequence[Any]:
    count, function = _ALGEBRA[type(i)]
    x = [a.astype(np.float64) for a in x]
    if len(x) == 2 * count:  # real and imaginary parts
        x = [_complex(*x[n : n + 2]) for n in range(0, len(x), 2)]
    with jax.disable_jit(False), jax.enable_x64(True):
        result = np.asarray(function(i, *map(jnp.asarray, x)))
    return (np.real(result), np.imag(result))[: len(i.results)]


def _complex(real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    result = np.empty(real.shape, complex)
    result.real, result.imag = real, imaginary
    return result


for _class in _ALGEBRA:
    _double.register(_class, _algebraic)


#: Class of an instruction -> the operations for which it has a rule.
_TABLES: dict[type, Mapping[str, Any]] = {
    **dict.fromkeys((isa.TensorTensor, isa.TensorScalar), BINARY),
    isa.Activation: UNARY,
    **dict.fromkeys((isa.TensorReduce, isa.TensorTensorScan, isa.Pool), REDUCTIONS),
    isa.LocalScatter: SCATTERS,
}
