"""Types of costs: `Core`, `Work`, `Way`, `Transfer` and `Event`.

`cost` computes the work of an instruction on each engine, `memory` the transfers
between HBM and SBUF, `schedule` the times. All figures of programs are for **one
logical NeuronCore**: with LNC 2, for two physical cores that share the tiles of every
instruction. A kernel's instructions are priced for one physical core. Units are
seconds, bytes and floating-point operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from neuronjax.hardware import ChipSpec, CoreSpec, Target
from neuronjax.ir.instruction import Buffer
from neuronjax.timing import assumptions as a

#: The queues, which work in parallel: engines, DMA rings, CC-cores and the host.
Queue = Literal["tensor", "vector", "scalar", "gpsimd", "sync", "dma", "cc", "host"]
QUEUES: tuple[Queue, ...] = get_args(Queue)


@dataclass(frozen=True)
class Core:
    """One logical NeuronCore.

    Attributes:
        chip: the chip of which the core is a part.
        lnc: the number of its physical cores.
    """

    chip: ChipSpec
    lnc: int

    @classmethod
    def of(cls, target: Target, lnc: int | None = None) -> Core:
        """Return a logical core of `target`; `lnc` None means the target's default.
        Refuse an `lnc` that the chip does not have."""
        target.logical_cores(lnc)
        return cls(target.chip, target.lnc_default if lnc is None else lnc)

    @property
    def spec(self) -> CoreSpec:
        """Return the description of one physical core."""
        return self.chip.core

    @property
    def joining_seconds(self) -> float:
        """Return the seconds that the physical cores of this logical core need to start
        together and to end together. A program or kernel takes them in addition to its
        instructions. One physical core needs none [KDA]."""
        return self.chip.joining_seconds if self.lnc > 1 else 0.0

    @property
    def around_seconds(self) -> float:
        """Return the seconds that a program takes in addition to its instructions."""
        return a.PROGRAM_SECONDS.value + self.joining_seconds

    @property
    def sbuf_bytes(self) -> int:
        """Return the bytes of SBUF that programs can use."""
        spec = self.spec
        return spec.sbuf_usable_bytes_per_partition * spec.partitions * self.lnc

    @property
    def rows_per_tile(self) -> int:
        """Return how many rows a tile has: one per partition of each physical core."""
        return self.spec.partitions * self.lnc


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one engine does for an instruction, and the time that this takes.

    Attributes:
        seconds: how long the engine is occupied.
        tiles: the number of engine instructions, which follow each other at equal
            intervals; a consumer may start when the first result can be read.
        latency_seconds: from the end of a tile until its result can be read.
        opcode: the vendor profiler's name ("MATMUL", "ACTIVATE", "TENSOR_TENSOR").
        flops: operations of the program's matmuls; a multiply-add counts as 2.
        hardware_flops: operations that the array executes for the matmuls, in BF16
            equivalents, including FP32 passes and transposes.
        transpose_flops: the part of `hardware_flops` that is transposes.
        performance_mode: "2x" or "4x" if VectorE or ScalarE has this speed, else "".
        hbm_read_bytes: bytes that a kernel's transfers read from HBM.
        hbm_write_bytes: bytes that a kernel's transfers write to HBM.
        dma_bytes: bytes that pass the DMA engines; a copy within HBM counts once.
        table: the table that ScalarE needs for an activation's function; "" if every
            table has the function.
    """

    queue: Queue
    seconds: float
    tiles: int = 1
    latency_seconds: float = 0.0
    opcode: str = ""
    flops: float = 0.0
    hardware_flops: float = 0.0
    transpose_flops: float = 0.0
    performance_mode: str = ""
    sbuf_read_bytes: float = 0.0
    sbuf_write_bytes: float = 0.0
    psum_read_bytes: float = 0.0
    psum_write_bytes: float = 0.0
    hbm_read_bytes: int = 0
    hbm_write_bytes: int = 0
    dma_bytes: float = 0.0
    table: str = ""


#: One way to execute an instruction: a sequence of `Work`, each of one engine, which
#: pass tiles to the next (a matmul, then the copy of its result out of PSUM). It is
#: empty if the instruction is only an access pattern of its consumers (a reshape).
Way = tuple[Work, ...]

#: Why bytes move between HBM and SBUF. A `weight` is an input that is a parameter. An
#: `update` is written into an argument in place, but is no result of the block.
Reason = Literal[
    "input",
    "weight",
    "output",
    "update",
    "spill_save",
    "spill_reload",
    "constant",
    "copy",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Bytes that the DMA engines move for an instruction.

    Attributes:
        buffer: the buffer of the tensor; None for a transfer of a kernel.
        row_bytes: contiguous bytes of one descriptor, on which efficiency depends.
        is_read: True for a read from HBM, False for a write to HBM.
        transposes: whether the DMA engines transpose on the way.
    """

    buffer: Buffer | None
    bytes: int
    row_bytes: int
    reason: Reason
    is_read: bool
    transposes: bool = False

    @property
    def hbm_read_bytes(self) -> int:
        """Return the bytes that the transfer reads from HBM; 0 for a write."""
        return self.bytes if self.is_read else 0

    @property
    def hbm_write_bytes(self) -> int:
        """Return the bytes that the transfer writes to HBM; 0 for a read."""
        return 0 if self.is_read else self.bytes


class Event(NamedTuple):
    """A `Work` or a `Transfer` of an instruction, with its times.

    Attributes:
        start_seconds, end_seconds: from the start of the program.
        name: the opcode; for a transfer, its reason or, in a kernel, "load" or "store".
        source: the `Work` or `Transfer` of the event.
        instruction: index into `Timeline.instructions`, -1 for none.
        count: how often the event occurs, due to loops; times are those of the first.
        wait_seconds: how long the queue waits for operands before the event.
        pieces: the number of equal tiles; the first begins at the start, the last ends
            at the end, and other events of the queue may run between tiles.
        queue_seconds: how long all tiles together occupy the queue.
    """

    queue: Queue
    start_seconds: float
    end_seconds: float
    name: str
    source: Work | Transfer
    instruction: int = -1
    count: int = 1  # type: ignore[assignment]
    wait_seconds: float = 0.0
    pieces: int = 1
    queue_seconds: float = 0.0
