"""The version of the NeuronCore for which a kernel is traced."""

from __future__ import annotations

from neuronjax.nki import active, trace as tracing
from neuronjax.nki.isa.constants import nc_version
from neuronjax.nki.targets import chosen_target

_GENERATIONS = {
    "NeuronCore-v2": nc_version.gen2,
    "NeuronCore-v3": nc_version.gen3,
    "NeuronCore-v4": nc_version.gen4,
}


def get_nc_version() -> nc_version:
    """Return the generation of the target's cores; the newest for a projected chip."""
    target = tracing.current().target if active.in_kernel() else chosen_target()
    return _GENERATIONS.get(target.core.name, nc_version.gen4)


def get_nc_sub_version() -> int:
    """Return 0, the first revision of the silicon."""
    return 0
