"""The registry of rules: functions of an instruction, or of a storage, and the trace.

    @limit("nc_matmul")                       # or several names, or none for all
    def stationary_fits(i: KernelInstruction, trace: Trace) -> None:
        if ...:
            raise broken(i, "stationary has 200 columns", "at most 128: split it")

Rules branch on `trace.core` (its figures and its capabilities), never on a version. An
instruction like one that was checked before is not checked again, so a rule may look at
what `signature` holds and at nothing else: not at the values of immediates.
"""

from __future__ import annotations

import functools
import importlib
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import chips_with
from neuronjax.ir.kernel import Access, KernelInstruction, Storage

if TYPE_CHECKING:
    from neuronjax.nki.trace import Trace

Rule = Callable[[KernelInstruction, "Trace"], None]
StorageRule = Callable[[Storage, "Trace"], None]

_RULES: dict[str, list[Rule]] = defaultdict(list)
_ADVICE: dict[str, list[Rule]] = defaultdict(list)
_STORAGE_RULES: list[StorageRule] = []
# Modules of this package that hold rules; add yours.
RULE_MODULES: tuple[str, ...] = (
    "shapes",
    "memories",
    "data_types",
    "engines",
    "matmul",
    "dma",
    "indirection",
)


def limit(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for the named instructions, for all if none is named."""
    return _registers(_RULES, names)


def advice(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule that `nki.check` reports and that refuses no kernel.

    For what the documents exclude by now and earlier releases took.
    """
    return _registers(_ADVICE, names)


def _registers(
    rules: dict[str, list[Rule]], names: tuple[str, ...]
) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for name in names or ("*",):
            rules[name].append(rule)
        return rule

    return register


def storage_limit(rule: StorageRule) -> StorageRule:
    """Registers a rule for allocations."""
    _STORAGE_RULES.append(rule)
    return rule


def broken(i: KernelInstruction, what: str, remedy: str) -> InvalidProgramError:
    """The error of an instruction that breaks a limit."""
    return InvalidProgramError(
        what, op=f"nisa.{i.name}", location=i.location, remedy=remedy
    )


def missing(
    i: KernelInstruction, trace: Trace, what: str, capability: str, instead: str = ""
) -> InvalidProgramError:
    """The error of something that the core is not capable of."""
    chips = ", ".join(chips_with(capability))
    remedy = f"target {chips}" + (f", or {instead}" if instead else "")
    return broken(i, f"{what} on {trace.core.name}, which cannot", remedy)


@functools.cache
def _load() -> None:
    for module in RULE_MODULES:
        importlib.import_module(f"neuronjax.nki.limits.{module}")


def check_instruction(i: KernelInstruction, trace: Trace) -> None:
    """Applies the rules for an instruction.

    Raises:
        InvalidProgramError: one is broken.
    """
    seen: set[Hashable] = trace.notes.setdefault("checked instructions", set())
    key = signature(i)
    if key in seen:
        return
    _load()
    for rule in _RULES["*"]:
        rule(i, trace)
    for rule in _RULES.get(i.name, ()):
        rule(i, trace)
    seen.add(key)


def advice_for(i: KernelInstruction, trace: Trace) -> InvalidProgramError | None:
    """What the first rule of `advice` that an instruction breaks says."""
    _load()
    for rule in (*_ADVICE["*"], *_ADVICE.get(i.name, ())):
        try:
            rule(i, trace)
        except InvalidProgramError as error:
            return error
    return None


def signature(i: KernelInstruction) -> Hashable:
    """What rules may depend on."""
    outputs = tuple(_operand(a) for a in i.outputs)
    inputs = tuple(_operand(a) if isinstance(a, Access) else None for a in i.inputs)
    attributes = tuple(i.attributes.items())
    return (i.name, i.engine, i.forms, attributes, outputs, inputs)


def _operand(a: Access) -> Hashable:
    """Memory, dtypes, pattern; on chip also where it begins; the kind of indirection.

    In SBUF the place within a partition is left out: no rule is about it.
    """
    storage, offset = a.storage, a.offset
    if storage.memory == "sbuf" and len(a.pattern) > 1:
        offset //= a.pattern[0][0] or 1
    elif not storage.on_chip:
        return (storage.memory, a.dtype, a.pattern, a.dynamic and _dynamic(a))
    here = (storage.memory, storage.dtype, storage.shape, storage.address)
    return (here, a.dtype, a.pattern, offset, a.dynamic and _dynamic(a))


def _dynamic(a: Access) -> Hashable:
    assert a.dynamic is not None
    index = a.dynamic.index
    if isinstance(index, Access):
        place = (index.storage.memory, index.storage.address)
        return (a.dynamic.kind, index.dtype, index.shape, index.offset, place)
    return a.dynamic.kind


def check_storage(storage: Storage, trace: Trace) -> None:
    """Applies the rules for an allocation.

    Raises:
        InvalidProgramError: one is broken.
    """
    _load()
    for rule in _STORAGE_RULES:
        rule(storage, trace)
