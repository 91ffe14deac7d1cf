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

from neuronjax.errors import InvalidProgramError
from neuronjax.nki.arguments import map_leaves
from neuronjax.nki.kernel import Kernel
from neuronjax.nki.legacy import compiler as compiler, isa as isa, language as language
from neuronjax.nki.legacy.benchmarking import BenchmarkResult, Latency, write_notes
from neuronjax.nki.legacy.tiles import Tile
from neuronjax.nki.targets import runtime_rounding
from neuronjax.nki.tensor import NkiTensor

tensor = Tile


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
    """A kernel of `nki.benchmark` or `nki.baremetal`.

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
        self._called = args, kwargs
        write_notes(self.function.__name__, self.options)
        return super().__call__(*args, **kwargs)

    @property
    def benchmark_result(self) -> BenchmarkResult:
        """The predicted latency of the last call.

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
        seconds = self.profile(*args, **kwargs).total_seconds
        return BenchmarkResult(Latency(seconds * 1e6))


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
