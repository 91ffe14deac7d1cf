"""`neuronxcc.nki`: kernels in the calling style of SDK release 2.26.

Instructions return tiles, tensors are indexed by arrays of indices, `mask=` leaves
elements out, tiles add by `+`, and dimensions before `nl.par_dim` are blocks. Every
call becomes the instruction of `neuronjax.nki.isa` of the same name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import jax

from neuronjax.errors import InvalidProgramError, NeuronJaxError
from neuronjax.execution.kernels.running import KernelPlan
from neuronjax.nki.arguments import map_leaves
from neuronjax.nki.kernel import Kernel
from neuronjax.nki.legacy import compiler as compiler, isa as isa, language as language
from neuronjax.nki.legacy.benchmarking import (
    BenchmarkResult,
    Latency,
    asked_files,
    write_files,
)
from neuronjax.nki.legacy.summary import summary
from neuronjax.nki.legacy.tiles import Tile
from neuronjax.nki.targets import runtime_rounding
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.typing import tensor as TypedTensor

tensor = Tile

# Harnesses measure the same call again and again: its summary, while its plan lives.
_SUMMARIES: WeakKeyDictionary[KernelPlan, dict[str, Any]] = WeakKeyDictionary()


def jit(
    func: Callable[..., Any] | None = None, mode: str = "auto", **kwargs: Any
) -> Any:
    """Makes a kernel of a function of the older style.

    Args:
        func: the kernel.
        mode: without effect: every kernel is emulated.
        **kwargs: `target` or `platform_target`, a chip; others have no effect.
    """
    if func is None:
        return functools.partial(jit, mode=mode, **kwargs)
    if isinstance(func, Kernel):
        return func
    target = kwargs.get("target") or kwargs.get("platform_target")
    return LegacyKernel(_on_tiles(func), target, **runtime_rounding())


class LegacyKernel(Kernel):
    """A kernel of the older style; `kernel[2, 4]` launches it on a grid.

    Where more is alive than a memory holds, the older compiler spills to the next one
    (NKI Programming Model of release 2.26, "NeuronCore internal memory"): that is a
    `SpillWarning` here. Explicit allocations that overlap are errors. What a mask
    leaves out of a result has no value: to read nothing else, or to store it, is an
    error; engines may compute with a tile that has values in part, and give fresh or
    earlier contents of the memory there.
    """

    older = True

    def __getitem__(self, grid: int | tuple[int, ...]) -> LegacyKernel:
        """The kernel on a grid; a size of 0 is one program, as public scripts mean."""
        sizes = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
        return super().__getitem__(tuple(n or 1 for n in sizes))  # type: ignore[return-value]


class BenchmarkedKernel(LegacyKernel):
    """A kernel of `nki.benchmark`, `nki.baremetal` or `nki.profile`.

    Attributes:
        options: of the decorator.
    """

    options: Mapping[str, Any] = MappingProxyType({})
    _called: tuple[Any, Any] | None = None

    @classmethod
    def of(cls, kernel: Kernel, options: Mapping[str, Any]) -> BenchmarkedKernel:
        """A kernel with the options of the decorator."""
        other = object.__new__(cls)
        other.__dict__.update(kernel.__dict__, options=options)
        return other

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The kernel's results; None if `nt.tensor`s stand for arrays."""
        is_typed = any(map(_is_typed, (*args, *kwargs.values())))
        args, kwargs = map_leaves((list(args), kwargs), _is_typed, _as_type)
        self._called = args, kwargs
        results = None if is_typed else super().__call__(*args, **kwargs)
        # Last, for harnesses take a .neff for a sign that the kernel is legal.
        if any(asked_files(self.options)):
            write_files(self.function.__name__, self.options, self._found())
        return results

    @property
    def benchmark_result(self) -> BenchmarkResult:
        """The predicted latency of the last call.

        Raises:
            InvalidProgramError: there was no call.
        """
        return BenchmarkResult(Latency(self.summary["total_time"] * 1e6))

    @property
    def summary(self) -> Mapping[str, Any]:
        """The last call under the names of the vendor's profiler, see `summary`.

        Raises:
            InvalidProgramError: there was no call.
        """
        if self._called is None:
            raise InvalidProgramError(
                "latencies of a kernel that was not called",
                op="nki.benchmark",
                remedy="call it with its arrays first",
            )
        args, kwargs = self._called
        plan = self.plan(*args, **kwargs)
        if plan not in _SUMMARIES:
            _SUMMARIES[plan] = summary(self.profile(*args, **kwargs).metrics)
        return MappingProxyType(_SUMMARIES[plan])

    def _found(self) -> dict[str, Any]:
        """What the files say: a kernel that has no price is run all the same."""
        try:
            return {"summary": dict(self.summary)}
        except NeuronJaxError as error:
            return {"unpriced": str(error)}


def _on_tiles(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function on tensors: arguments and results are wrapped and unwrapped."""

    @functools.wraps(func)
    def function(*args: Any, **kwargs: Any) -> Any:
        inner = any(map(_is_tile, (*args, *kwargs.values())))
        values = map_leaves((list(args), kwargs), _is_tensor, Tile)
        result = func(*values[0], **values[1])
        return result if inner else map_leaves(result, _is_tile, Tile.of)

    setattr(function, "__signature__", inspect.signature(func))
    return function


def _is_tensor(value: Any) -> bool:
    return isinstance(value, NkiTensor)


def _is_tile(value: Any) -> bool:
    return isinstance(value, Tile)


def _is_typed(value: Any) -> bool:
    return isinstance(value, TypedTensor)


def _as_type(value: TypedTensor) -> jax.ShapeDtypeStruct:
    if value.dtype is None:
        raise InvalidProgramError(
            f"{value!r} instead of an array, without a data type",
            op="nki.benchmark",
            remedy="nt.tensor[[128, 512], nl.bfloat16]",
        )
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _decorator(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`baremetal`, `benchmark` and `profile`: the kernel, emulated."""
    if func is None:
        return functools.partial(_decorator, **options)
    return BenchmarkedKernel.of(jit(func), options)


baremetal = benchmark = profile = _decorator


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel's results for these arrays."""
    return jit(kernel)(*args, **kwargs)


def trace(kernel: Any) -> Any:
    """The kernel."""
    return jit(kernel)
