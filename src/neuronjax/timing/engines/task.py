"""The work of VectorE, ScalarE and GpSimdE, described so that it can be priced.

These engines have 128 lanes, one per partition. A `LaneTask` is one instruction of
`nki.isa` on one physical core: the tensors that it reads and writes, their elements per
lane, and their layout. `cost_rules` makes the tasks of programs, `cost_lanes` those of
kernels, from access patterns. A `Pace` is the time that an engine takes for a task; the
file of each engine computes it.
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
        dtype: the dtype of the elements or, if elements are packed, that of words of
            four elements.
        free: elements per lane, of all tiles together.
        name: the NKI name of the dtype in kernels; "" in programs.
        partitions: the number of lanes that have elements.
        contiguous: whether the innermost elements are contiguous.
        stride_bytes: the stride of the innermost dimension, which takes effect only if
            `contiguous` is False.
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
        """Return the cycles in which an engine reads or writes the tensor: one per
        element of a lane, or two if the innermost stride is 16 bytes or more [A2]."""
        wide = self.stride_bytes >= a.STRIDE_BYTES.value and not self.contiguous
        return self.free * (a.STRIDED_ACCESS.value if wide and self.free > 1 else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTask:
    """An instruction, or equal instructions on the tiles of a tensor.

    Attributes:
        name: the function of nki.isa.
        queue: the engine.
        read: the tensors that the engine reads, without those of one element per lane.
        written: the tensors that the engine writes.
        ops: operators of the ALU, in order.
        function: the activation function, for ScalarE.
        is_zero: for memset, whether every bit of the value is 0.
        folds: for reductions, scans and searches, the number of rows in each lane, over
            all tiles; some instructions take a fixed time for each row.
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
        """Return the number of elements per lane of the longest tensor: the N of cost
        formulas."""
        return max((s.free for s in self.streams), default=1)

    def in_fp32(self) -> LaneTask:
        """Return a copy of the task whose tensors are FP32, as intermediate results
        are."""
        wide = np.dtype(np.float32)
        return replace(
            self,
            read=tuple(s._replace(dtype=wide) for s in self.read),
            written=tuple(s._replace(dtype=wide) for s in self.written),
        )


class Pace(NamedTuple):
    """The time of a task on an engine.

    Attributes:
        cycles: cycles of the engine's data path, for all tiles together.
        speed: 2 or 4 if the engine works in this performance mode, which `cycles` takes
            into account, else 1.
        least: the least cycles from the start of an instruction to the next start.
    """

    cycles: float
    speed: int = 1
    least: float = a.MINIMUM_INTERVAL.value


def is_half(dtype: np.dtype) -> bool:
    """Return whether a dtype is BF16 or FP16."""
    return dtype.itemsize == 2 and dtype.kind not in "iub"


def longest(streams: Iterable[LaneStream]) -> float:
    """Return the cycles of the longest of the tensors `streams`, which the engine reads
    and writes at the same time."""
    return max((s.cycles for s in streams), default=1.0)


def has(core: Core, capability: str) -> bool:
    return capability in core.spec.capabilities
