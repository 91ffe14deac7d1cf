"""NeuronCore instructions, the second vocabulary.

Classes are named after `nki.isa`. An instruction is tensor-sized: tile loops are inside
the engine and tile sizes are attributes. Operands are views, a buffer and an access
pattern; a program captured from JAX only uses whole buffers, each written once.
Rounding points and accumulation order are defined here and nowhere else. `engines`
executes an instruction on arrays, `timing` computes its cycles and bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from neuronjax.ir.program import Location, TensorType

#: Bytes of the largest array that enters a key itself; a larger one enters as a digest.
MOST_BYTES = 256


def unrepeated(array: np.ndarray) -> np.ndarray:
    """Return an array with only one element along every axis of stride 0."""
    return array[tuple(slice(1 if s == 0 else None) for s in array.strides)]


def contents(array: np.ndarray) -> Hashable:
    """Return a key that is equal for arrays of one dtype and shape with the same bits.
    A broadcast array is read once: only the elements in memory count."""
    value = unrepeated(array)
    about = (array.dtype.name, array.shape, value.shape)
    if value.nbytes <= MOST_BYTES:
        return (*about, value.tobytes())
    codes = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return (*about, hashlib.blake2b(codes.data, digest_size=16).digest())


# "offline": done once, before the program runs, when its arguments are prepared.
# "host": on the processor that drives the core, if the policy allows it. "cc": the
# CC-cores of a chip, which drive the DMA engines to join devices.
Engine = Literal[
    "tensor", "vector", "scalar", "gpsimd", "sync", "dma", "cc", "offline", "host"
]
Label = Literal["exact", "modelled", "checked on silicon", "host"]
Rounding = Literal["rne", "stochastic"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in the memory of the core, written by exactly one instruction."""

    number: int
    type: TensorType


@dataclass(frozen=True, slots=True)
class View:
    """A buffer read through an access pattern; a pattern of None reads all of it."""

    buffer: Buffer
    pattern: tuple[tuple[int, int], ...] | None = None

    @property
    def type(self) -> TensorType:
        return self.buffer.type


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A straight line of instructions with arguments and results."""

    arguments: tuple[Buffer, ...]
    instructions: tuple[Instruction, ...]
    results: tuple[View, ...]

    def walk(self) -> Iterator[Instruction]:
        """Yield every instruction, nested blocks included."""
        for instruction in self.instructions:
            yield instruction
            for block in instruction.blocks:
                yield from block.walk()


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """The base class of instructions."""

    operands: tuple[View, ...]  # the views that are read
    results: tuple[Buffer, ...]  # the buffers that are written
    engine: Engine  # the engine that executes it
    #: The format to which float results are rounded if it differs from the buffer's
    #: dtype (auto-cast "all", tfloat32), else None.
    write_format: str | None = None
    rounding: Rounding = "rne"  # how a float result is rounded on its one write
    overflow: str = "ieee"  # "ieee" or "saturate"
    #: The position in the function, part of the stochastic rounding key.
    ordinal: int = 0
    #: The place in the user's program that it comes from.
    location: Location = field(default=Location(), compare=False)

    label: ClassVar[Label] = "exact"
    #: The engine that executes it on a chip without `engine`; None if none can.
    elsewhere: ClassVar[Engine | None] = None

    @property
    def name(self) -> str:
        """The nki.isa name."""
        letters = type(self).__name__
        snake = "".join("_" + c.lower() if c.isupper() else c for c in letters)
        return snake.lstrip("_")

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Nested blocks, empty for all but control flow."""
        return ()

    def attributes(self) -> dict[str, Any]:
        """Return the fields that only this kind of instruction has."""
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in _COMMON
        }

    @functools.cached_property
    def signed(self) -> SignedInstruction:
        """The instruction as a cache key."""
        return SignedInstruction(self)

    def signature(self) -> tuple:
        """Return a key, equal for instructions that compute the same function."""
        return (
            type(self),
            self.write_format,
            self.rounding,
            self.overflow,
            *[
                contents(v) if isinstance(v, np.ndarray) else v
                for v in self.attributes().values()
            ],
            *[view.type for view in self.operands],
            *[buffer.type for buffer in self.results],
        )


class SignedInstruction:
    """An instruction as a cache key: equal signatures compute the same function."""

    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self._signature = instruction.signature()
        self._hash = hash(self._signature)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SignedInstruction) and self._signature == other._signature
        )


def is_64_bit(i: Instruction) -> bool:
    """Return whether an instruction, or a nested block, has 64-bit integers."""
    types = [v.type for v in i.operands] + [b.type for b in i.results]
    if any(t.dtype.itemsize == 8 and t.dtype.kind in "iu" for t in types):
        return True
    return any(is_64_bit(inner) for b in i.blocks for inner in b.instructions)


_COMMON = {f.name for f in dataclasses.fields(Instruction)}


@dataclass(frozen=True, eq=False)
class InstructionProgram:
    """The program of a core."""

    main: Block  # the entry block
    functions: Mapping[str, Block]  # the callees of Call
    stochastic: bool = False  # whether any instruction rounds stochastically
    seed: int = 0  # the rounding seed
    #: The number of tensors whose amax is kept from step to step (delayed scaling).
    amax_slots: int = 0
    amax_history_length: int = 0  # the number of steps for which it is kept

    def walk(self) -> Iterator[Instruction]:
        """Yield every instruction of every function."""
        yield from self.main.walk()
        for block in self.functions.values():
            yield from block.walk()
