"""The contents of HBM while a program runs, and remedies if they do not fit.

Arguments are in HBM all the time, results from their computation to the end, and
spilled values from their spill to their last use. A tensor that the forward pass saves
and the backward pass reads is an activation; other tensors that are neither arguments
nor results are workspace. A captured program has no donation: its results are separate
tensors. With donation, a result takes the memory of a donated argument of the same
shape and dtype (the one that JAX chooses) after the last read of the argument; until
then the result has other memory. Donation changes no times. Bytes are those of a
logical core.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from neuronjax.errors import InvalidProgramError
from neuronjax.ir.argument_names import is_state_name, parameters_of
from neuronjax.ir.collective_set import Spmd
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.program import TensorType
from neuronjax.timing.fused import FusedStep
from neuronjax.timing.memory_plan import (
    CATEGORIES,
    BlockPlan,
    Category,
    HbmPeak,
    MemoryPlan,
    Tensor,
    bytes_over,
)
from neuronjax.timing.work import Core

#: The number of tensors that a report names.
_SHOWN = 8
#: The most devices that a remedy proposes for sharding.
_MOST_WAYS = 64


def categories_of(names: Sequence[str]) -> tuple[Category | None, ...]:
    """Return each argument's category, found from its pytree path in `names`: a
    parameter, optimizer state, or None if the path does not tell."""
    found: dict[str, Category] = dict.fromkeys(parameters_of(names), "parameters")
    found |= dict.fromkeys(filter(is_state_name, names), "optimizer state")
    return tuple(found.get(name) for name in names)


def peak_of(plan: BlockPlan, arguments: tuple[Tensor, ...]) -> HbmPeak:
    tensors = _temporaries(plan)
    fixed = sum(t.bytes for t in arguments)
    count = len(plan.units)
    inner = [
        max((nested_peak_of(p).bytes for p in u.inner), default=0) for u in plan.units
    ]
    layers: dict[Category, list[int]] = {}
    for c in CATEGORIES:
        spans = ((t.first, t.last, t.bytes) for t in tensors if t.category == c)
        layers[c] = bytes_over(spans, max(1, count))
    layers["workspace"] = [
        a + b for a, b in itertools.zip_longest(layers["workspace"], inner, fillvalue=0)
    ]
    usage = [fixed + sum(held) for held in zip(*layers.values(), strict=True)]
    at = max(range(len(usage)), key=usage.__getitem__)
    alive: list[Tensor | _Temporary] = [t for t in tensors if t.first <= at <= t.last]
    if at < count and inner[at]:
        name = plan.units[at].region.steps[0].instruction.location.source
        alive.append(Tensor(f"inside {name}", inner[at], "workspace", ""))
    alive += arguments
    totals = dict.fromkeys(CATEGORIES, 0)
    for tensor in alive:
        totals[tensor.category] += tensor.bytes
    alive.sort(key=lambda t: -t.bytes)
    biggest = tuple(t if isinstance(t, Tensor) else t.named() for t in alive[:_SHOWN])
    shown: dict[Category, tuple[int, ...]] = {
        c: tuple(held) for c, held in layers.items() if any(held)
    }
    return HbmPeak(
        bytes=usage[at],
        categories=MappingProxyType(totals),
        biggest=biggest,
        usage=tuple(usage),
        temporaries=MappingProxyType(shown),
    )


class _Temporary(NamedTuple):
    """A computed tensor, which is in HBM while the units (regions of the program) with
    the numbers `first` to `last` run."""

    first: int
    last: int
    bytes: int
    category: Category
    step: FusedStep
    type: TensorType

    def named(self) -> Tensor:
        maker = self.step.members[-1]
        where = maker.location
        line = where.source.rpartition("/")[2] or maker.name
        name = f"{where.label}, {line}" if where.module else line
        return Tensor(name, self.bytes, self.category, str(self.type))


def _temporaries(plan: BlockPlan) -> list[_Temporary]:
    fused = plan.fused
    arguments = set(fused.arguments)
    results = fused.roots(fused.results)
    sizes = device_bytes(plan)
    made: dict[int, FusedStep] = {}
    for unit in plan.units:
        for step in unit.region.steps:
            for value in step.results:
                made[value] = step
    backward = {
        n
        for n, unit in enumerate(plan.units)
        if any(_is_backward(m) for s in unit.region.steps for m in s.members)
    }
    found = []
    for value, (first, last) in plan.in_hbm.items():
        if value in arguments or value not in made:
            continue
        step = made[value]
        category: Category = "workspace"
        if value in results:
            category = "outputs"
        elif last in backward and not _is_backward(step.members[-1]):
            category = "activations"
        size, type_ = sizes.get(value, fused.sizes[value]), fused.types[value]
        found.append(_Temporary(first, last, size, category, step, type_))
    return found


def _is_backward(i: Instruction) -> bool:
    return i.location.phase == "backward"


def nested_peak_of(plan: BlockPlan) -> HbmPeak:
    """Return the peak use of HBM in a nested block, such as a loop's body, without the
    arguments and results of the block."""
    results = plan.fused.roots(plan.fused.results)
    own = {v: span for v, span in plan.in_hbm.items() if v not in results}
    return peak_of(dataclasses.replace(plan, in_hbm=own), ())


def device_bytes(plan: BlockPlan) -> Mapping[int, int]:
    """Return, for each array that an `Spmd` instruction shards (by value number), the
    bytes of the shard on one device.

    The instruction's operands and results are global arrays; the arguments and results
    of its block are the shards of these arrays on one device."""
    fused, found = plan.fused, {}
    for unit in plan.units:
        for step in unit.region.steps:
            if not isinstance(step.instruction, Spmd):
                continue
            (inner,) = unit.inner
            pairs = (
                *zip(step.operands, inner.fused.arguments, strict=False),
                *zip(step.results, inner.fused.results, strict=True),
            )
            for value, own in pairs:
                for root in fused.access[value].roots:
                    found[root] = inner.fused.sizes[own]
    return found


def capacity_bytes(core: Core) -> int:
    """Return the bytes of a logical core's HBM that are not reserved for microcode."""
    chip = core.chip
    share = chip.hbm_bytes * core.lnc // chip.cores_per_chip
    return share - chip.hbm_reserved_bytes_per_core * core.lnc


def check_fits(plan: MemoryPlan, core: Core) -> InvalidProgramError | None:
    """Return an error if a program does not fit in HBM, None if it fits.

    The error names the biggest tensors, and remedies."""
    peak, room = plan.hbm, capacity_bytes(core)
    if peak.bytes <= room:
        return None
    tensors = "".join(
        f"\n    {_size(t.bytes)}  {t.category:15}  {t.name} {t.type}".rstrip()
        for t in peak.biggest
    )
    by_category = ", ".join(f"{k} {_size(v)}" for k, v in peak.categories.items() if v)
    return InvalidProgramError(
        f"the program needs {_size(peak.bytes)} of HBM ({by_category}); a logical "
        f"NeuronCore of {core.chip.name} (LNC {core.lnc}) has {_size(room)}; the "
        f"biggest tensors:{tensors}",
        remedy=_remedies(plan, room),
    )


def _remedies(plan: MemoryPlan, room: int) -> str:
    peak, half = plan.hbm, _half(plan)
    totals = peak.categories
    found = []
    if totals["activations"]:
        saved = _size(totals["activations"])
        found.append(f"jax.checkpoint can free up to {saved} of activations")
    split = totals["parameters"] + totals["optimizer state"] + totals["outputs"]
    rest = peak.bytes - split
    if split:
        ways = 2
        while ways < _MOST_WAYS and split / ways + rest > room:
            ways *= 2
        left = _size(split / ways + rest)
        found.append(
            f"sharding parameters, optimizer state and outputs over {ways} devices "
            f"reduces the need to {left} per device"
        )
    other = totals["activations"] + totals["workspace"] + totals["inputs"]
    if other and half:
        found.append(f"{half} saves up to {_size(other / 2)}")
    return "; ".join(found) or "use more devices"


def _half(plan: MemoryPlan) -> str:
    fused = plan.main.fused
    pairs = zip(plan.arguments, fused.arguments, strict=False)
    inputs = [(t, fused.types[value].shape) for t, value in pairs]
    inputs = [each for each in inputs if each[0].category == "inputs"]
    largest, shape = max(inputs, key=lambda each: each[0].bytes, default=(None, ()))
    axis = next((n for n, size in enumerate(shape) if size > 1), None)
    if largest is None or axis is None:
        return ""
    if axis == 0:
        return "half the batch"
    return f"half of the {shape[axis]} elements along axis {axis} of {largest.name}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
        count /= 1024
    raise AssertionError


def with_donation(plan: MemoryPlan, donated: Collection[int]) -> MemoryPlan:
    """Return `plan`, changed so that results take the memory of donated arguments.

    `donated` has the positions of the arguments that the caller donates."""
    main = plan.main
    pairs = _pairs(main, donated)
    if not pairs:
        return plan
    in_hbm = dict(main.in_hbm)
    for result, argument in pairs.items():
        first, end = in_hbm.pop(result)
        last = main.last_use.get(argument, 0)
        if last > first:
            in_hbm[result] = (first, min(end, last))
    main = dataclasses.replace(main, in_hbm=in_hbm)
    return dataclasses.replace(plan, main=main, hbm=peak_of(main, plan.arguments))


def donation_saves(plan: MemoryPlan) -> int:
    """Return by how many bytes donation of all arguments would lower the peak use of
    HBM."""
    everything = range(len(plan.arguments))
    return plan.hbm.bytes - with_donation(plan, everything).hbm.bytes


def _pairs(main: BlockPlan, donated: Collection[int]) -> Mapping[int, int]:
    """Return, by result tensor, the donated argument whose memory the result reuses."""
    fused, sizes = main.fused, device_bytes(main)

    def kind(value: int) -> tuple[TensorType, int | None]:
        return fused.types[value], sizes.get(value)

    free: dict[tuple[TensorType, int | None], list[int]] = {}
    for position, argument in enumerate(fused.arguments):
        if position in donated:
            free.setdefault(kind(argument), []).append(argument)
    roots = [fused.access[value].roots for value in fused.results]
    shared = Counter(root for own in roots for root in own)
    found = {}
    for value, own in zip(fused.results, roots, strict=True):
        places = free.get(kind(value))
        if not places:
            continue
        argument = places.pop(0)
        if len(own) == 1 and shared[own[0]] == 1 and own[0] in main.in_hbm:
            if own[0] not in fused.arguments:
                found[own[0]] = argument
    return found
