"""Instructions as elements: a static signature, and a row of integers and floats.

For each operand the row holds the immediate, or the slot, the starts of its slice and
what a runtime offset needs. Elements of equal signature run by the same code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from neuronjax.execution.kernels import accesses
from neuronjax.execution.kernels.slots import PoolSlot
from neuronjax.execution.tiles.registry import OperandView, Signature
from neuronjax.ir.kernel import (
    Access,
    DynamicOffset,
    Item,
    KernelBlock,
    KernelInstruction,
    KernelLoop,
    Register,
    Storage,
)


class KernelStep(NamedTuple):
    """The static part of an instruction.

    Attributes:
        signature: what its semantics depend on.
        outputs, inputs: the plans of its tensors, in order.
        register: whether it writes a register.
    """

    signature: Signature
    outputs: tuple[accesses.AccessPlan, ...]
    inputs: tuple[accesses.AccessPlan, ...]
    register: bool


class Counted(NamedTuple):
    """A counted device loop: which of its bounds are registers, and its step."""

    start_register: bool
    stop_register: bool
    step: int


class Conditional(NamedTuple):
    """A while loop of the device."""


class Repeat(NamedTuple):
    """A run of equal neighbours; the element's `turns` has one entry for each."""


class Dispatch(NamedTuple):
    """Elements of a few kinds in any order.

    Attributes:
        kinds: the kind at every position.
        ordinals: for every position, how many elements of its kind come before it.
        counts: the number of elements of each kind.
    """

    kinds: tuple[int, ...]
    ordinals: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(slots=True)
class Element:
    """One instruction or loop, or a run of equal neighbours.

    Attributes:
        kind: the static part, without the bodies.
        key: a number that is equal for equal signatures, bodies included.
        ints, floats: the row.
        turns: the bodies: one for a device loop or a dispatch, one per iteration for a
            repeat.
    """

    kind: KernelStep | Counted | Conditional | Repeat | Dispatch
    key: int
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()
    turns: list[list[Element]] = field(default_factory=list)


class Numbering:
    """A numbering of hashable objects; equal objects get equal numbers."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def of(self, thing: Any) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))


class Splitter:
    """Splits one program's instructions; `places` gives pool and slot of storages."""

    def __init__(self, places: Mapping[Storage, PoolSlot]) -> None:
        self.places = places
        self.numbering = Numbering()
        self._plans: dict[Any, Any] = {}
        self._steps: dict[Any, tuple[KernelStep, int]] = {}

    def block(self, block: KernelBlock) -> Iterator[Element]:
        """Return the elements of a block; bodies are lists of elements."""
        return map(self.item, block.items)

    def item(self, item: Item) -> Element:
        if isinstance(item, KernelInstruction):
            return self.instruction(item)
        turns = [list(self.block(item.body))]
        if isinstance(item, KernelLoop):
            bounds = (item.start, item.stop)
            is_register = [isinstance(b, Register) for b in bounds]
            kind = Counted(is_register[0], is_register[1], item.step)
            values = [b.number if isinstance(b, Register) else b for b in bounds]
            return Element(kind, -1, (item.register.number, *values), turns=turns)
        return Element(Conditional(), -1, (item.condition.number,), turns=turns)

    def instruction(self, i: KernelInstruction) -> Element:
        ints: list[int] = [i.ordinal + (i.program << 24)]
        outputs = tuple(self.access(a, ints) for a in i.outputs)
        if i.writes_register is not None:
            ints.append(i.writes_register.number)
        inputs: list[accesses.AccessPlan] = []
        floats: list[float] = []
        held: Iterator[Any] = iter(i.inputs)
        numbers = iter(i.parameters)
        for form in i.forms:
            if form == "f":
                floats.append(next(numbers))
            elif form == "i":
                # Convert to the signed 32-bit integer with the same low bits.
                ints.append((int(next(numbers)) + (1 << 31)) % (1 << 32) - (1 << 31))
            elif form == "r":
                ints.append(next(held).number)
            elif form == "t":
                inputs.append(self.access(next(held), ints))
        step, key = self._step(i, outputs, tuple(inputs))
        return Element(step, key, tuple(ints), tuple(floats))

    def _step(
        self,
        i: KernelInstruction,
        outputs: tuple[accesses.AccessPlan, ...],
        inputs: tuple[accesses.AccessPlan, ...],
    ) -> tuple[KernelStep, int]:
        items = tuple(sorted(i.attributes.items())) if i.attributes else ()
        register = i.writes_register is not None
        # Plans take long to hash. They are kept alive, so `id` can replace the hash.
        ids = (tuple(map(id, outputs)), tuple(map(id, inputs)))
        look = (i.name, i.engine, items, ids, i.forms, i.reads_outputs, register)
        if look in self._steps:
            return self._steps[look]
        views = iter(OperandView(p.shape, p.dtype) for p in inputs)
        signature = Signature(
            i.name,
            i.engine,
            items,
            tuple(OperandView(p.shape, p.dtype) for p in outputs),
            tuple(next(views) if form == "t" else None for form in i.forms),
            i.forms,
            i.reads_outputs,
        )
        step = KernelStep(signature, outputs, inputs, register)
        self._steps[look] = step, self.numbering.of(step)
        return self._steps[look]

    def access(self, a: Access, ints: list[int]) -> accesses.AccessPlan:
        """Return the plan of an access, and append its integers to `ints`."""
        place = self.places[a.storage]
        ints.append(place.slot)
        window = self._box(a)
        if window is None:
            ints.append(a.offset)
        else:
            ints += window.starts(a.offset)
        index: accesses.AccessPlan | str | None = None
        dynamic = ("", 0, 0, 0)
        if (d := a.dynamic) is not None:
            dynamic = (d.kind, d.stride, d.limit, d.group)
            if isinstance(d.index, Register):
                ints.append(d.index.number)
                index = "register"
            else:
                index = self.access(d.index, ints)
        storage = (place.pool, a.storage.shape, a.storage.dtype)
        look = (storage, a.dtype, a.pattern, window is None, dynamic, id(index))
        if look not in self._plans:
            total = accesses.slot_elements(a.storage.shape, a.storage.dtype, a.dtype)
            stored = a.storage.dtype
            # `index` is kept too, so that its identity is not reused.
            plan = accesses.AccessPlan(
                place.pool, a.dtype, stored, total, a.pattern, window, *dynamic, index
            )
            self._plans[look] = plan
        return self._plans[look]

    def _box(self, a: Access) -> accesses.AccessBox | None:
        kind, moving = "", 0
        if a.dynamic is not None:
            kind, moving = a.dynamic.kind, a.dynamic.stride
        if kind in ("vector", "indirect"):
            return None
        total = accesses.slot_elements(a.storage.shape, a.storage.dtype, a.dtype)
        candidate = accesses.box(total, a.pattern, moving)
        if candidate is None or not candidate.fits(candidate.starts(a.offset)):
            return None
        if a.dynamic is not None and not _stays(candidate, a.offset, a.dynamic):
            return None
        return candidate


def _stays(found: accesses.AccessBox, offset: int, dynamic: DynamicOffset) -> bool:
    """Return whether the runtime offset moves the window within one dimension. If it
    leaves the outermost dimension, and so the storage, `faults` reports the index."""
    if dynamic.stride < 1:
        return False
    dim = accesses.dimension_of(dynamic.stride, found.units)
    reach = (dynamic.limit - 1) * (dynamic.stride // found.units[dim])
    start = found.starts(offset)[dim]
    return dim == 0 or start + reach + found.extents[dim] <= found.sizes[dim]
