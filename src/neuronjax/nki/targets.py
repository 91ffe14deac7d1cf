"""Find the chip and the rounding of a kernel, which the runtime's variables can set.

As documented for nki.simulate (nki/guides/nki_simulator.rst), the variable
NEURON_PLATFORM_TARGET_OVERRIDE sets the chip; without it the chip is trn3. The program
around a kernel, and an argument, take precedence.
"""

from __future__ import annotations

import os
from typing import Any

from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.hardware import INSTANCES, Target, chips_with, resolve_target
from neuronjax.policy.flags import parse_environment
from neuronjax.policy.scopes import compiled_for

VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
_ROUNDING = ("NEURON_RT_STOCHASTIC_ROUNDING_EN", "NEURON_RT_STOCHASTIC_ROUNDING_SEED")
DEFAULT = "trn3"


def chosen_target(target: str | Target | None = None) -> Target:
    """Return the first target that is given: by the `nj.jit` that captures the kernel,
    the argument or the environment; trn3 if none is.

    Raises:
        InvalidProgramError: the target does not exist.
        UnsupportedError: the chip has no interface for kernels.
    """
    chosen = compiled_for() or target or os.environ.get(VARIABLE) or DEFAULT
    if not isinstance(chosen, Target):
        chosen = resolve_target(chosen)
    if "kernels" not in chosen.core.capabilities:
        raise UnsupportedError(
            f"no kernel in NKI runs on {chosen.name}",
            remedy=f"use target {', '.join(chips_with('kernels'))}",
        )
    return chosen


def runtime_rounding() -> dict[str, Any]:
    """Return the `rounding` and `seed` that the runtime's variables set."""
    variables = {name: os.environ[name] for name in _ROUNDING if name in os.environ}
    return dict(parse_environment(variables).fields)


def check_ranks(target: Target, ranks: int) -> None:
    """Refuse more ranks than the target has logical NeuronCores."""
    cores = target.logical_cores()
    if ranks <= cores:
        return
    alike = [resolve_target(n) for n, i in INSTANCES.items() if i.chip == target.chip]
    sizes = {t.name: t.logical_cores() for t in alike}
    enough = [f"{name} ({size})" for name, size in sizes.items() if size >= ranks]
    raise InvalidProgramError(
        f"{ranks} ranks, target {target.name} has {cores} logical NeuronCores",
        remedy=f"use fewer ranks, or a larger target: {', '.join(enough) or 'none'}",
    )
