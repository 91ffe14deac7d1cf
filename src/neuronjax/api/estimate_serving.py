"""`estimate_serving`: predicted time and cost of served tokens, from shapes alone.

Prefill and decode are two programs with the same weights and KV cache. `profile` gives
their times, from which latency, throughput, dollars and energy follow
(`timing.serving_money`). Instances run copies of both programs, as in `estimate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group

from neuronjax.api.asked import Askable, shared_setting
from neuronjax.api.instance_costs import (
    Found,
    Names,
    Policies,
    PricedTable,
    by_name,
    carried,
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
from neuronjax.hardware import Target
from neuronjax.report.money_tables import serving_tables
from neuronjax.report.setting import policy_name
from neuronjax.timing.collectives import launch_seconds, queued_launch_seconds
from neuronjax.timing.hbm import capacity_bytes, with_donation
from neuronjax.timing.money import PricePerHour, Terms, check_watts
from neuronjax.timing.serving_money import (
    ServedMemory,
    ServingCost,
    Traffic,
    serving_cost,
)


def estimate_serving(
    prefill: Askable,
    decode: Askable,
    *,
    prompt_tokens: int,
    output_tokens: int,
    batch: int,
    prefill_batch: int = 1,
    instance: Names = None,
    policy: Policies = None,
    price_per_hour: PricePerHour = None,
    terms: Terms | None = None,
    devices: int | None = None,
    utilization: float = 1.0,
    watts: float | Mapping[str, float] | None = None,
    lnc: int | None = None,
    trips: Trips | None = None,
) -> Callable[..., ServingEstimate]:
    """Predict the latency and the price of served tokens.

    Args:
        prefill: a function that reads a prompt into a KV cache; as `profile`.
        decode: a function that makes one token for every sequence of a batch. Its
            arguments that have the type of a result and are not parameters are the KV
            cache, which is updated in place. A decode is priced for the full length of
            the cache. Its launch overlaps with the previous decode; if the launch takes
            longer, the difference is added. The launch of a prefill does not overlap.
        prompt_tokens: tokens of one request.
        output_tokens: tokens of one answer; the first is computed by the prefill.
        batch: sequences that a copy decodes together, as in `decode`'s arguments.
        prefill_batch: sequences of one call of prefill, as in its arguments.
        instance: as `estimate`.
        policy: as `estimate`.
        price_per_hour: as `estimate`.
        terms: as `estimate`.
        devices: logical cores in use; None for all that whole copies can fill.
        utilization: share of the rented time during which copies are full.
        watts: as `estimate`; without it, no energy is predicted.
        lnc: physical cores per logical core; None for the policy's, else the target's.
        trips: as `profile`.

    Returns:
        A function of two tuples, the arguments of `prefill` and of `decode` (arrays or
        ShapeDtypeStructs), that returns the `ServingEstimate`; nothing is run.

    Raises:
        InvalidProgramError: as `estimate`; invalid traffic; two functions whose
            targets or policies differ, without `instance` or `policy`.

    Example:
        >>> nj.estimate_serving(prefill, decode, instance=["inf2.48xlarge", "trn2"],
        ...                     price_per_hour={"trn2": 2.2}, prompt_tokens=1024,
        ...                     output_tokens=256, batch=8)(
        ...     (params, prompt), (params, cache, token, position))
    """
    traffic = Traffic(
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        batch=batch,
        prefill_batch=prefill_batch,
        utilization=utilization,
    )
    traffic.check()
    for given in watts.values() if isinstance(watts, Mapping) else (watts,):
        check_watts(given)
    given = {"instance": instance, "policy": policy}
    setting = shared_setting((prefill, decode), given)
    targets = targets_of(setting["instance"], instance)
    prices = prices_of(targets, price_per_hour, terms)
    policies = policies_of(setting["policy"])
    timing = dict(lnc=lnc, trips=trips)

    def cost(target: Target, first: Profile, then: Profile) -> ServingCost:
        shards = max(shards_of(first), shards_of(then))
        copies = copies_of(target, shards, devices, then.core.lnc)
        launch = launch_seconds(first.core, target, shards)
        queued = queued_launch_seconds(target, shards, then.total_seconds)
        return serving_cost(
            target.name,
            first.total_seconds + launch,
            then.total_seconds + queued,
            prices[target.name],
            traffic,
            ServedMemory(
                needed_bytes=max(p.memory.hbm.bytes for p in (first, then)),
                capacity_bytes=capacity_bytes(then.core),
                weights_bytes=parameter_bytes(then),
                kv_cache_bytes=sum(size for size, _ in carried(then)),
            ),
            policy=policy_name(then.policy),
            devices=copies * shards,
            copies=copies,
            watts=by_name(watts, target.name.partition(":")[0], "watts"),
        )

    def estimated(
        prefill_args: Sequence[Any], decode_args: Sequence[Any]
    ) -> ServingEstimate:
        found = (
            profiles_of(step, timing, (targets, policies), tuple(args), {})
            for step, args in ((prefill, prefill_args), (decode, decode_args))
        )
        (firsts, refused), (thens, more) = found
        pairs = _both(firsts, thens)
        profiles = tuple(p for _, *pair in pairs for p in pair)
        costs = tuple(cost(*pair) for pair in pairs)
        decodes = zip(profiles[1::2], costs, strict=True)
        gains = (p for p, c in decodes if p.total_seconds == c.inter_token_seconds)
        gaining = (*profiles[::2], *gains)
        return ServingEstimate(
            name=thens[0][1].name,
            costs=costs,
            refused={**refused, **more},
            notes=(*slower_notes(profiles, trips, gaining), *notes_of(profiles)),
            utilization=utilization,
            profiles=profiles,
            traffic=traffic,
        )

    return estimated


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ServingEstimate(PricedTable):
    """The cost of serving, one row for every machine and policy; prints as tables.

    Attributes:
        costs: the rows, as `ServingCost`.
        traffic: the requests that are served.
    """

    costs: tuple[ServingCost, ...]
    traffic: Traffic
    _MEASURED = (
        "for two models on trn2, the published time of a token is 8 to 12 ms longer "
        "than predicted; a server that waits for each token before it launches the "
        "next step explains 1 to 3 ms of this"
    )

    @property
    def cheapest(self) -> ServingCost:
        """The row that fits in memory with the fewest dollars per token."""
        return self._cheapest(lambda cost: cost.dollars_per_million_tokens)

    def __rich__(self) -> Group:
        traffic = self.traffic
        title = (
            f"{self.name}: prompts of {traffic.prompt_tokens:,} tokens, answers of "
            f"{traffic.output_tokens:,}, batch {traffic.batch}"
            f"{self._shown_utilization()}"
        )
        return serving_tables(title, self.costs, self.remarks())


def _given_away(profiled: Profile) -> Profile:
    """Return the profile with all arguments donated: a server keeps one KV cache."""
    timeline = profiled.timeline
    everything = range(len(timeline.memory.arguments))
    memory = with_donation(timeline.memory, everything)
    return replace(profiled, timeline=replace(timeline, memory=memory))


def _both(firsts: Found, thens: Found) -> list[tuple[Target, Profile, Profile]]:
    known = {(target.name, p.policy): _given_away(p) for target, p in firsts}
    return [
        (target, known[target.name, then.policy], _given_away(then))
        for target, then in thens
        if (target.name, then.policy) in known
    ]
