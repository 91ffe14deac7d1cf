"""Which chip a kernel is for: the program's, an argument, the environment, or trn3.

And how it rounds, where the runtime's variables say it.

As documented for nki.simulate (nki/guides/nki_simulator.rst): the variable
NEURON_PLATFORM_TARGET_OVERRIDE, and without it and without a chip trn3.
"""

from __future__ import annotations

import os
from typing import Any

from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.hardware import INSTANCES, Target, chips_with, resolve_target
from neuronjax.policy.flags import parse_environment
from neuronjax.policy.scopes import compiled_for

VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
_ROUNDING = (
    "NEURON_RT_STOCHASTIC_ROUNDING_EN",
    "NEURON_RT_STOCHASTIC_ROUNDING_SEED",
)
DEFAULT = "trn3"


def chosen_target(target: str | Target | None = None) -> Target:
    """The target: that of the `nj.jit` that captures the kernel, else the argument,
    else the environment's, else trn3.

    Raises:
        InvalidProgramError: no such target.
        UnsupportedError: a chip without an interface for kernels.
    """
    found = compiled_for() or target or os.environ.get(VARIABLE) or DEFAULT
    if not isinstance(found, Target):
        found = resolve_target(found)
    if "kernels" not in found.core.capabilities:
        raise UnsupportedError(
            f"no kernel in NKI runs on {found.name}",
            remedy=f"target {', '.join(chips_with('kernels'))}",
        )
    return found


def runtime_rounding() -> dict[str, Any]:
    """`rounding` and `seed` of a kernel, as far as the runtime's variables say them."""
    said = {name: os.environ[name] for name in _ROUNDING if name in os.environ}
    return dict(parse_environment(said).fields)


def check_ranks(target: Target, ranks: int) -> None:
    """Every rank has a logical NeuronCore of its own, as the devices of `nj.jit` have.

    Raises:
        InvalidProgramError: the target has fewer.
    """
    cores = target.logical_cores()
    if ranks <= cores:
        return
    alike = [resolve_target(n) for n, i in INSTANCES.items() if i.chip == target.chip]
    sizes = {t.name: t.logical_cores() for t in alike}
    enough = [f"{name} ({size})" for name, size in sizes.items() if size >= ranks]
    raise InvalidProgramError(
        f"{ranks} ranks, target {target.name} has {cores} logical NeuronCores",
        remedy=f"fewer ranks, or a target with enough: {', '.join(enough) or 'none'}",
    )
