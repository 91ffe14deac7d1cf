"""The registry of rules, which are functions of an instruction and a core.

    @limit("nc_matmul")                       # or several names, or none for all
    def stationary_fits(i: KernelInstruction, core: CoreSpec) -> None:
        if ...:
            raise broken(i, "stationary has 200 columns", "at most 128: split it")

Rules depend on `core` (its figures and capabilities), never on a version. An
instruction with the `signature` of a checked one is not checked again, so a rule may
depend only on the contents of `signature`, which excludes the values of immediates.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Hashable

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import CoreSpec, chips_with
from neuronjax.ir.kernel import Access, KernelInstruction

Rule = Callable[[KernelInstruction, CoreSpec], None]

_RULES: dict[str, list[Rule]] = defaultdict(list)
_ADVICE: dict[str, list[Rule]] = defaultdict(list)


def limit(*names: str, rules: dict[str, list[Rule]] = _RULES) -> Callable[[Rule], Rule]:
    """Register a rule for the named instructions, or for all if none is named."""

    def register(rule: Rule) -> Rule:
        for name in names or ("*",):
            rules[name].append(rule)
        return rule

    return register


#: Registers a rule that `nki.check` reports but that refuses no kernel. Advice concerns
#: uses that older releases accepted and today's documents exclude.
advice = functools.partial(limit, rules=_ADVICE)


def broken(i: KernelInstruction, what: str, remedy: str) -> InvalidProgramError:
    """Return the error of an instruction that breaks a limit."""
    return InvalidProgramError(
        what, op=f"nisa.{i.name}", location=i.location, remedy=remedy
    )


def missing(
    i: KernelInstruction, core: CoreSpec, what: str, capability: str, instead: str = ""
) -> InvalidProgramError:
    """Return the error for `what` on a core without `capability`, with its remedy."""
    chips = ", ".join(chips_with(capability))
    remedy = f"use target {chips}" + (f", or {instead}" if instead else "")
    return broken(i, f"{what} is not possible on {core.name}", remedy)


def check_instruction(
    i: KernelInstruction, core: CoreSpec, checked: set[Hashable]
) -> None:
    """Refuse an instruction that breaks one of its rules, unless its signature is in
    `checked`, and add the signature."""
    key = signature(i)
    if key in checked:
        return
    for rule in (*_RULES["*"], *_RULES.get(i.name, ())):
        rule(i, core)
    checked.add(key)


def advice_for(i: KernelInstruction, core: CoreSpec) -> InvalidProgramError | None:
    """Return the error of the first `advice` that an instruction breaks, or None."""
    for rule in (*_ADVICE["*"], *_ADVICE.get(i.name, ())):
        try:
            rule(i, core)
        except InvalidProgramError as error:
            return error
    return None


def signature(i: KernelInstruction) -> Hashable:
    """Return everything about an instruction on which rules may depend."""
    parts: list[Hashable] = [i.name, i.engine, i.forms, len(i.outputs)]
    parts += i.attributes.items()
    for a in (*i.outputs, *i.inputs):
        if type(a) is Access:
            parts += _operand(a)
    return tuple(parts)


def _operand(a: Access) -> tuple[Hashable, ...]:
    """Return the parts of an operand on which rules may depend: memory, dtypes,
    pattern, the kind of indirection, and on chip the address and offset (in SBUF only
    the offset's partition)."""
    storage, offset = a.storage, a.offset
    if storage.memory == "sbuf" and len(a.pattern) > 1:
        offset //= a.pattern[0][0] or 1
    elif not storage.on_chip:
        return (storage.memory, a.dtype, a.pattern, a.dynamic and _dynamic(a))
    here = (storage.memory, storage.dtype, storage.shape, storage.address)
    return (*here, a.dtype, a.pattern, offset, a.dynamic and _dynamic(a))


def _dynamic(a: Access) -> Hashable:
    assert a.dynamic is not None
    index = a.dynamic.index
    if isinstance(index, Access):
        place = (index.storage.memory, index.storage.address)
        return (a.dynamic.kind, index.dtype, index.shape, index.offset, place)
    return a.dynamic.kind
