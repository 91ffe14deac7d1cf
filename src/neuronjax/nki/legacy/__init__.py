"""`neuronxcc.nki`: kernels in the calling style of SDK release 2.26.

Instructions return tiles, tensors are indexed by arrays of indices, `mask=` excludes
elements, `+` adds tiles, and dimensions before `nl.par_dim` are blocks. Every call
becomes the instruction of the same name in `neuronjax.nki.isa`.
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
    summary,
    write_files,
)
from neuronjax.nki.legacy.tiles import Tile
from neuronjax.nki.targets import runtime_rounding
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.typing import tensor as TypedTensor

tensor = Tile

# Harnesses measure one call repeatedly, so its summary is kept as long as its plan.
_SUMMARIES: WeakKeyDictionary[KernelPlan, dict[str, Any]] = WeakKeyDictionary()


def jit(
    func: Callable[..., Any] | None = None, mode: str = "auto", **kwargs: Any
) -> Any:
    """Make a kernel of a function of the older style.

    Args:
        func: the kernel function.
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

    If live tensors exceed a memory, the older compiler spills some to the next memory
    (NKI Programming Model of release 2.26, "NeuronCore internal memory"); here that is
    a `SpillWarning`. Explicit allocations that overlap are errors. Elements of a result
    that a mask excludes have no value. An engine may compute with a tile in which some
    elements have no value; its results there are arbitrary. To read or store a tile in
    which no element has a value is an error."""

    older = True

    def __getitem__(self, grid: int | tuple[int, ...]) -> LegacyKernel:
        """Return the kernel on a grid; a size of 0 means one program."""
        sizes = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
        return super().__getitem__(tuple(n or 1 for n in sizes))  # type: ignore[return-value]


class BenchmarkedKernel(LegacyKernel):
    """A kernel decorated with `nki.benchmark`, `nki.baremetal` or `nki.profile`.

    Attributes:
        options: the decorator's options.
    """

    options: Mapping[str, Any] = MappingProxyType({})
    _called: tuple[Any, Any] | None = None

    @classmethod
    def of(cls, kernel: Kernel, options: Mapping[str, Any]) -> BenchmarkedKernel:
        other = object.__new__(cls)
        other.__dict__.update(kernel.__dict__, options=options)
        return other

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the kernel's results, or None if arguments are `nt.tensor` types."""
        is_typed = any(isinstance(v, TypedTensor) for v in (*args, *kwargs.values()))
        args, kwargs = map_leaves((list(args), kwargs), TypedTensor, _as_type)
        self._called = args, kwargs
        results = None if is_typed else super().__call__(*args, **kwargs)
        # Files are written last, because harnesses take a .neff for proof of a legal
        # kernel.
        if any(asked_files(self.options)):
            write_files(self.function.__name__, self.options, self._found())
        return results

    @property
    def benchmark_result(self) -> BenchmarkResult:
        """The predicted latency of the last call.

        Raises:
            InvalidProgramError: the kernel was not called.
        """
        return BenchmarkResult(Latency(self.summary["total_time"] * 1e6))

    @property
    def summary(self) -> Mapping[str, Any]:
        """The last call's summary in the vendor's terms, see `benchmarking.summary`.

        Raises:
            InvalidProgramError: the kernel was not called.
        """
        if self._called is None:
            raise InvalidProgramError(
                "latencies of a kernel that was not called",
                op="nki.benchmark",
                remedy="call the kernel with arrays first",
            )
        args, kwargs = self._called
        plan = self.plan(*args, **kwargs)
        if plan not in _SUMMARIES:
            _SUMMARIES[plan] = summary(self.profile(*args, **kwargs).metrics)
        return MappingProxyType(_SUMMARIES[plan])

    def _found(self) -> dict[str, Any]:
        """Return the files' contents: the summary, or why no time is predicted."""
        try:
            return {"summary": dict(self.summary)}
        except NeuronJaxError as error:
            return {"unpriced": str(error)}


def _on_tiles(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with `Tile`s as arguments and results, not `NkiTensor`s."""

    @functools.wraps(func)
    def function(*args: Any, **kwargs: Any) -> Any:
        inner = any(isinstance(v, Tile) for v in (*args, *kwargs.values()))
        values = map_leaves((list(args), kwargs), NkiTensor, Tile)
        result = func(*values[0], **values[1])
        return result if inner else map_leaves(result, Tile, Tile.of)

    setattr(function, "__signature__", inspect.signature(func))
    return function


def _as_type(value: TypedTensor) -> jax.ShapeDtypeStruct:
    if value.dtype is None:
        raise InvalidProgramError(
            f"{value!r} has no data type",
            op="nki.benchmark",
            remedy="give an array, or a type like nt.tensor[[128, 512], nl.bfloat16]",
        )
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _decorator(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Return the kernel; `baremetal`, `benchmark` and `profile` are this decorator."""
    if func is None:
        return functools.partial(_decorator, **options)
    return BenchmarkedKernel.of(jit(func), options)


baremetal = benchmark = profile = _decorator


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the kernel's results for these arrays."""
    return jit(kernel)(*args, **kwargs)


def trace(kernel: Any) -> Any:
    """Return the kernel as `jit` makes it; it is traced when it is called."""
    return jit(kernel)
