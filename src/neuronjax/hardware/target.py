"""The names of targets that a user writes in `target=`, and their machines.

A target is a chip ("trn2"), a NeuronCore generation ("gen3"), an EC2 instance
("trn2.48xlarge"), an UltraServer ("trn2-ultraserver"), or several of the last two
joined by EFA ("trn2.48xlarge:4"). Names are case-sensitive.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from types import MappingProxyType

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware.chips import CHIP_ALIASES, CHIPS, ChipSpec, CoreSpec
from neuronjax.hardware.instances import INSTANCE_ALIASES, INSTANCES, InstanceSpec
from neuronjax.hardware.topology import SINGLE_CHIP, Topology


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A resolved `target=`.

    Attributes:
        name: the canonical name; an alias is replaced by the name it means.
        chip: the chip.
        instance: the instance or UltraServer, or None for a bare chip.
        instances: the number of instances joined by EFA; 1 for a bare chip.
    """

    name: str
    chip: ChipSpec
    instance: InstanceSpec | None
    instances: int = 1

    @property
    def core(self) -> CoreSpec:
        """The NeuronCore of the chip."""
        return self.chip.core

    @property
    def chips(self) -> int:
        """Number of chips of all instances; 1 for a bare chip."""
        return 1 if self.instance is None else self.instance.chips * self.instances

    @property
    def topology(self) -> Topology:
        """The network between the chips of one instance."""
        return SINGLE_CHIP if self.instance is None else self.instance.topology

    @property
    def lnc_default(self) -> int:
        """Physical cores in a logical NeuronCore unless the user says otherwise."""
        return self.chip.lnc_default

    @property
    def physical_cores(self) -> int:
        """NeuronCores of all chips."""
        return self.chips * self.chip.cores_per_chip

    def logical_cores(self, lnc: int | None = None) -> int:
        """Return the number of devices that JAX sees: physical cores divided by the LNC
        size.

        Args:
            lnc: physical cores per logical NeuronCore; None means the default.

        Raises:
            InvalidProgramError: the chip does not have this LNC size.
        """
        lnc = self.lnc_default if lnc is None else lnc
        if lnc not in self.chip.lnc_options:
            options = ", ".join(map(str, self.chip.lnc_options))
            raise InvalidProgramError(
                f"{self.name} has no logical NeuronCores of size {lnc}",
                remedy=f"choose one of: {options}",
            )
        return self.physical_cores // lnc


TARGETS: Mapping[str, Target] = MappingProxyType(
    {name: Target(name=name, chip=chip, instance=None) for name, chip in CHIPS.items()}
    | {
        name: Target(name=name, chip=instance.chip, instance=instance)
        for name, instance in INSTANCES.items()
    }
)
"""Every target by its canonical name."""

_ALIASES: Mapping[str, str] = MappingProxyType({**CHIP_ALIASES, **INSTANCE_ALIASES})


def resolve_target(name: str) -> Target:
    """Return the machine of a target name.

    Args:
        name: a chip, instance, UltraServer or alias, exactly as listed; an instance or
            UltraServer also several times, "trn2.48xlarge:4".

    Raises:
        InvalidProgramError: the name is unknown (the message gives the nearest and all
            names), or no network joins several of this target.
    """
    base, colon, count = str(name).partition(":")
    canonical = _ALIASES.get(base, base)
    if canonical not in TARGETS:
        raise _unknown_target(name)
    target = TARGETS[canonical]
    return _several(target, name, count) if colon else target


def _several(target: Target, name: str, count: str) -> Target:
    """Return `count` instances of a target, joined by EFA."""
    instances = int(count) if count.isascii() and count.isdigit() else 0
    if instances < 1:
        raise InvalidProgramError(
            f"target {name!r}: {count!r} is no number of instances",
            remedy=f"write for example {target.name + ':4'!r}",
        )
    if instances == 1:
        return target
    if target.instance is None or target.instance.efa_bits_per_second is None:
        joined = (n for n, i in INSTANCES.items() if i.efa_bits_per_second)
        raise InvalidProgramError(
            f"target {name!r}: no published network joins {target.name} instances",
            remedy=f"use instances of one of: {', '.join(joined)}",
        )
    return dataclasses.replace(
        target, name=f"{target.name}:{instances}", instances=instances
    )


def _unknown_target(name: str) -> InvalidProgramError:
    names = [*TARGETS, *_ALIASES]
    # Compare without case and blanks, so that "TRN2 " suggests "trn2" but is refused.
    base = str(name).partition(":")[0].strip().lower()
    nearest = difflib.get_close_matches(base, names, cutoff=0.5)
    suggestion = f"did you mean {' or '.join(map(repr, nearest))}? " if nearest else ""
    return InvalidProgramError(
        f"unknown target {name!r}",
        remedy=f"{suggestion}legal targets: {', '.join(names)}",
    )
