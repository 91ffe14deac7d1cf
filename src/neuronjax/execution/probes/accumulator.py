"""The observations of a run: counters of probes, and amaxes of delayed scaling.

Observations of loops, branches, callees and devices are kept apart while these are
traced (`StepAccumulator.apart`), returned from them as arrays, and merged into earlier
observations. Counters are added; amaxes are merged by their maximum, so the amax of a
mesh is the largest of its devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.probes import step_signs
from neuronjax.execution.probes.plan import ProbePlan
from neuronjax.execution.probes.rounding_counters import (
    COUNTERS,
    CounterLayout,
    Counters,
    count_rounding,
    empty_counters,
    revived,
    sum_words,
)
from neuronjax.execution.probes.watching import watch
from neuronjax.ir.instruction import Block, Instruction
from neuronjax.ir.instruction_set import Call

Arrays = Sequence[jax.Array]
Rows = dict[int, Counters]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Observed:
    """The observations of a part of a program, as arrays that loops can carry.

    Attributes:
        rows: the counters of the probes that were run, by slot.
        amaxes: float32 [amax slots], the largest magnitudes of this step; None if no
            scaling uses them.
    """

    rows: Rows
    amaxes: jax.Array | None

    def with_more(self, more: Observed) -> Observed:
        """Return the observations of this part and another, merged."""
        rows, amaxes = dict(self.rows), self.amaxes
        for slot, row in more.rows.items():
            rows[slot] = merged(rows[slot], row) if slot in rows else row
        if amaxes is not None and more.amaxes is not None:
            amaxes = jnp.maximum(amaxes, more.amaxes)
        return Observed(rows, amaxes)


class StepAccumulator:
    """The observations so far, in the part of the program that is being run.

    Attributes:
        plan: what is measured; None if nothing is measured, and then there are no rows.
        previous_amaxes: float32 [amax slots], the largest of earlier steps; None if no
            scaling uses them, and then nothing is recorded.
    """

    def __init__(
        self, plan: ProbePlan | None, previous_amaxes: jax.Array | None = None
    ) -> None:
        self.plan = plan
        self.previous_amaxes = previous_amaxes
        self.observed = self.nothing(())

    def record_amax(self, slot: int, amax: jax.Array) -> None:
        """Record a largest magnitude; NaN and Inf are kept out of the history."""
        assert self.observed.amaxes is not None
        amax = jnp.where(jnp.isfinite(amax), amax, jnp.float32(0))
        amaxes = self.observed.amaxes.at[slot].max(amax)
        self.observed = replace(self.observed, amaxes=amaxes)

    def count(
        self,
        i: Instruction,
        operands: Arrays,
        results: Arrays,
        execute: Callable[[Instruction], Arrays],
        environment: Mapping[int, jax.Array],
    ) -> None:
        """Count what an instruction did to the numbers, if the plan measures it.
        `execute` executes another instruction on the same operands."""
        slot = None if self.plan is None else self.plan.slot(i)
        if self.plan is None or slot is None:
            return
        probe = self.plan.probe(slot)
        if not probe.counted:
            row = Counters(None, watch(probe, i, operands, results[0]))
            self.add(Observed({slot: row}, None))
            return
        number, wide = self.plan.before(i), self.plan.wide(i)
        earlier = [] if number is None else [environment[number]]
        before = after = results[0]
        if probe.ends:
            before = earlier[0]
        elif wide is not None:
            (before,) = execute(wide)
        elif probe.compared:
            before = operands[0]
        elif probe.never_zero:
            before = revived(after, operands[0])
        layout = CounterLayout.of(probe, self.plan.collect)
        summed = operands if layout.updates else earlier
        scales = results[1] if probe.blocked is not None else None
        row = count_rounding(layout, before, after, summed, scales)
        self.add(Observed({slot: row}, None))

    def add(self, observed: Observed) -> None:
        """Add the observations of a part of the program."""
        self.observed = self.observed.with_more(observed)

    def add_called(self, i: Call, observed: Observed) -> None:
        """Add a function's observations, in the slots that this call has for them."""
        slots = {} if self.plan is None else self.plan.called(i)
        rows = {slots[s]: row for s, row in observed.rows.items() if s in slots}
        self.add(replace(observed, rows=rows))

    def around(self, i: Call, run: Callable[[], Any]) -> Any:
        """Run the call of a function, add its observations, and return its results."""
        results, observed = self.apart(run)
        self.add_called(i, observed)
        return results

    def apart(self, run: Callable[[], Any]) -> tuple[Any, Observed]:
        """Return the result of `run` and only the observations made during it."""
        outer, self.observed = self.observed, self.nothing(())
        results = run()
        observed, self.observed = self.observed, outer
        return results, observed

    def nothing(self, blocks: Sequence[Block]) -> Observed:
        """Return empty observations for all probes in the blocks."""
        slots = () if self.plan is None else self.plan.slots(blocks)
        previous = self.previous_amaxes
        amaxes = None if previous is None else jnp.zeros_like(previous)
        return Observed({slot: self._empty(slot) for slot in slots}, amaxes)

    def arrays(self, arguments: Arrays, results: Arrays) -> dict[str, jax.Array]:
        """Return the counts of a step, as `Statistics.arrays`. The arguments and
        results of main show whether an Inf or NaN was in an argument, and whether one
        is in a result.
        """
        assert self.plan is not None
        order = self.plan.order
        rows = [self.observed.rows.get(slot) or self._empty(slot) for slot in order]
        arrays = as_arrays(rows)
        signs = step_signs.signs_of_step(self.plan, arrays, arguments, results)
        return arrays | {"steps": jnp.uint32(1), "signs": step_signs.first_step(signs)}

    def _empty(self, slot: int) -> Counters:
        assert self.plan is not None
        return empty_counters(self.plan.probe(slot), self.plan.collect)


# -- rows ------------------------------------------------------------------------------


def merged(first: Counters, second: Counters) -> Counters:
    """Return the counters of two parts of a run, merged."""
    return total(jax.tree.map(lambda *x: jnp.stack(x), first, second))


def total(rows: Counters) -> Counters:
    """Return the sum over the leading axis, whose length is at most 65536."""
    amax, pairs = jnp.max(rows.amax, axis=0), rows._replace(amax=None)
    return jax.tree.map(_sum_pairs, pairs)._replace(amax=amax)


def _sum_pairs(pairs: jax.Array) -> jax.Array:
    """Return the sum of 64-bit numbers along the first axis."""
    low, high = pairs[..., 0], jnp.sum(pairs[..., 1], axis=0, dtype=jnp.uint32)
    total = sum_words(low)
    return total.at[..., 1].add(high)


def as_arrays(rows: Sequence[Counters]) -> dict[str, jax.Array]:
    """Return the rows of all probes as arrays with a leading axis; see
    `Statistics.arrays`."""
    bits = [row.amax for row in rows] or [jnp.zeros((0,), jnp.uint32)]
    arrays = {
        "counts": _counts([row.counts for row in rows]),
        "amax": lax.bitcast_convert_type(jnp.stack(bits).reshape(-1), jnp.float32),
        "steps": jnp.uint32(0),
        "signs": jnp.zeros((len(rows), len(step_signs.SIGNS), 2), jnp.uint32),
    }
    for name in ("exponents", "scales"):
        found = [x for row in rows if (x := getattr(row, name)) is not None]
        if found:
            arrays[name] = jnp.stack(found)
    return arrays


def _counts(counts: Sequence[jax.Array | None]) -> jax.Array:
    """Return the counts of all probes, with zeros where nothing is counted."""
    shape = (len(COUNTERS), 2)
    places = [n for n, row in enumerate(counts) if row is not None]
    rows = [row for row in counts if row is not None]
    known = jnp.stack(rows) if rows else jnp.zeros((0, *shape), jnp.uint32)
    if len(places) == len(counts):
        return known
    empty = jnp.zeros((len(counts), *shape), jnp.uint32)
    return empty.at[np.asarray(places, np.int32)].set(known)


def merged_arrays(
    first: Mapping[str, jax.Array], second: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Add up `as_arrays` of two runs with the same probes, the later one second."""
    merged = {}
    for name, x in first.items():
        y = second[name]
        if name == "amax":
            merged[name] = jnp.maximum(x, y)
        elif name == "steps":
            merged[name] = x + y
        elif name == "signs":
            merged[name] = step_signs.merged_signs(x, y, first["steps"])
        else:
            merged[name] = _sum_pairs(jnp.stack([x, y]))
    return merged
