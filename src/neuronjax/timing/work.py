"""What an instruction asks of the machine: the vocabulary of costs.

`cost` says what an instruction does on which engine, `memory` what is moved between HBM
and SBUF, `schedule` when. All figures are of **one logical NeuronCore**: with LNC 2,
two physical cores that share the tiles of every instruction. Seconds, bytes and
floating-point operations; nothing here knows a value of a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from neuronjax.hardware import ChipSpec, CoreSpec, Target
from neuronjax.ir.instruction import Buffer
from neuronjax.timing import assumptions as a

#: What works by itself: the engines, the DMA rings, the CC-cores, the driving host.
Queue = Literal["tensor", "vector", "scalar", "gpsimd", "sync", "dma", "cc", "host"]
QUEUES: tuple[Queue, ...] = get_args(Queue)


@dataclass(frozen=True)
class Core:
    """One logical NeuronCore.

    Attributes:
        chip: what it is part of.
        lnc: physical cores that it consists of.
    """

    chip: ChipSpec
    lnc: int

    @classmethod
    def of(cls, target: Target, lnc: int | None = None) -> Core:
        """A core of a target.

        `lnc` None is the target's default.

        Raises:
            InvalidProgramError: an LNC size that the chip does not have.
        """
        target.logical_cores(lnc)
        return cls(target.chip, target.lnc_default if lnc is None else lnc)

    @property
    def spec(self) -> CoreSpec:
        """One physical core."""
        return self.chip.core

    @property
    def joining_seconds(self) -> float:
        """What a kernel takes beside its instructions, once: physical cores begin and
        end together, if there are several.

        Nothing more is seen of kernels on one core: streams of 0.6 ms are predicted
        within 1 % without it [KDA]."""
        return self.chip.joining_seconds if self.lnc > 1 else 0.0

    @property
    def around_seconds(self) -> float:
        """What a program takes beside its instructions, once."""
        return a.PROGRAM_SECONDS.value + self.joining_seconds

    @property
    def sbuf_bytes(self) -> int:
        """SBUF that programs can use."""
        spec = self.spec
        return spec.sbuf_usable_bytes_per_partition * spec.partitions * self.lnc

    @property
    def rows_per_tile(self) -> int:
        """Rows that are on the partitions at a time."""
        return self.spec.partitions * self.lnc


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A stretch of one engine's time.

    Attributes:
        seconds: how long the engine is occupied.
        tiles: engine instructions that it consists of; tiles of one Work follow each
            other at equal intervals, and a consumer may start on the first.
        latency_seconds: from the end of the last tile until its result can be read.
        opcode: the vendor profiler's ("MATMUL", "ACTIVATE", "TENSOR_TENSOR").
        flops: operations that the program asks for, a multiply-add counting as 2;
            matmuls alone.
        hardware_flops: what the array executes for them: FP32 passes and transposes
            included, in BF16 equivalents.
        transpose_flops: the part of `hardware_flops` that is transposes.
        performance_mode: "", "2x" or "4x" of VectorE and ScalarE.
        hbm_read_bytes: from HBM, of works that stand for transfers: a kernel's.
        hbm_write_bytes: to HBM, of the same.
        dma_bytes: that pass the DMA engines: what goes from HBM to HBM counts once.
        table: of ScalarE's functions that it needs; "" for what every table holds.
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


#: One way to execute an instruction: works in order of dependency, each streaming its
#: tiles to the next (a matmul, then the copy of its result out of PSUM). Empty: free,
#: for the instruction is an access pattern of its consumers (a reshape, a broadcast).
Way = tuple[Work, ...]

#: Why bytes move between HBM and SBUF. `weight` is an input that is a parameter;
#: `update` is written into an argument, which is no result yet.
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
        buffer: of which tensor; None for what has no buffer.
        row_bytes: contiguous bytes of one descriptor, which its efficiency depends on.
        is_read: from HBM; else to HBM.
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
        """Bytes from HBM, as a `Work` has them."""
        return self.bytes if self.is_read else 0

    @property
    def hbm_write_bytes(self) -> int:
        """Bytes to HBM, as a `Work` has them."""
        return 0 if self.is_read else self.bytes


class Event(NamedTuple):
    """Something that happens on a queue.

    Attributes:
        start_seconds, end_seconds: when, from the start of the program.
        name: opcode, or kind of transfer.
        source: what it was made of: a Work or a Transfer.
        instruction: index into `Timeline.instructions`, -1 for none.
        count: how often it happens in all: trips of the loops around it. Start and end
            are those of the first time.
        wait_seconds: how long the queue stood still before it, for operands.
        pieces: tiles that it consists of, as long as each other; the first begins at
            the start, the last ends at the end, and between them other events of the
            queue have their turns. What it occupies is the seconds of its source.
        queue_seconds: how long it occupies the queue.
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
