"""The statistics of a run as they grow: rows of counters, by the number of the probe.

What loops, branches, callees and devices count is kept apart while they are traced
(`StatisticsAccumulator.apart`), carried out of them as arrays, and added to what came
before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.probes.plan import ProbePlan
from neuronjax.execution.probes.rounding_counters import (
    COUNTERS,
    CounterLayout,
    Counters,
    count_rounding,
    sum_words,
)
from neuronjax.ir.instruction import Block, Instruction

Arrays = Sequence[jax.Array]
Rows = dict[int, Counters]


class StatisticsAccumulator:
    """What has been counted so far, in the part of a program that is being run.

    Attributes:
        plan: what is measured; None for nothing, and then all of this is empty.
        rows: of the probes that were run.
    """

    def __init__(self, plan: ProbePlan | None) -> None:
        self.plan = plan
        self.rows: Rows = {}

    def count_rounding(
        self,
        i: Instruction,
        operands: Arrays,
        results: Arrays,
        execute: Callable[[Instruction], Arrays],
    ) -> None:
        """Counts what an instruction did to the numbers, if one is to be measured.

        Args:
            i: the instruction.
            operands: what it was given.
            results: what it has written.
            execute: executes another instruction on the same operands.
        """
        slot = None if self.plan is None else self.plan.slot(i)
        if self.plan is None or slot is None:
            return
        probe, wide = self.plan.probes[slot], self.plan.wide(i)
        before = after = results[0]
        if wide is not None:
            (before,) = execute(wide)
        elif probe.compared:
            before = operands[0]
        layout = CounterLayout.of(probe, self.plan.collect)
        summed = operands if layout.updates else ()
        scales = results[1] if probe.blocked is not None else None
        self.add({slot: count_rounding(layout, before, after, summed, scales)})

    def add(self, rows: Rows) -> None:
        """Counts what a part of the program has counted."""
        for slot, row in rows.items():
            old = self.rows.get(slot)
            self.rows[slot] = row if old is None else merged(old, row)

    def apart(self, run: Callable[[], Any]) -> tuple[Any, Rows]:
        """What `run` returns, and what is counted while it does; nothing else is."""
        outer, self.rows = self.rows, {}
        results = run()
        rows, self.rows = self.rows, outer
        return results, rows

    def nothing(self, blocks: Sequence[Block]) -> Rows:
        """Empty counters of all probes that blocks run."""
        if self.plan is None:
            return {}
        return {slot: self._empty(slot) for slot in self.plan.slots(blocks)}

    def arrays(self) -> dict[str, jax.Array]:
        """`as_arrays` of every probe of the plan."""
        probes = () if self.plan is None else self.plan.probes
        return as_arrays(
            [self.rows.get(s) or self._empty(s) for s in range(len(probes))]
        )

    def _empty(self, slot: int) -> Counters:
        assert self.plan is not None
        return CounterLayout.of(self.plan.probes[slot], self.plan.collect).empty()


# -- rows ------------------------------------------------------------------------------


def merged(first: Counters, second: Counters) -> Counters:
    """The counters of both together."""
    return total(jax.tree.map(lambda *x: jnp.stack(x), first, second))


def total(rows: Counters) -> Counters:
    """The sum over the leading axis, whose length is at most 65536."""
    return Counters(
        counts=_sum_pairs(rows.counts),
        amax=jnp.max(rows.amax, axis=0),
        exponents=None if rows.exponents is None else _sum_pairs(rows.exponents),
        scales=None if rows.scales is None else _sum_pairs(rows.scales),
    )


def _sum_pairs(pairs: jax.Array) -> jax.Array:
    """The sum of 64-bit numbers along the first axis."""
    low, high = pairs[..., 0], jnp.sum(pairs[..., 1], axis=0, dtype=jnp.uint32)
    total = sum_words(low)
    return total.at[..., 1].add(high)


def added(rows: Rows, more: Rows) -> Rows:
    """Rows with those of some of their probes counted in."""
    return rows | {slot: merged(rows[slot], row) for slot, row in more.items()}


def as_arrays(rows: Sequence[Counters]) -> dict[str, jax.Array]:
    """Rows of all probes as arrays with a leading axis; see `Statistics.arrays`."""
    bits = [row.amax for row in rows] or [jnp.zeros((0,), jnp.uint32)]
    arrays = {
        "counts": _stack([row.counts for row in rows], (len(COUNTERS), 2)),
        "amax": lax.bitcast_convert_type(jnp.stack(bits).reshape(-1), jnp.float32),
    }
    for name in ("exponents", "scales"):
        found = [x for row in rows if (x := getattr(row, name)) is not None]
        if found:
            arrays[name] = jnp.stack(found)
    return arrays


def _stack(arrays: Sequence[jax.Array], shape: tuple[int, ...]) -> jax.Array:
    return jnp.stack(arrays) if arrays else jnp.zeros((0, *shape), jnp.uint32)


def merged_arrays(
    first: Mapping[str, jax.Array], second: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
    """Adds up `as_arrays` of two runs with the same probes."""
    merged = {}
    for name, x in first.items():
        both = jnp.stack([x, second[name]])
        merged[name] = jnp.max(both, axis=0) if name == "amax" else _sum_pairs(both)
    return merged
