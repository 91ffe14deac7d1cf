"""The signs (symptoms) of faults in one step, decided from the counts of its probes.

Signs are recorded per step, so a report can say how many steps show a sign, and which
step was the first. An op makes an Inf or NaN if its result has one and its measured
operands have none. This is a sign only if a result of the program also has one (a
select, or a skipped step, may drop it), and no argument has one.
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
#: Stands for the number of the first step with a sign if no step has one.
NEVER = np.uint32(0xFFFF_FFFF)
#: Largest number of elements of an unmeasured result that is examined.
SMALL = 4096


def signs_of_step(
    plan: ProbePlan,
    arrays: Mapping[str, jax.Array],
    arguments: Sequence[jax.Array],
    results: Sequence[jax.Array],
) -> jax.Array:
    """Return which signs each probe shows, as booleans [probes, signs]. `arrays` holds
    "counts" and "amax" of the step, as `Statistics.arrays`; arguments and results are
    those of main."""
    numbers = as_floats(arrays["counts"])
    n = {name: numbers[:, k] for k, name in enumerate(COUNTERS)}
    top = lax.bitcast_convert_type(arrays["amax"], jnp.uint32)
    integer = np.asarray([p.kind == "integer" for p in plan.probes], np.bool_)
    update = np.asarray([p.is_update for p in plan.probes], np.bool_)
    inf, nan = n["inf"] + n["nan"] > 0, n["nan"] > 0
    finiteness = Finiteness(inf | (top >= INF_BITS), nan | (top > INF_BITS))
    made = _made(plan, finiteness)
    # A cast sees the numbers before its rounding.
    cast = np.asarray([p.kind == "cast" for p in plan.probes], np.bool_)
    made = Finiteness(*(x & (~cast | (n["overflow"] > 0)) for x in made))
    several = n["elements"] > 1
    broken = _broken(plan, finiteness, arguments, results)
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


def as_floats(pairs: jax.Array) -> jax.Array:
    """Return 64-bit numbers, pairs of words with the low word first, as floats."""
    words = pairs.astype(jnp.float32)
    return words[..., 0] + words[..., 1] * np.float32(2.0**32)


def _made(plan: ProbePlan, found: Finiteness) -> Finiteness:
    """Return for every probe whether it has an Inf or NaN that no operand has."""
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
    """Return whether a result is not finite although the arguments are. Of the results
    that no probe measures, only those of at most `SMALL` elements, such as a loss, are
    examined; if all results are larger and unmeasured, all are examined."""
    known = [place for place in plan.results if place is not None]
    others = [x for x, n in zip(results, plan.results, strict=True) if n is None]
    small = [x for x in others if x.size <= SMALL]
    looked_at = small if known or small else others
    broken = any_nonfinite(looked_at)
    if known:
        broken |= jnp.any(found.nonfinite[np.asarray(known, np.int32)])
    return broken & ~any_nonfinite(arguments)


def first_step(signs: jax.Array) -> jax.Array:
    """Return [probes, signs, 2] for one step: how many steps show a sign (0 or 1), and
    the number of the first of them."""
    never = jnp.where(signs, jnp.uint32(0), NEVER)
    return jnp.stack([signs.astype(jnp.uint32), never], axis=-1)


def merged_signs(x: jax.Array, y: jax.Array, before: jax.Array) -> jax.Array:
    """Merge the step counts and first steps of two runs; `x` covers `before` steps."""
    later = jnp.where(y[..., 0] > 0, y[..., 1] + before, NEVER)
    since = jnp.where(x[..., 0] > 0, x[..., 1], later)
    return jnp.stack([x[..., 0] + y[..., 0], since], axis=-1)


_KINDS: Mapping[str, str] = {
    "wrapped": "integer",
    "underflow": "underflow",
    "clipped": "saturation",
}


def fault_kind(sign: str, probe: Probe) -> str:
    """Return the name of the fault that a sign (a symptom) of a probe indicates."""
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
    `signs` has both numbers for each of `SIGNS` that the probe counted."""
    faults: dict[str, dict[str, int]] = {}
    for sign, (steps, since) in zip(SIGNS, signs, strict=True):
        kind = fault_kind(sign, probe)
        if steps:
            known = faults.get(kind, {"steps": 0, "since": since})
            faults[kind] = {
                "steps": max(known["steps"], steps),
                "since": min(known["since"], since),
            }
    return faults


def places_by_kind(probes: Sequence[Probe]) -> dict[str, list[tuple[int, int]]]:
    """Return for every kind of fault the probes and signs that may show it."""
    places: dict[str, list[tuple[int, int]]] = {}
    for n, probe in enumerate(probes):
        for k, sign in enumerate(SIGNS):
            places.setdefault(fault_kind(sign, probe), []).append((n, k))
    return places
