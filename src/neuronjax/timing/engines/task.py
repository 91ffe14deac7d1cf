"""Work of VectorE, ScalarE and GpSimdE, described so that it can be priced.

A `LaneTask` is one instruction of `nki.isa` on one physical core: the tensors that
stream in and out, their elements per lane, and their layout. `cost_rules` makes tasks
for programs, `cost_lanes` from the access patterns of kernels. A `Pace` is the time
that an engine takes; the engine's file computes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from neuronjax.timing import assumptions as a
from neuronjax.timing.work import Core, Queue


class LaneStream(NamedTuple):
    """A tensor, or a part of one, as an engine reads or writes it.

    Attributes:
        memory: "sbuf", "psum", "private_hbm", "shared_hbm" or "registers".
        dtype: the dtype of the elements or, if packed, of words of four elements.
        free: elements per lane, of all tiles together.
        name: NKI name of the dtype; "" in programs.
        partitions: the number of lanes that have elements.
        contiguous: whether the innermost elements are contiguous.
        stride_bytes: the stride of the innermost dimension.
        is_dynamic: whether the tensor's address is known only at run time.
    """

    memory: str
    dtype: np.dtype
    free: int
    name: str = ""
    partitions: int = 128
    contiguous: bool = True
    stride_bytes: int = 0
    is_dynamic: bool = False

    @property
    def bytes(self) -> int:
        return self.partitions * self.free * self.dtype.itemsize

    @property
    def in_psum(self) -> bool:
        return self.memory == "psum"

    @property
    def is_half(self) -> bool:
        return is_half(self.dtype)

    @property
    def cycles(self) -> float:
        """Return the cycles to stream: one per element of a lane, two at wide strides
        [A2]."""
        wide = self.stride_bytes >= a.STRIDE_BYTES.value and not self.contiguous
        return self.free * (a.STRIDED_ACCESS.value if wide and self.free > 1 else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTask:
    """An instruction, or equal instructions on the tiles of a tensor.

    Attributes:
        name: the function of nki.isa.
        queue: the engine.
        read: streams into the engine, except operands of one element per lane.
        written: streams out of the engine.
        ops: operators of the ALU, in order.
        function: the activation function, for ScalarE.
        is_zero: for memset, whether every bit is 0.
        folds: how often accumulators are read, over all tiles.
    """

    name: str
    queue: Queue
    read: tuple[LaneStream, ...] = ()
    written: tuple[LaneStream, ...] = ()
    ops: tuple[str, ...] = ()
    function: str = ""
    is_zero: bool = False
    folds: int = 0

    def does_only(self, ops: frozenset[str]) -> bool:
        """Return whether the task has operators, and all of them are in `ops`."""
        return bool(self.ops) and {*self.ops} <= ops

    @property
    def streams(self) -> tuple[LaneStream, ...]:
        return (*self.read, *self.written)

    @property
    def elements(self) -> int:
        """Return N, the elements per lane of the longest stream."""
        return max((s.free for s in self.streams), default=1)

    def in_fp32(self) -> LaneTask:
        """Return the task with FP32 streams, as inside a chain of instructions."""
        wide = np.dtype(np.float32)
        return replace(
            self,
            read=tuple(s._replace(dtype=wide) for s in self.read),
            written=tuple(s._replace(dtype=wide) for s in self.written),
        )


class Pace(NamedTuple):
    """The time of a task on an engine.

    Attributes:
        cycles: cycles of the data path, for all tiles together.
        speed: 2 or 4 in a performance mode, else 1.
        least: minimum cycles between two instructions.
    """

    cycles: float
    speed: int = 1
    least: float = a.MINIMUM_INTERVAL.value


def is_half(dtype: np.dtype) -> bool:
    """Return whether a dtype is BF16 or FP16."""
    return dtype.itemsize == 2 and dtype.kind not in "iub"


def longest(streams: Iterable[LaneStream]) -> float:
    """Return the cycles of streams that the engine processes at the same time."""
    return max((s.cycles for s in streams), default=1.0)


def has(core: Core, capability: str) -> bool:
    return capability in core.spec.capabilities
