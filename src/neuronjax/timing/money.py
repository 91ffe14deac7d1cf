"""Hours, dollars and energy, computed from predicted times.

Prices are US dollars per hour of a whole machine: a machine cannot be rented in parts,
however few of its cores work. A price is given by the caller, or is a list price in
`hardware.instances`, with its date. *Utilization* is the share of the rented hours in
which steps run or tokens are served; the rest, such as restarts, checkpoints and empty
queues, is paid for, too. A *copy* is one of several replicas of the program, each on
cores of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import ListPrice, Target
from neuronjax.policy.values import check_word

SECONDS_PER_HOUR = 3600.0
MILLION = 1e6

Terms = Literal["on demand", "Capacity Block"]
#: Dollars per hour of one instance, or such prices by the instance's name, or None for
#: the list price.
PricePerHour = float | Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a machine.

    Attributes:
        usd_per_hour: US dollars per hour for the whole machine.
        basis: "given" if the caller gives the price; for a list price, its source,
            terms, region and date.
        terms: "on demand" or "Capacity Block" for a list price; "" if the caller gives
            the price.
    """

    usd_per_hour: float
    basis: str
    terms: str = ""

    @property
    def record(self) -> dict[str, object]:
        """Return the fields by the names that they have in a record of costs."""
        return {
            "usd_per_hour": self.usd_per_hour,
            "price_basis": self.basis,
            "price_terms": self.terms,
        }


def price_of(target: Target, given: PricePerHour, terms: Terms | None = None) -> Price:
    """Return the price of all instances of a target together.

    `given` is the caller's price of one instance in dollars per hour, or such prices by
    instance name. If the caller gives no price for the instance, the list price with
    these `terms` is used; `terms` None means the price on demand or, if none is listed,
    the price of a Capacity Block.

    Raises:
        InvalidProgramError: no price is given or listed; a price is not above 0;
            `terms` is unknown.
    """
    name = target.name.partition(":")[0]
    value = given.get(name) if isinstance(given, Mapping) else given
    if value is not None:
        return Price(_positive("price_per_hour", value) * target.instances, "given")
    listed = _listed(target, terms)
    if listed is None:
        of = f" ({terms})" if terms else ""
        raise InvalidProgramError(
            f"no list price of {name}{of} is known",
            remedy=f"give price_per_hour={{{name!r}: USD}}, dollars for the whole "
            "machine",
        )
    basis = f"{listed.source}, {listed.terms}, {listed.region}, {listed.date}"
    return Price(listed.usd_per_hour * target.instances, basis, listed.terms)


def _listed(target: Target, terms: Terms | None) -> ListPrice | None:
    check_word("terms", terms, (None, "on demand", "Capacity Block"))
    if target.instance is None:
        return None
    prices = (target.instance.price, target.instance.block_price)
    return next((p for p in prices if p and terms in (None, p.terms)), None)


def _positive(name: str, value: float) -> float:
    if not value > 0 or math.isinf(value):
        raise InvalidProgramError(f"{name} of {value}", remedy="give a number above 0")
    return value


def check_utilization(utilization: float) -> None:
    if not 0 < utilization <= 1:
        raise InvalidProgramError(
            f"a utilization of {utilization}", remedy="give a share above 0, at most 1"
        )


def check_watts(watts: float | None) -> None:
    if watts is not None:
        _positive("watts", watts)


def rented_hours(busy_seconds: float, utilization: float) -> float:
    """Return the hours for which a machine is rented to work for `busy_seconds`, if it
    works for the share `utilization` of the rented time."""
    return busy_seconds / SECONDS_PER_HOUR / utilization


def energy_kwh(watts: float, hours: float) -> float:
    """Return the kWh that a machine of average power `watts` uses in `hours`."""
    return watts * hours / 1000.0


# -- training --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The time of a training step, in which every copy (replica) of the program runs
    once and the gradients of all copies are added.

    Attributes:
        compute_seconds: the time of one copy, including its own collectives.
        all_reduce_seconds: the time of the all-reduce of gradients over the copies.
        exposed_seconds: the part of the all-reduce that does not overlap the backward
            pass.
        launch_seconds: the delay between a step and the next, including the wait for
            all ranks.
    """

    compute_seconds: float
    all_reduce_seconds: float = 0.0
    exposed_seconds: float = 0.0
    launch_seconds: float = 0.0

    @property
    def step_seconds(self) -> float:
        """Return the seconds from the start of a step to the start of the next."""
        return self.compute_seconds + self.exposed_seconds + self.launch_seconds


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """The length of a training run, and how it uses the machine.

    Attributes:
        steps: optimizer steps; None if `tokens` is given or the length is unknown.
        tokens: the tokens of all steps, given instead of `steps`.
        tokens_per_step: tokens that one copy of the program processes in a step.
        utilization: share of the rented time in which steps run.
        watts: average power of the whole machine; None if not known.
    """

    steps: int | None = None
    tokens: float | None = None
    tokens_per_step: float | None = None
    utilization: float = 1.0
    watts: float | None = None

    def check(self) -> None:
        """Refuse a run that is incomplete or contradicts itself.

        Raises:
            InvalidProgramError: both `steps` and `tokens` are given; `tokens` is given
                without `tokens_per_step`; a number is not above 0; the utilization is
                above 1.
        """
        check_utilization(self.utilization)
        for name in ("steps", "tokens", "tokens_per_step", "watts"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.steps is not None and self.tokens is not None:
            raise InvalidProgramError(
                "the length of a run is given both in steps and in tokens",
                remedy="give steps or tokens, not both",
            )
        if self.tokens is not None and self.tokens_per_step is None:
            raise InvalidProgramError(
                f"a run of {self.tokens:.4g} tokens has steps of unknown size",
                remedy="give tokens_per_step, the tokens of one call of the step",
            )

    def steps_of(self, copies: float) -> int | None:
        """Return the number of steps of the run, if `copies` copies of the program run
        in every step; None if neither `steps` nor `tokens` is given."""
        if self.tokens is None:
            return self.steps
        assert self.tokens_per_step is not None
        return math.ceil(self.tokens / (self.tokens_per_step * copies))


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """The cost of a run on one machine with one policy; unknown values are None.

    Attributes:
        machine: the name of the instance or of the caller's machine.
        policy: the name of the policy; "" for the caller's machine.
        devices: logical cores in use; 0 for the caller's machine.
        copies: copies of the program, each with its own batch; for the caller's
            machine, the number of such batches that its step processes.
        time: the parts of a step's time.
        tokens_per_second: tokens of all copies in a step, divided by the step's time;
            rented time in which no step runs does not count.
        steps: optimizer steps.
        tokens: tokens of all steps.
        hours: rented hours.
        dollars: the price of the run.
        dollars_per_million_tokens: price of a million tokens at the run's utilization.
        energy_kwh: energy of the rented hours, from the caller's watts.
        price: the price of the whole machine.
        hbm_bytes: peak use of HBM on one device, if results reuse the memory of donated
            arguments; 0 for the caller's machine.
        hbm_capacity_bytes: the HBM of one device; 0 for the caller's machine.
    """

    machine: str
    policy: str = ""
    devices: int = 0
    copies: float = 1
    time: StepTime
    tokens_per_second: float | None
    steps: int | None
    tokens: float | None
    hours: float | None
    dollars: float | None
    dollars_per_million_tokens: float | None
    energy_kwh: float | None
    price: Price
    hbm_bytes: int = 0
    hbm_capacity_bytes: int = 0

    @property
    def dollars_per_batch(self) -> float:
        """Return the dollars for a step, divided by `copies`, as if steps ran during
        all of the rented time."""
        hours = rented_hours(self.step_seconds, 1.0)
        return hours * self.price.usd_per_hour / self.copies

    @property
    def step_seconds(self) -> float:
        """Return the seconds from the start of a step to the start of the next."""
        return self.time.step_seconds

    @property
    def fits(self) -> bool:
        """Return whether the program fits in HBM; true for the caller's machine, whose
        bytes are not counted."""
        return self.hbm_bytes <= self.hbm_capacity_bytes

    @property
    def record(self) -> dict[str, object]:
        """Return the fields as a flat dictionary, for a data frame or JSON."""
        found = dataclasses.asdict(self)
        time, _ = found.pop("time"), found.pop("price")
        head = {key: found.pop(key) for key in ("machine", "policy", "devices")}
        head["step_seconds"] = self.step_seconds
        return {**head, **found, "fits": self.fits, **time, **self.price.record}


def training_cost(
    machine: str,
    time: StepTime,
    price: Price,
    run: TrainingRun,
    *,
    copies: float = 1,
    policy: str = "",
    devices: int = 0,
    hbm_bytes: int = 0,
    hbm_capacity_bytes: int = 0,
) -> TrainingCost:
    """Return the cost of a training run on a machine.

    In a step each copy processes `run.tokens_per_step` tokens. The other arguments are
    the fields of `TrainingCost` with the same names."""
    steps = run.steps_of(copies)
    made = None if run.tokens_per_step is None else run.tokens_per_step * copies
    rate = None if made is None else made / time.step_seconds
    hours = None
    if steps is not None:
        hours = rented_hours(steps * time.step_seconds, run.utilization)
    per_million = None
    if rate is not None:
        hours_per_million = rented_hours(MILLION / rate, run.utilization)
        per_million = price.usd_per_hour * hours_per_million
    has_energy = run.watts is not None and hours is not None
    return TrainingCost(
        machine=machine,
        policy=policy,
        devices=devices,
        copies=copies,
        time=time,
        tokens_per_second=rate,
        steps=steps,
        tokens=None if made is None or steps is None else made * steps,
        hours=hours,
        dollars=None if hours is None else hours * price.usd_per_hour,
        dollars_per_million_tokens=per_million,
        energy_kwh=energy_kwh(run.watts or 0.0, hours or 0.0) if has_energy else None,
        price=price,
        hbm_bytes=hbm_bytes,
        hbm_capacity_bytes=hbm_capacity_bytes,
    )
