"""The description of work that VectorE, ScalarE and GpSimdE are priced by.

A `LaneTask` is one instruction of `nki.isa` on one physical core: which tensors stream
in and out, how many elements of them a lane has, and how they lie. For programs that is
decided (`cost_rules`), kernels say it in their access patterns (`cost_lanes`);
what an engine takes for it is a `Pace`, in the file of the engine.
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
        dtype: of its elements; of packed ones, a word of four.
        free: elements per lane, of all tiles together.
        name: nki name of the dtype; "" of programs.
        partitions: lanes that it has elements in.
        contiguous: whether the innermost elements follow each other.
        stride_bytes: of the innermost dimension.
        is_dynamic: whether the run decides where it is.
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
        """Bytes of all elements."""
        return self.partitions * self.free * self.dtype.itemsize

    @property
    def in_psum(self) -> bool:
        """Whether an engine reads or writes PSUM."""
        return self.memory == "psum"

    @property
    def is_half(self) -> bool:
        """Whether its elements are BF16 or FP16."""
        return is_half(self.dtype)

    @property
    def cycles(self) -> float:
        """At an element per lane and cycle; a wide stride takes two [A2]."""
        wide = self.stride_bytes >= a.STRIDE_BYTES.value and not self.contiguous
        return self.free * (a.STRIDED_ACCESS.value if wide and self.free > 1 else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTask:
    """An instruction, or equal ones on the tiles of a tensor.

    Attributes:
        name: of the function of nki.isa.
        queue: which engine.
        read: what streams in; one element per lane is an operand and no stream.
        written: what streams out.
        ops: operators of the ALU, in order.
        function: of ScalarE.
        is_zero: of memset, whether every bit is 0.
        folds: how often accumulators are read, in all tiles.
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
        """Whether all operators, of which there are some, are of a set."""
        return bool(self.ops) and {*self.ops} <= ops

    @property
    def streams(self) -> tuple[LaneStream, ...]:
        """All that streams."""
        return (*self.read, *self.written)

    @property
    def elements(self) -> int:
        """N: elements per lane of the longest stream."""
        return max((s.free for s in self.streams), default=1)

    def in_fp32(self) -> LaneTask:
        """The same between other instructions: nothing is rounded on the way."""
        wide = np.dtype(np.float32)
        return replace(
            self,
            read=tuple(s._replace(dtype=wide) for s in self.read),
            written=tuple(s._replace(dtype=wide) for s in self.written),
        )


class Pace(NamedTuple):
    """What an engine takes for a task.

    Attributes:
        cycles: of the data path, for all tiles together.
        speed: 2 or 4 of a performance mode, else 1.
        least: cycles between two instructions, however short.
    """

    cycles: float
    speed: int = 1
    least: float = a.MINIMUM_INTERVAL.value


def is_half(dtype: np.dtype) -> bool:
    """BF16 or FP16."""
    return dtype.itemsize == 2 and dtype.kind not in "iub"


def longest(streams: Iterable[LaneStream]) -> float:
    """Cycles where all streams flow at once."""
    return max((s.cycles for s in streams), default=1.0)


def has(core: Core, capability: str) -> bool:
    """Whether a physical core has a capability."""
    return capability in core.spec.capabilities
