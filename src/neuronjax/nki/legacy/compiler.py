"""`neuronxcc.nki.compiler`: explicit allocation, whose addresses have no effect here.

A value never depends on where a tile lies; `alloc` and its relatives name the memory
and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from neuronjax.nki.memory import MemoryRegion


class _Memory:
    def __init__(self, region: MemoryRegion) -> None:
        self._region = region

    def alloc(self, func: Any) -> MemoryRegion:
        """The memory; the allocation function is not called."""
        return self._region

    def mod_alloc(self, **addresses: Any) -> MemoryRegion:
        """The memory."""
        return self._region

    def auto_alloc(self) -> MemoryRegion:
        """The memory."""
        return self._region


sbuf = _Memory(MemoryRegion.sbuf)
psum = _Memory(MemoryRegion.psum)


def _unchanged(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A decorator that leaves the kernel as it is."""
    return (lambda f: f) if func is None else func


enable_stack_allocator = _unchanged
force_auto_alloc = _unchanged
skip_middle_end_transformations = _unchanged


@contextlib.contextmanager
def no_reorder() -> Iterator[None]:
    """Instructions inside are executed in order: here they always are."""
    yield


def multi_buffer(factor: int = 2) -> int:
    """How many buffers of a tile there are; values do not depend on it."""
    return factor
