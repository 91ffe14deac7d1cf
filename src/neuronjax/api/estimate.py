"""`estimate`: what it would cost to train a model, from shapes alone.

`profile` predicts the seconds; the rest is arithmetic (`timing.money`). A program is
written for one device, or for a mesh of devices. An instance runs as many *copies* of
the program as the instance has logical cores for, each with a separate batch; the
gradients of a training step are added up over the copies. Prices are the caller's, or
dated list prices (`hardware.instances`). A rented machine is paid for as a whole.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group

from neuronjax.api.asked import Askable, own_setting
from neuronjax.api.instance_costs import (
    Names,
    Policies,
    PricedTable,
    by_name,
    copies_of,
    notes_of,
    parameter_bytes,
    policies_of,
    prices_of,
    profiles_of,
    shards_of,
    slower_notes,
    targets_of,
)
from neuronjax.api.profile import Trips
from neuronjax.api.profile_result import Profile
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import CHIPS, ChipSpec, Target
from neuronjax.ir.collectives.placement import Placement
from neuronjax.ir.program import is_cotangent_scope
from neuronjax.policy import Policy
from neuronjax.report.money_tables import training_tables
from neuronjax.report.quantities import decimal
from neuronjax.report.setting import policy_name
from neuronjax.timing.backward import backward_share
from neuronjax.timing.collectives import (
    collective_time,
    queued_launch_seconds,
    time_over_nodes,
)
from neuronjax.timing.hbm import capacity_bytes
from neuronjax.timing.money import (
    Price,
    PricePerHour,
    StepTime,
    Terms,
    TrainingCost,
    TrainingRun,
    training_cost,
)


class ServingChipWarning(UserWarning):
    """A warning: a training step is priced on a chip that is sold only for serving
    (Inferentia). The emulation runs the step, but AWS does not offer training on it."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine that the caller has measured, such as a GPU, for comparison.

    Attributes:
        name: its name in tables.
        step_seconds: seconds of one of its training steps.
        price_per_hour: US dollars for the whole machine.
        tokens_per_step: tokens of one step of all its devices; None for the tokens of
            one call of the estimated step.
        steps: training steps in total; None for the number given to `estimate`.
        watts: average power of the whole machine; None if unknown.
    """

    name: str
    step_seconds: float
    price_per_hour: float
    tokens_per_step: float | None = None
    steps: int | None = None
    watts: float | None = None


# -- training --------------------------------------------------------------------------


def estimate(
    step: Askable,
    *,
    instance: Names = None,
    policy: Policies = None,
    steps: int | Mapping[str, int] | None = None,
    tokens: float | None = None,
    tokens_per_step: float | None = None,
    price_per_hour: PricePerHour = None,
    terms: Terms | None = None,
    devices: int | None = None,
    gradient_bytes: float | None = None,
    overlap: float = 1.0,
    watts: float | Mapping[str, float] | None = None,
    utilization: float = 1.0,
    against: Machine | Mapping[str, Any] | Sequence[Machine | Mapping[str, Any]] = (),
    lnc: int | None = None,
    trips: Trips | None = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., Estimate]:
    """Predict what it costs to run a training step until a model is trained.

    Args:
        step: as `profile`.
        instance: an instance or UltraServer, or several to compare; "trn2.48xlarge:4"
            is four instances. None for the step's target, or if the target is a chip,
            the largest instance with this chip; "trn2.48xlarge" if the step has no
            target.
        policy: one policy or several; None for the step's own, else fp32.
        steps: number of optimizer steps of the training. Or a dict by policy name.
        tokens: total tokens to train on, instead of `steps`; this compares machines
            that run different numbers of copies.
        tokens_per_step: tokens that one call of `step`, by one copy, processes. Without
            it, no figures per token are given.
        price_per_hour: US dollars per hour for the whole instance; None for the list
            price. For several instances, a dict by name.
        terms: the terms of the list price: "on demand" or "Capacity Block"; None for on
            demand, or Capacity Block if the instance is not sold on demand.
        devices: logical cores in use; None for all that whole copies of the program
            can fill.
        gradient_bytes: bytes that one device adds up over the copies; None for the
            bytes of the arguments that are parameters, if `step` computes gradients.
        overlap: share of the backward pass that the gradients' all-reduce overlaps.
        watts: average power of the whole instance, from which the energy follows. Or a
            dict by the instance's name.
        utilization: share of the rented time during which steps run.
        against: machines to compare with, as `Machine` or a dict of its fields.
        lnc: physical cores per logical core; None for the policy's, else the target's.
        trips: as `profile`.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.

    Returns:
        A function of the step's arguments (arrays or ShapeDtypeStructs) that returns
        the `Estimate`; nothing is run.

    Raises:
        InvalidProgramError: an unknown instance or policy, no price, or invalid numbers
            of steps, tokens or devices.

    Warns:
        ServingChipWarning: a training step on Inferentia2.

    Example:
        >>> nj.estimate(train_step, instance=["trn1.32xlarge", "trn2.48xlarge"],
        ...             policy=["bf16", "fp8"], tokens=20e9, tokens_per_step=16_384,
        ...             against=nj.Machine(name="8 x H100", step_seconds=0.31,
        ...                                price_per_hour=55.0, tokens_per_step=2**20),
        ... )(state, batch)
    """
    own = own_setting(step)
    targets, policies = targets_of(own.get("target"), instance), policies_of(policy)
    training = _Training(
        run=TrainingRun(
            tokens=tokens, tokens_per_step=tokens_per_step, utilization=utilization
        ),
        steps=steps,
        watts=watts,
        prices=prices_of(targets, price_per_hour, terms),
        devices=devices,
        gradient_bytes=gradient_bytes,
        overlap=overlap,
        lnc=lnc,
    )
    numerics = own.get("policy")
    training.check(targets, policies, numerics and Policy.resolve(numerics))
    others = tuple(map(training.cost_of_machine, _machines(against)))
    static = dict(static_argnums=static_argnums, static_argnames=static_argnames)
    options = dict(lnc=lnc, trips=trips, **static)

    def estimated(*args: Any, **kwargs: Any) -> Estimate:
        found, refused = profiles_of(step, options, (targets, policies), args, kwargs)
        rows = tuple(training.cost(target, profiled) for target, profiled in found)
        alarming = {t: p for t, p in found if t.chip.serves_only and _trains(p)}
        alarms = [
            f"{target.name} is sold for serving: a training step runs on it in "
            f"emulation only; train on {_trainers(target.chip)}"
            for target in alarming
        ]
        for alarm in alarms:
            warnings.warn(alarm, ServingChipWarning, stacklevel=2)
        profiles = tuple(profiled for _, profiled in found)
        pairs = zip(profiles, rows, strict=True)
        gaining = [p for p, row in pairs if not row.time.launch_seconds]
        notes = [*alarms, *slower_notes(profiles, trips, gaining), *notes_of(profiles)]
        notes += _data_notes((*rows, *others)) + _placement_notes(profiles, rows)
        if gradient_bytes is None:
            notes += _gradient_notes(profiles, rows)
        return Estimate(
            name=profiles[0].name,
            costs=(*rows, *others),
            refused=refused,
            notes=tuple(notes),
            utilization=utilization,
            profiles=profiles,
        )

    return estimated


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Estimate(PricedTable):
    """The cost of training, one row for every machine and policy; prints as tables.

    The properties are figures of the first row; None if they are not known.

    Attributes:
        costs: the rows, as `TrainingCost`: instances in the order given, each under
            every policy, then the caller's machines.
    """

    costs: tuple[TrainingCost, ...]

    @property
    def cheapest(self) -> TrainingCost:
        """The row that fits in memory and trains on a batch for the fewest dollars."""
        return self._cheapest(lambda cost: cost.dollars_per_batch)

    @property
    def step_seconds(self) -> float:
        """Seconds from the start of one step to the start of the next."""
        return self.costs[0].step_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens that all copies together process per second while steps run."""
        return self.costs[0].tokens_per_second

    @property
    def hours(self) -> float | None:
        """Hours for which the instance is rented."""
        return self.costs[0].hours

    @property
    def dollars(self) -> float | None:
        """Cost of the trained model in US dollars."""
        return self.costs[0].dollars

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """Cost of a million tokens in US dollars, at the given utilization."""
        return self.costs[0].dollars_per_million_tokens

    @property
    def energy_kwh(self) -> float | None:
        """Energy of the rented hours, from the watts that the caller gave."""
        return self.costs[0].energy_kwh

    def __rich__(self) -> Group:
        first = self.costs[0]
        title = f"{self.name}{self._shown_utilization()}"
        if first.tokens is not None:
            title += f", {decimal(first.tokens)} tokens"
        elif first.steps is not None:
            title += f", {first.steps:,} steps"
        return training_tables(title, self.costs, self.remarks())


def _machines(given: Any) -> tuple[Machine, ...]:
    several = (given,) if isinstance(given, Machine | Mapping) else tuple(given)
    try:
        found = tuple(m if isinstance(m, Machine) else Machine(**m) for m in several)
    except TypeError as error:
        raise InvalidProgramError(
            f"a machine to compare with: {error}",
            remedy="give name, step_seconds and price_per_hour",
        ) from None
    for machine in found:
        if not (machine.step_seconds > 0 and machine.price_per_hour > 0):
            raise InvalidProgramError(
                f"machine {machine.name!r}: {machine.step_seconds} s per step at "
                f"{machine.price_per_hour} USD/h",
                remedy="give numbers above 0",
            )
    return found


@dataclass(frozen=True, kw_only=True)
class _Training:
    """The arguments of `estimate` that are the same for all machines."""

    run: TrainingRun
    steps: int | Mapping[str, int] | None
    watts: float | Mapping[str, float] | None
    prices: Mapping[str, Price]
    devices: int | None
    gradient_bytes: float | None
    overlap: float
    lnc: int | None

    def check(
        self,
        targets: Sequence[Target],
        policies: Sequence[Policy | None],
        own: Policy | None,
    ) -> None:
        if not 0 <= self.overlap <= 1:
            raise InvalidProgramError(
                f"an overlap of {self.overlap}", remedy="use 0 to 1"
            )
        for target, policy in itertools.product(targets, policies):
            numerics = policy or own
            given = numerics.lnc if numerics and self.lnc is None else self.lnc
            copies_of(target, 1, self.devices, given)
            if policy is not None or not isinstance(self.steps, Mapping):
                self._run(target, policy).check()

    def _run(self, target: Target, policy: Policy | None) -> TrainingRun:
        name = target.name.partition(":")[0]
        return replace(
            self.run,
            steps=by_name(self.steps, policy_name(Policy.resolve(policy)), "steps"),
            watts=by_name(self.watts, name, "watts"),
        )

    def cost(self, target: Target, found: Profile) -> TrainingCost:
        run = self._run(target, found.policy)
        run.check()
        shards = shards_of(found)
        copies = copies_of(target, shards, self.devices, found.core.lnc)
        return training_cost(
            target.name,
            self._time(target, found, copies, shards),
            self.prices[target.name],
            run,
            copies=copies,
            policy=policy_name(found.policy),
            devices=copies * shards,
            hbm_bytes=found.memory.hbm.bytes,
            hbm_capacity_bytes=capacity_bytes(found.core),
        )

    def _time(
        self, target: Target, found: Profile, copies: int, shards: int
    ) -> StepTime:
        size = self.gradient_bytes
        if size is None:  # gradients have the types of the parameters
            size = parameter_bytes(found) if _trains(found) else 0
        reduce = _all_reduce_seconds(size, copies, shards, target, found)
        backward = found.total_seconds * backward_share(
            found.lowered.captured.instructions, found.timeline
        )
        hidden = min(reduce, self.overlap * backward)
        # Copies that exchange nothing do not wait for each other.
        ranks = copies * shards if reduce else shards
        busy = found.total_seconds + reduce - hidden
        return StepTime(
            compute_seconds=found.total_seconds,
            all_reduce_seconds=reduce,
            exposed_seconds=reduce - hidden,
            launch_seconds=queued_launch_seconds(target, ranks, busy),
        )

    def cost_of_machine(self, machine: Machine) -> TrainingCost:
        copies = 1.0
        if machine.tokens_per_step is not None:
            if self.run.tokens_per_step is None:
                raise InvalidProgramError(
                    f"{machine.name!r} has tokens_per_step, but the estimate has none",
                    remedy="give tokens_per_step, the tokens of one call of the step",
                )
            copies = machine.tokens_per_step / self.run.tokens_per_step
        steps = None if isinstance(self.steps, Mapping) else self.steps
        run = replace(
            self.run,
            steps=machine.steps or steps,
            tokens=None if machine.steps else self.run.tokens,
            watts=machine.watts,
        )
        run.check()
        time = StepTime(compute_seconds=machine.step_seconds)
        price = Price(machine.price_per_hour, "given")
        return training_cost(machine.name, time, price, run, copies=copies)


def _all_reduce_seconds(
    size: float, copies: int, shards: int, target: Target, found: Profile
) -> float:
    if copies < 2 or not size:
        return 0.0
    lnc = found.core.lnc
    cores = _placed(found.policy.placement, copies, shards) or ()
    within, rest = divmod(copies, target.instances)
    whole = not rest and copies * shards == target.logical_cores(lnc)
    in_order = not cores and lnc == target.lnc_default
    if target.instances > 1 and whole and in_order:
        groups, nodes = _groups(within, shards), target.instances
        return time_over_nodes("all_reduce", size, groups, nodes, target).seconds
    groups, place = _groups(copies, shards), Placement.of(target, lnc=lnc, cores=cores)
    return collective_time(
        "all_reduce", size, groups, target, placement=place, lnc=lnc
    ).seconds


def _placed(placement: Sequence[int], copies: int, shards: int) -> Sequence[int] | None:
    """Return the logical core of every device of all copies. Return () if device n is
    on core n, and None if the placement does not cover all devices.

    A placement that permutes the cores of the first copy is repeated for every copy."""
    if not placement or len(placement) >= copies * shards:
        return placement
    if len(placement) == shards and sorted(placement) == list(range(shards)):
        return [copy * shards + core for copy in range(copies) for core in placement]
    return None


def _groups(copies: int, shards: int) -> list[list[int]]:
    return [[c * shards + s for c in range(copies)] for s in range(shards)]


def _trains(found: Profile) -> bool:
    scopes = {i.location.scope for i in found.lowered.instructions}
    return any(map(is_cotangent_scope, scopes))


def _trainers(chip: ChipSpec) -> str:
    """Return the names of chips that are sold for training: those with the cores of
    `chip`, or all if there are none."""
    every = [other for other in CHIPS.values() if not other.serves_only]
    alike = [other for other in every if other.core is chip.core]
    named = ", ".join(other.name for other in alike or every)
    return named + (", which has the same cores" if alike else "")


def _gradient_notes(
    profiles: Sequence[Profile], costs: Sequence[TrainingCost]
) -> list[str]:
    pairs = zip(profiles, costs, strict=True)
    silent = [p for p, c in pairs if c.copies > 1 and not c.time.all_reduce_seconds]
    if not silent:
        return []
    if not any(map(_trains, silent)):
        return ["no gradients are computed, so data-parallel copies exchange nothing"]
    return [
        "no argument looks like a parameter, so the time includes no all-reduce of "
        "gradients over data-parallel copies; give gradient_bytes"
    ]


def _placement_notes(
    profiles: Sequence[Profile], costs: Sequence[TrainingCost]
) -> list[str]:
    found = []
    for profiled, cost in zip(profiles, costs, strict=True):
        placement, copies = profiled.policy.placement, int(cost.copies)
        if copies > 1 and _placed(placement, copies, cost.devices // copies) is None:
            what = f"the placement is for {len(placement)} of {cost.devices} devices"
            found.append(f"{what}: gradients are timed as if device n were core n")
    return list(dict.fromkeys(found))


def _data_notes(costs: Sequence[TrainingCost]) -> list[str]:
    data = [cost.copies * cost.steps for cost in costs if cost.steps is not None]
    times = max(data) / min(data) if data else 1.0
    seen = "the rows are not comparable: one processes up to "
    alike = f"{times:.3g} times as much data as another; give tokens= for equal amounts"
    return [seen + alike] if times > 1.01 else []
