"""Costs of kernel instructions, and the choice of the engines that execute them.

For each name of an instruction, a rule computes the work from access patterns. Equal
instructions are priced once. Prices are for one physical core; prices of collectives
also depend on the machine.

A *movable* instruction has no `engine=`, and VectorE and ScalarE can both run it. For
trn2 the compiler divides these between both engines: bmm v2 of kda-for-trainium has
4,170 instructions on one engine and 4,133 on the other, among them 4,224 movable copies
out of PSUM. ASSUMPTION: once all other instructions are assigned, each movable
instruction goes to the engine with less work so far. For trn1 all movable instructions
go to ScalarE: VectorE is idle in bmm, and predictions for other kernels agree with
measurements (`docs/times.md`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from neuronjax.errors import UnimplementedError
from neuronjax.hardware import Target, resolve_target
from neuronjax.ir.kernel import ON_CHIP, Access, KernelInstruction, Storage
from neuronjax.timing import (  # importing the rules registers them
    cost_collective,
    cost_dma as cost_dma,
    cost_lanes as cost_lanes,
    cost_tensor as cost_tensor,
)
from neuronjax.timing.cost_rules import KERNEL_RULES as RULES, KernelPrice
from neuronjax.timing.engines.task import has
from neuronjax.timing.kernel_operands import first_partition, row_bytes, whole_pattern
from neuronjax.timing.memory_plan import bytes_over
from neuronjax.timing.work import Core, Work

#: The price of an instruction that the compiler leaves out.
_NOTHING = KernelPrice(work=Work(queue="tensor", seconds=0.0, opcode="NONE"))
#: Engines that compute element by element.
_LANES = frozenset({"vector", "scalar", "gpsimd"})
_LOADS = frozenset({"dma_copy", "dma_transpose"})
#: The name of an instruction left out because its result is still in SBUF.
_HELD = "held"
RULES[_HELD] = lambda i, core: KernelPrice(
    work=Work(queue="sync", seconds=0.0, opcode="NONE")
)
#: Operations that an activation can do before its function: func(data * scale + bias).
_AFFINE = frozenset({"multiply", "add", "subtract"})


class Prices:
    """Prices of instructions on one physical core, each computed once."""

    def __init__(self, core: Core, target: Target | None = None) -> None:
        self.core = core
        self.target = target or resolve_target(core.chip.name)
        self._known: dict[Any, KernelPrice] = {}

    def price(self, i: KernelInstruction) -> KernelPrice:
        """Return the price of an instruction; refuse one without a rule."""
        key = _key(i)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _priced(i, self.core, self.target)
        return found


def _priced(i: KernelInstruction, core: Core, target: Target) -> KernelPrice:
    rule = RULES.get(i.name)
    if i.engine == "cc" and rule is None:
        return cost_collective.collective(i, target)
    if rule is None:
        raise UnimplementedError(
            f"the time of nisa.{i.name} is not known",
            op=f"nisa.{i.name}",
            location=i.location,
            remedy="profile the kernel without this instruction",
        )
    return rule(i, core)


def _key(i: KernelInstruction) -> Any:
    found: list[Any] = [i.name, i.engine, *i.attributes.items()]
    # The first partition in SBUF or PSUM decides which DMA engines move the data.
    by_place = i.engine == "dma" or i.name == "device_print"
    for a in (*i.outputs, *i.inputs):
        if type(a) is Access:
            memory = a.storage.memory
            found += (memory, a.dtype, a.pattern, a.dynamic and a.dynamic.kind)
            if by_place and memory in ON_CHIP:
                found.append(first_partition(a))
    if i.name == "memset":
        found.append(any(i.parameters))
    return tuple(found)


# -- engines ---------------------------------------------------------------------------


def on_engines(
    entries: Sequence[KernelInstruction],
    counts: Sequence[int],
    prices: Prices,
    *,
    older: bool = False,
) -> list[KernelPrice]:
    """Choose the engine of each movable instruction, and return the price of each of
    `entries` on its engine.

    Args:
        entries: the instructions, in the order of the kernel.
        counts: how often each of `entries` is executed.
        prices: the prices of instructions on one core.
        older: whether the kernel is written with `neuronxcc.nki`.
    """
    priced = [prices.price(i) for i in entries]
    if older:
        for n in _first_of_sums(entries):
            priced[n] = _NOTHING
    shared = has(prices.core, "vector_perf_modes")  # from NeuronCore-v3 on
    load: dict[tuple[int, str], float] = {}
    movable = []
    moved: dict[int, KernelPrice] = {}
    for n, (i, p, count) in enumerate(zip(entries, priced, counts, strict=True)):
        if p.work.queue == "vector" and p.work.seconds and _may_move(i):
            movable.append(n)
        elif p.work.queue in ("vector", "scalar"):
            key = (i.program, p.work.queue)
            load[key] = load.get(key, 0.0) + p.work.seconds * count
    for n in movable:
        i, stays = entries[n], priced[n]
        moves = moved.get(id(stays))  # equal instructions have one price
        if moves is None:
            moves = prices.price(replace(i, engine="scalar"))
            moved[id(stays)] = moves
        mine, other = (i.program, "vector"), (i.program, "scalar")
        here = load.get(mine, 0.0) + stays.work.seconds * counts[n]
        there = load.get(other, 0.0) + moves.work.seconds * counts[n]
        if there < here or not shared:
            priced[n], load[other] = moves, there
        else:
            load[mine] = here
    return priced


def _first_of_sums(entries: Sequence[KernelInstruction]) -> list[int]:
    """Return the indices of the `entries` that only fill PSUM with zeros for a sum. The
    compiler leaves these out, since the sum's first product overwrites PSUM.

    Kernels of neuronxcc.nki write a sum as `nl.zeros(..., buffer=nl.psum)` and `+=`."""
    found, zeroed = [], dict[Storage, int]()
    for n, i in enumerate(entries):
        for access in i.accesses if zeroed else ():
            before = zeroed.pop(access.storage, None)
            if before is not None and i.engine == "tensor":
                found.append(before)
        if i.name == "memset" and not any(i.parameters):
            (target,) = i.outputs
            if target.storage.memory == "psum":
                zeroed[target.storage] = n
    return found


def with_held_tiles(
    entries: Sequence[KernelInstruction], room: int
) -> list[KernelInstruction]:
    """Return `entries` without the work of instructions whose result is still in SBUF,
    because an earlier instruction had the same result. Each is replaced by an
    instruction named "held", which takes no time.

    The compiler of neuronxcc.nki leaves out repeated loads of the same data, and equal
    operations in later iterations of a loop. Later instructions then read the first
    tile. Of the results of each engine, the most recently used are kept, in the part of
    `room` (bytes of a partition) that the kernel itself does not need. The profiler's
    counters of three kernels without spills show this (trn1 [AO]; `docs/times.md`): one
    reads 84 MB, but its loads add up to 604 MB."""
    written = Counter(a.storage for i in entries for a in i.outputs)
    made: Counter[Storage] = Counter()  # number of writes so far
    room -= _live_bytes(entries)
    #: Engine -> key that `_made_of` returned -> tile with these contents, the least
    #: recently used first.
    by_engine: dict[str, dict[object, Storage]] = {}
    held_bytes: Counter[str] = Counter()
    same: dict[Storage, Storage] = {}
    found = []
    for i in entries:
        made.update(a.storage for a in i.outputs)
        for n, a in enumerate(i.inputs):
            if isinstance(a, Access) and a.storage in same:
                before = replace(a, storage=same[a.storage])
                i = replace(i, inputs=(*i.inputs[:n], before, *i.inputs[n + 1 :]))
        key = _made_of(i, made)
        if key is not None and written[i.outputs[0].storage] == 1:
            mine, held = i.outputs[0].storage, by_engine.setdefault(i.engine, {})
            held_bytes[i.engine] += 0 if key in held else row_bytes(mine)
            tile = held[key] = held.pop(key, mine)
            while held and held_bytes[i.engine] > room:
                held_bytes[i.engine] -= row_bytes(held.pop(next(iter(held))))
            if tile is not mine:
                same[mine] = tile
                i = replace(i, name=_HELD, outputs=(), inputs=())
        found.append(i)
    return found


def _made_of(i: KernelInstruction, made: Mapping[Storage, int]) -> object | None:
    """Return a key of the contents of the whole tile that an instruction writes: tiles
    with equal keys have equal contents. Return None if the tile cannot be reused."""
    sources = [a for a in i.inputs if isinstance(a, Access) and not a.dynamic]
    if len(i.outputs) != 1 or len(sources) != len(i.inputs) or i.reads_outputs:
        return None
    (out,), where = i.outputs, i.loops[-1:] and (i.loops[-1].loop, i.location)
    if i.name in _LOADS and not any(a.storage.on_chip for a in sources):
        where = (i.name,)
    elif i.engine not in _LANES or not where:
        return None
    if out.storage.memory != "sbuf" or out.pattern != whole_pattern(out.storage.shape):
        return None
    reads = tuple((a, made[a.storage]) for a in sources)
    return (i.program, where, out.dtype, i.parameters, *i.attributes.items(), reads)


def _live_bytes(entries: Sequence[KernelInstruction]) -> int:
    """Return the most bytes of an SBUF partition that are in use at the same time."""
    spans: dict[Storage, list[int]] = {}
    for n, i in enumerate(entries):
        for a in i.accesses:
            if a.storage.memory == "sbuf":
                spans.setdefault(a.storage, [n, n])[1] = n
    sized = [(first, last, row_bytes(s)) for s, (first, last) in spans.items()]
    return max(bytes_over(sized, len(entries)), default=0)


def _may_move(i: KernelInstruction) -> bool:
    """Return whether an instruction has no `engine=` and ScalarE can run it: a copy, or
    a product or sum with a number."""
    operators = {i.attributes.get("op0"), i.attributes.get("op1")} - {None}
    is_affine = i.name == "tensor_scalar" and operators <= _AFFINE
    return i.is_open and (is_affine or i.name == "tensor_copy")
