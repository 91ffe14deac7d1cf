"""Programs on priced instances: the common parts of `estimate` and `estimate_serving`.

They are: an estimate's machines, policies and prices; the profile of a program on each
machine; the number of copies that a machine runs; the HBM of the copies; the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from neuronjax.api.asked import Askable
from neuronjax.api.profile import Trips, profile
from neuronjax.api.profile_result import Profile
from neuronjax.api.searched_program import fastest_mixture
from neuronjax.diagnostics.precision_policies import policy_code
from neuronjax.errors import InvalidProgramError, NeuronJaxError
from neuronjax.hardware import INSTANCES, ChipSpec, Target, resolve_target
from neuronjax.ir.collective_set import Spmd
from neuronjax.policy import Policy
from neuronjax.report.quantities import binary, seconds
from neuronjax.report.setting import policy_name, setting_line
from neuronjax.report.tables import Displayed, Records
from neuronjax.timing.hbm import capacity_bytes, check_fits
from neuronjax.timing.money import Price, PricePerHour, Terms, price_of

DEFAULT_INSTANCE = "trn2.48xlarge"

Names = str | Sequence[str] | None
Policies = str | Policy | None | Sequence[str | Policy | None]
#: Profiles of one program by machine; each machine occurs once for every policy.
Found = list[tuple[Target, Profile]]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PricedTable(Displayed):
    """The rows of an estimate and their display.

    Attributes:
        name: name of the program.
        refused: "machine, policy" -> the reason why it cannot run the program.
        notes: assumptions and problems.
        utilization: share of the rented time that is used.
        profiles: profiles of every program on every machine.
    """

    name: str
    refused: Mapping[str, str]
    notes: tuple[str, ...]
    utilization: float
    profiles: tuple[Profile, ...]

    costs: tuple[Any, ...]
    _MEASURED: ClassVar[str] = "we know of no measured time of a whole training step"

    @property
    def records(self) -> Records:
        """The rows as flat dicts: `pandas.DataFrame(found.records)`."""
        return Records(cost.record for cost in self.costs)

    def _cheapest(self, dollars: Callable[[Any], float]) -> Any:
        return min([c for c in self.costs if c.fits] or self.costs, key=dollars)

    def check_memory(self) -> None:
        """Check that HBM can hold the program on every machine.

        Raises:
            InvalidProgramError: it does not fit; the message names the biggest tensors,
                and what rematerialisation or sharding would save.
        """
        for found in self.profiles:
            found.check_memory()

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "program": self.name,
            "utilization": self.utilization,
            "rows": self.records,
            "refused": dict(self.refused),
            "notes": list(self.notes),
        }

    def remarks(self) -> list[str]:
        """Return the settings, prices, refusals and notes as lines."""
        prices = {cost.machine: cost.price for cost in self.costs}
        settings = (setting_line(p.target, p.policy, p.core.lnc) for p in self.profiles)
        lines = [f"on {setting}" for setting in dict.fromkeys(settings)]
        lines += [
            self._MEASURED,
            "80 % intervals of the computing time of a step, from similar measured "
            "programs:",
        ]
        sure = map(_how_sure, _labels(self.profiles), self.profiles)
        lines += dict.fromkeys(filter(None, sure))
        lines += [
            f"price: {machine}, {price.usd_per_hour:,.2f} USD/h ({price.basis})"
            for machine, price in prices.items()
        ]
        terms = sorted({price.terms for price in prices.values() if price.terms})
        if len(terms) > 1:
            lines.append(f"note: the prices have different terms: {', '.join(terms)}")
        lines += [f"refused: {what}: {why}" for what, why in self.refused.items()]
        return lines + [f"note: {note}" for note in self.notes]

    def _shown_utilization(self) -> str:
        return "" if self.utilization == 1 else f", {self.utilization:.0%} utilized"

    def __repr__(self) -> str:
        return f"<neuronjax.{type(self).__name__} {self.name}, {len(self.costs)} rows>"


def _labels(profiles: Sequence[Profile]) -> list[str]:
    """Return labels of the profiles: program, machine and policy, if they differ."""
    parts = [(p.name, p.target.name, policy_name(p.policy)) for p in profiles]
    differ = [len({*column}) > 1 for column in zip(*parts, strict=True)]
    return [", ".join(itertools.compress(p, differ)) or p[0] for p in parts]


def _how_sure(label: str, found: Profile) -> str:
    """Return the interval of a profile's time on one core; "" without an interval."""
    if (sure := found.confidence) is None:
        return ""
    low, high = seconds(sure.low_seconds), seconds(sure.high_seconds)
    of_chip = "" if sure.knows_chip else " (no similar program ran on this chip)"
    return f"{label}: {low} to {high}{of_chip}"


def profiles_of(
    step: Askable,
    options: Mapping[str, Any],
    machines: tuple[Sequence[Target], Sequence[Policy | None]],
    args: tuple,
    kwargs: dict[str, Any],
) -> tuple[Found, dict[str, str]]:
    """Return profiles of a step for all machines and policies, and the reasons of
    refusals. With only one machine and one policy, a refusal is raised."""
    targets, policies = machines
    found: Found = []
    refused: dict[str, str] = {}
    # A program of one device takes the same time on all machines with the same chip.
    known: dict[tuple, Profile] = {}
    alone = len(targets) * len(policies) == 1
    for target, policy in itertools.product(targets, policies):
        key = (target.chip.name, target.lnc_default, policy)
        try:
            setting = {"target": target.name, "policy": policy, **options}
            profiled = known.get(key) or profile(step, **setting)(*args, **kwargs)
        except NeuronJaxError as error:
            if alone:
                raise
            numerics = policy_name(Policy.resolve(policy))
            refused[f"{target.name}, {numerics}"] = error.what
            continue
        if shards_of(profiled) == 1:
            known[key] = profiled
        found.append((target, profiled))
    if not found:
        raise InvalidProgramError(
            "no machine runs this program: "
            + "; ".join(f"{what}: {why}" for what, why in refused.items()),
            remedy="nj.check(step)(*args) says what to change",
        )
    return found, refused


def targets_of(own: str | None, instance: Names) -> tuple[Target, ...]:
    """Return the distinct machines of `instance`. If it is None, return the target
    `own`; if `own` is a chip, return the largest instance with this chip."""
    if instance is None:
        machine = resolve_target(own or DEFAULT_INSTANCE)
        return (machine if machine.instance else _largest(machine.chip),)
    names = (instance,) if isinstance(instance, str) else tuple(instance)
    if not names:
        remedy = f"name one, such as {DEFAULT_INSTANCE!r}"
        raise InvalidProgramError("the estimate names no instance", remedy=remedy)
    found = {target.name: target for target in map(resolve_target, names)}
    return tuple(found.values())


def _largest(chip: ChipSpec) -> Target:
    """Return the largest instance with a chip, preferably a single server."""
    fitting = [spec for spec in INSTANCES.values() if spec.chip == chip]
    if not fitting:
        raise InvalidProgramError(
            f"no instance with the chip {chip.name} is known",
            remedy=f"name one, such as instance={DEFAULT_INSTANCE!r}",
        )
    largest = max(fitting, key=lambda spec: (spec.hosts == 1, spec.chips))
    return resolve_target(largest.name)


def policies_of(policy: Policies) -> tuple[Policy | None, ...]:
    """Return the distinct policies; None stands for the policy of the step."""
    one = policy is None or isinstance(policy, str | Policy)
    several: Any = (policy,) if one else policy
    found = (None if p is None else Policy.resolve(p) for p in several)
    return tuple(dict.fromkeys(found)) or (None,)


def prices_of(
    targets: Sequence[Target], given: PricePerHour, terms: Terms | None
) -> dict[str, Price]:
    names = [target.name for target in targets]
    if given is not None and not isinstance(given, Mapping) and len(targets) > 1:
        raise InvalidProgramError(
            f"one price_per_hour, {given}, for {', '.join(names)}",
            remedy=f"give prices by name: price_per_hour={{{names[0]!r}: {given}}}; "
            "machines without a given price have their list prices",
        )
    return {target.name: price_of(target, given, terms) for target in targets}


def by_name(given: Any, name: str, what: str) -> Any:
    """Return `given`, or if it is a mapping, its value for `name`."""
    if not isinstance(given, Mapping):
        return given
    if name not in given:
        raise InvalidProgramError(
            f"{what} gives values by name, but none for {name!r}",
            remedy=f"add {name!r}",
        )
    return given[name]


def parameter_bytes(found: Profile) -> int:
    """Return the bytes of the parameters on one device."""
    tensors = found.memory.arguments
    return sum(t.bytes for t in tensors if t.category == "parameters")


def shards_of(found: Profile) -> int:
    """Return the number of devices of the program's largest mesh; 1 without a mesh."""
    instructions = found.lowered.instructions
    meshes = (i.mesh.size for i in instructions if isinstance(i, Spmd))
    return max(meshes, default=1)


def copies_of(target: Target, shards: int, devices: int | None, lnc: int | None) -> int:
    """Return how many copies of a program run at once, each on `shards` devices."""
    cores = target.logical_cores(lnc)
    used = cores if devices is None else devices
    if shards > cores or used > cores:
        raise InvalidProgramError(
            f"{max(shards, used)} devices on {target.name}, which has {cores} logical "
            "NeuronCores",
            remedy=f"use at most {cores} devices, or two instances: '{target.name}:2'",
        )
    if used < shards or (devices is not None and used % shards):
        raise InvalidProgramError(
            f"{used} devices for a program that needs {shards} devices",
            remedy=f"use a multiple of {shards}",
        )
    return used // shards


def carried(found: Profile) -> list[tuple[int, int]]:
    """Return (bytes of the argument, bytes of the result) of every updated state.

    A result is a state if it has the type of an argument that is not a parameter."""
    free: dict[str, list[int]] = {}
    for tensor in found.memory.arguments:
        if tensor.category != "parameters":
            free.setdefault(tensor.type, []).append(tensor.bytes)
    fused = found.memory.main.fused
    return [
        (sizes.pop(), fused.sizes[value])
        for value in fused.results
        if (sizes := free.get(str(fused.types[value])))
    ]


def slower_notes(
    profiles: Sequence[Profile], trips: Trips | None, gaining: Container[Profile]
) -> Iterable[str]:
    """Yield a note for each profile that is slower than one whose matmul operands have
    more bits. The note proposes a mixture of both policies if one is faster. `gaining`
    are the profiles that take longer than a launch, so that a mixture can save time."""
    for narrow in dict.fromkeys(profiles):
        wider = [
            wide
            for wide in profiles
            if (narrow.name, narrow.target.name) == (wide.name, wide.target.name)
            and narrow.total_seconds > wide.total_seconds
            and _matmul_bits(narrow) < _matmul_bits(wide)
        ]
        if wider:
            fastest = min(wider, key=lambda found: found.total_seconds)
            yield _slower(narrow, fastest, trips, fastest in gaining)


def _slower(narrow: Profile, wide: Profile, trips: Trips | None, gains: bool) -> str:
    names = [policy_name(p.policy) for p in (narrow, wide)]
    times = [seconds(p.total_seconds) for p in (narrow, wide)]
    where = f"without waits for launches, a step on {narrow.target.name} takes"
    said = f"{where} {times[0]} with {names[0]} and {times[1]} with {names[1]}"
    if not gains:
        waits = f"with {names[1]}, the chips already wait for launches"
        return f"{said}; {waits}, so a mixture of both would save nothing"
    timing = dict(lnc=narrow.core.lnc, trips=trips)
    policies = narrow.policy, wide.policy
    mixed, least = fastest_mixture(narrow.lowered, policies, timing)
    if not least:
        why = "too many modules, or modules that no Rule can select"
        return f"{said}; a mixture of both was not tried ({why})"
    if mixed is None or not least < wide.total_seconds:
        return f"{said}; using both, each for some of the modules, is no faster"
    code = " ".join(f"policy={policy_code(mixed)}".split()).replace("( ", "(")
    return f"{said}; a mixture is predicted to take {seconds(least)}, with {code}"


def _matmul_bits(found: Profile) -> int:
    matmuls = (i for i in found.timeline.instructions if i.name.startswith("nc_matmul"))
    operands = (operand for i in matmuls for operand in i.operands[:2])
    return min((operand.type.dtype.itemsize for operand in operands), default=4) * 8


def notes_of(profiles: Sequence[Profile]) -> Iterable[str]:
    """Yield the notes of the profiles, and a note on each program that exceeds HBM."""
    own: dict[str, list[str]] = {}
    for label, found in zip(_labels(profiles), profiles, strict=True):
        for note in found.notes:
            own.setdefault(note, []).append(label)
    for note, labels in own.items():
        yield note if len(labels) == len(profiles) else f"{'; '.join(labels)}: {note}"
    misfits = ((found, check_fits(found.memory, found.core)) for found in profiles)
    yield from dict.fromkeys(
        f"{found.name} needs {binary(found.memory.hbm.bytes)} of HBM; a device of "
        f"{found.core.chip.name} has {binary(capacity_bytes(found.core))}; "
        f"{error.remedy}"
        for found, error in misfits
        if error is not None
    )
