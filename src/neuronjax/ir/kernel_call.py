"""A kernel of `neuronjax.nki` inside a captured program: one call, one instruction.

The program's text has a custom call of target `neuronjax.nki`, whose backend_config is
the kernel's name with a digest of its instructions. Only the process that traced the
kernel knows the instructions.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from neuronjax.hardware import Target
from neuronjax.ir.instruction import Instruction, Label
from neuronjax.ir.kernel import (
    Access,
    DynamicOffset,
    KernelBlock,
    KernelInstruction,
    KernelLoop,
    KernelProgram,
    Storage,
)
from neuronjax.ir.kernel_numerics import USUAL, KernelNumerics
from neuronjax.ir.program import TensorType

# The target of the custom calls; the text is their backend_config.
CALL = "neuronjax.nki"

Arrays = Sequence[jax.Array]


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelFunction:
    """A kernel that was traced for a chip and for arguments of certain types."""

    program: KernelProgram  # its instructions
    arguments: tuple[TensorType, ...]  # types of the arrays that it takes
    #: The types of its results, and after them those of the arguments that it writes.
    results: tuple[TensorType, ...]
    #: (one array per argument, uint32 key of random bits, the numerics of the
    #: surrounding program) -> results.
    run: Callable[..., Arrays]
    for_target: Callable[[Target], KernelFunction]  # the same kernel for another chip
    #: The number of devices of the mesh around the call, which its collectives join; 0
    #: if it has none. `run` then takes and returns the arrays of all devices, with a
    #: leading axis; the types above are those of one device.
    devices: int = 0
    #: The kernel's own numerics; a surrounding program's non-default ones prevail.
    numerics: KernelNumerics = USUAL

    @property
    def name(self) -> str:
        """The name of the Python function."""
        return self.program.name

    @functools.cached_property
    def text(self) -> str:
        """Name and digest; equal texts mean equal instructions."""
        text = text_of(self.program)
        how = "".join(f"~{x}" for x in self.numerics if x not in USUAL)
        return f"{text}{how}@{self.devices}" if self.devices else f"{text}{how}"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class NkiKernel(Instruction):
    """A whole kernel as one instruction; its own instructions, which work on tiles,
    compute the results. operands: the kernel's arrays in HBM, and a uint32 scalar that
    its random bits start from. results: arrays in HBM."""

    kernel: KernelFunction  # the kernel that is executed
    transcendentals: str = "exact"  # of the surrounding program, as in `Activation`
    label: ClassVar[Label] = "modelled"

    @property
    def joins_devices(self) -> bool:
        """Whether all devices of a mesh execute it together."""
        return self.kernel.devices > 0


# -- the kernels of this process -------------------------------------------------------

_FUNCTIONS: dict[str, KernelFunction] = {}


def register(function: KernelFunction) -> str:
    """Register a kernel under its text, and return the text."""
    return _FUNCTIONS.setdefault(function.text, function).text


def find(text: str) -> KernelFunction | None:
    """Return the kernel of a text, or None if another process traced it."""
    return _FUNCTIONS.get(text)


def text_of(program: KernelProgram) -> str:
    """Return a kernel's name with a digest of everything that decides its results."""
    digest = hashlib.blake2b(digest_size=8)
    for part in _parts(program):
        digest.update(repr(part).encode())
    return f"{program.name}#{digest.hexdigest()}"


def _parts(program: KernelProgram) -> Iterator[Any]:
    yield (program.target, program.grid, program.registers, program.ranks)
    for storage in (*program.arguments, *program.storages):
        yield _plain(storage)
    yield tuple(map(_plain, program.results))
    yield from _block(program.body)


def _block(block: KernelBlock) -> Iterator[Any]:
    for item in block.items:
        if isinstance(item, KernelInstruction):
            yield _plain(item)
            continue
        is_loop = isinstance(item, KernelLoop)
        bounds = (item.start, item.stop, item.step) if is_loop else ()
        where = item.register if is_loop else item.condition
        yield (type(item).__name__, where, bounds)
        yield from _block(item.body)
        yield "end"


_NAMES = frozenset({"location", "label", "loops"})  # these change no result


def _plain(value: Any) -> Any:
    """Return a value whose repr is the same in every process."""
    if isinstance(value, Storage):
        initial = None if value.initial is None else value.initial.tobytes()
        return (value.number, value.memory, value.shape, value.dtype, initial)
    if isinstance(value, Access):
        fields = (value.dtype, value.offset, value.pattern, _plain(value.dynamic))
        return (value.storage.number, *fields)
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    if isinstance(value, Mapping):
        return sorted((str(k), _plain(v)) for k, v in value.items())
    if isinstance(value, KernelInstruction | DynamicOffset):
        names = (f.name for f in dataclasses.fields(value))
        return tuple(_plain(getattr(value, n)) for n in names if n not in _NAMES)
    return value
