"""Faults of runtime indices out of bounds, except with `oob_mode.skip`.

A compiled kernel cannot raise. It records the first instruction with such an index, and
all its results become poison: NaN, or all bits one. `Kernel.__call__` then raises. In a
transformation of JAX or inside another program only the poison shows the fault. Op by
op the instruction raises before it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.execution.kernels.accesses import used_indices
from neuronjax.ir.kernel import KernelInstruction, KernelProgram, Register

if TYPE_CHECKING:
    from neuronjax.execution.kernels.splitting import KernelStep

# The key under which the state has 1 + the first faulty instruction's number, or 0.
KEY = "fault"
PROGRAM_BITS = 24


def checks_bounds(step: KernelStep) -> bool:
    """Return whether an illegal runtime index of this step is an error."""
    if dict(step.signature.items).get("oob_mode") == "skip":
        return False
    return any(plan.kind for plan in (*step.outputs, *step.inputs))


def note(places: Iterable[Any], ordinal: Any, state: dict[Any, jax.Array]) -> None:
    """Record the first instruction that has an access with an illegal index."""
    if KEY not in state:  # with several ranks faults are not recorded
        return
    for place in places:
        if place.index is None:
            continue
        faults = state[KEY]
        first = (faults == 0) & ~place.legal().all()
        state[KEY] = jnp.where(first, jnp.asarray(ordinal, jnp.int32) + 1, faults)


def poisoned(values: list[jax.Array], fault: jax.Array) -> list[jax.Array]:
    """Return the values, or poison of their dtypes if there was a fault."""
    return [jnp.where(fault != 0, _poison(v.dtype), v) for v in values]


def _poison(dtype: Any) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(np.nan, dtype)
    return ~jnp.zeros((), dtype)


def raise_noted(program: KernelProgram, fault: int) -> None:
    """Raise the fault that `note` recorded; 0 means none."""
    if not fault:
        return
    owner, ordinal = divmod(fault - 1, 1 << PROGRAM_BITS)
    for i in program.body.walk():
        if (i.program, i.ordinal) == (owner, ordinal):
            _refuse(i, "a runtime index")


def check_now(i: KernelInstruction, machine: Any) -> None:
    """Raise for an illegal index, op by op, before the instruction runs."""
    if i.attributes.get("oob_mode") == "skip":
        return
    for access in i.accesses:
        if access.dynamic is None:
            continue
        index, limit = access.dynamic.index, access.dynamic.limit
        if isinstance(index, Register):
            values = np.asarray(machine.register(index))
        else:
            values = machine.read(index)
        kind, group = access.dynamic.kind, access.dynamic.group
        wide = used_indices(values, kind, access.shape, group).astype(np.int64)
        illegal = wide[(wide < 0) | (wide >= limit)]
        if illegal.size:
            name = access.storage.name
            where = f" of {name!r}" if name else ""
            _refuse(i, f"index {illegal.flat[0]}{where}")


def _refuse(i: KernelInstruction, what: str) -> NoReturn:
    limits = {a.dynamic.limit for a in i.accesses if a.dynamic is not None}
    legal = " or ".join(f"0 to {limit - 1}" for limit in sorted(limits))
    raise InvalidProgramError(
        f"{what} is out of bounds when the kernel runs; legal are {legal}",
        op=f"nisa.{i.name}",
        location=i.location,
        remedy="correct the index, or let DMA skip such rows with oob_mode=skip",
    )
