"""The signs of faults in one step, decided inside it from what its probes counted.

Whether a sign is there is said per step, so that a run of many can tell in how many of
them, and since when. Who makes an Inf or NaN is seen from whose operands have none, as
far as these are measured. It is a sign only if a result has it: what a choice leaves
out, or a skipped step, is none; and only if no argument had it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.probes.collect import Probe
from neuronjax.execution.probes.plan import ProbePlan
from neuronjax.execution.probes.rounding_counters import COUNTERS
from neuronjax.execution.probes.signs import (
    FEW,
    GONE,
    MOSTLY,
    Finiteness,
    absorption_kind,
    makes_nonfinite,
    nonfinite_kind,
)
from neuronjax.execution.probes.watching import INF_BITS, any_nonfinite

SIGNS = ("made_inf", "made_nan", "wrapped", "underflow", "absorbed", "clipped")
#: In place of the first step that has a sign.
NEVER = np.uint32(0xFFFF_FFFF)
#: Elements of a result that is looked at though it is not measured.
SMALL = 4096


def signs_of_step(
    plan: ProbePlan,
    arrays: Mapping[str, jax.Array],
    arguments: Sequence[jax.Array],
    results: Sequence[jax.Array],
) -> jax.Array:
    """Booleans [probes, signs].

    Args:
        plan: what is measured.
        arrays: "counts" and "amax" of the step, as `Statistics.arrays`.
        arguments: of main.
        results: of main.
    """
    numbers = arrays["counts"].astype(jnp.float32)
    numbers = numbers[..., 0] + numbers[..., 1] * np.float32(2.0**32)
    n = {name: numbers[:, k] for k, name in enumerate(COUNTERS)}
    top = lax.bitcast_convert_type(arrays["amax"], jnp.uint32)
    integer = np.asarray([p.kind == "integer" for p in plan.probes], np.bool_)
    update = np.asarray([p.is_update for p in plan.probes], np.bool_)
    inf, nan = n["inf"] + n["nan"] > 0, n["nan"] > 0
    found = Finiteness(inf | (top >= INF_BITS), nan | (top > INF_BITS))
    made = _made(plan, found)
    # A cast sees what it is given.
    cast = np.asarray([p.kind == "cast" for p in plan.probes], np.bool_)
    made = Finiteness(*(x & (~cast | (n["overflow"] > 0)) for x in made))
    several = n["elements"] > 1
    broken = _broken(plan, found, arguments, results)
    return jnp.stack(
        [
            made.nonfinite & ~made.nan & broken,
            made.nan & broken,
            integer & (top > 0),
            several & (n["underflow"] > GONE * n["nonzero"]),
            update & (n["stagnant"] > MOSTLY * n["updates"]),
            several & (n["saturated"] > FEW * n["elements"]),
        ],
        axis=1,
    )


def _made(plan: ProbePlan, found: Finiteness) -> Finiteness:
    """Of every probe, what none of those has from which its operands are."""
    before, after = plan.edges[:, 0], plan.edges[:, 1]

    def upstream(flags: jax.Array) -> jax.Array:
        return jnp.zeros_like(flags).at[after].max(flags[before])

    return makes_nonfinite(found, [Finiteness(*map(upstream, found))])


def _broken(
    plan: ProbePlan,
    found: Finiteness,
    arguments: Sequence[jax.Array],
    results: Sequence[jax.Array],
) -> jax.Array:
    """Whether a result is not finite, and the arguments are. Results that are measured
    are known; of the others the small ones are looked at, such as a loss, and all of
    them where there is nothing else to tell."""
    known = [place for place in plan.results if place is not None]
    others = [x for x, n in zip(results, plan.results, strict=True) if n is None]
    small = [x for x in others if x.size <= SMALL]
    looked_at = small if known or small else others
    broken = any_nonfinite(looked_at)
    if known:
        broken |= jnp.any(found.nonfinite[np.asarray(known, np.int32)])
    return broken & ~any_nonfinite(arguments)


def first_step(signs: jax.Array) -> jax.Array:
    """[probes, signs, 2]: in how many steps, of one, and in which."""
    never = jnp.where(signs, jnp.uint32(0), NEVER)
    return jnp.stack([signs.astype(jnp.uint32), never], axis=-1)


def merged_signs(x: jax.Array, y: jax.Array, before: jax.Array) -> jax.Array:
    """Of both runs together, of which the first had so many steps."""
    later = jnp.where(y[..., 0] > 0, y[..., 1] + before, NEVER)
    since = jnp.where(x[..., 0] > 0, x[..., 1], later)
    return jnp.stack([x[..., 0] + y[..., 0], since], axis=-1)


_KINDS: Mapping[str, str] = {
    "wrapped": "integer",
    "underflow": "underflow",
    "clipped": "saturation",
}


def fault_kind(sign: str, probe: Probe) -> str:
    """What the fault is called of which a probe shows a sign."""
    if sign in _KINDS:
        return _KINDS[sign]
    if sign == "absorbed":
        return absorption_kind(probe.running)
    if probe.kind == "cast":
        return "overflow"  # to NaN, where a format has no Inf
    return nonfinite_kind(probe.function, sign == "made_nan")


def faults_of(
    probe: Probe, signs: Sequence[Sequence[int]]
) -> dict[str, dict[str, int]]:
    """Return, for each kind of fault, how many steps have it and which was the first.

    Args:
        probe: the probe that counted the signs.
        signs: (number of steps, number of the first step) of each of `SIGNS`.
    """
    found: dict[str, dict[str, int]] = {}
    for sign, (steps, since) in zip(SIGNS, signs, strict=True):
        kind = fault_kind(sign, probe)
        if steps:
            known = found.get(kind, {"steps": 0, "since": since})
            found[kind] = {
                "steps": max(known["steps"], steps),
                "since": min(known["since"], since),
            }
    return found


def places_by_kind(probes: Sequence[Probe]) -> dict[str, list[tuple[int, int]]]:
    """Of every kind the probes, and the signs, that may show it."""
    found: dict[str, list[tuple[int, int]]] = {}
    for n, probe in enumerate(probes):
        for k, sign in enumerate(SIGNS):
            found.setdefault(fault_kind(sign, probe), []).append((n, k))
    return found
