"""`Statistics`: what the writes of a run did to its numbers, probe by probe.

It is a pytree of a plain dict of arrays with the same structure for every call of a
program, so a training loop or `lax.scan` can carry it and `merge` the statistics of its
steps. Counts have 64 bits, in pairs of words; adding the arrays would lose the carry.
Outside a trace its methods return Python numbers; `diagnostics.statistics` draws it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from neuronjax.errors import InvalidProgramError
from neuronjax.execution.probes.accumulator import as_arrays, merged_arrays
from neuronjax.execution.probes.collect import Collect, Probe, element_format
from neuronjax.execution.probes.plan import Collector, ProbePlan
from neuronjax.execution.probes.rounding_counters import (
    COUNTERS,
    ERROR_UNIT,
    empty_counters,
    exponent_bins,
)
from neuronjax.execution.probes.step_signs import as_floats, faults_of, places_by_kind
from neuronjax.numerics.shown import Shown

#: Counters that are known only if the probe sees the numbers before the rounding.
COMPARED = ("underflow", "overflow", "saturated", "nan_in")
BLOCKS = ("blocks", "blocks_underflow", "blocks_saturated", "blocks_nan")
SUMS = ("updates", "stagnant")
#: Fraction -> (its counter, the counter that it is a fraction of).
_FRACTIONS = {
    "underflow": ("underflow", "nonzero"),
    "subnormal": ("subnormal", "nonzero"),
    "overflow": ("overflow", "elements"),
    "saturated": ("saturated", "elements"),
    "nan": ("nan", "elements"),
    "inf": ("inf", "elements"),
    "stagnant": ("stagnant", "updates"),
}


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("arrays",),
    meta_fields=("sites", "collect", "setting"),
)
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Statistics(Shown):
    """The statistics that `neuronjax.jit(..., collect=...)` returns with the outputs.

    Every iteration of a loop, every call of a function, every device of a mesh, and the
    branch that is taken are counted; work that all devices repeat is counted once.

    Counters of a probe; a "number" is neither NaN nor Inf:
        elements: elements that were measured. nonzero: before the rounding.
        underflow: nonzero elements that the rounding made zero (flushed).
        subnormal: nonzero elements below the format's smallest normal number after the
            rounding; elements of MX blocks are compared without their scale.
        overflow: numbers that became Inf or NaN. saturated: numbers larger than the
            largest of the format (or block), which were set to it; for a clip, without
            those that rounding alone would set to it.
        nan_in: NaNs before the rounding. nan, inf: NaNs and Infs after it.
        updates: additions of a nonzero number; for other writes of the next value of a
            state, elements that change before the rounding. stagnant: updates after
            which the number is unchanged.
        blocks: MX blocks, and those of them with elements that underflow, that
            saturate, or that are all NaN.

    Attributes:
        arrays: "counts" uint32 [sites, counters, 2], low word first; "amax" float32
            [sites], the largest number, or for kind "finite" the largest value, Inf and
            NaN included; "steps" uint32, calls; "signs" uint32 [sites, signs, 2], steps
            that show a fault and the first of them; with histograms "exponents" uint32
            [sites, bins, 2] and "scales" uint32 [MX sites, 256, 2], by E8M0 code.
        sites: the probes, in the order of the program.
        collect: the selection.
        setting: target, logical core, policy and SDK, in words.
    """

    shown_by = "neuronjax.diagnostics.statistics"

    arrays: Mapping[str, jax.Array]
    sites: tuple[Probe, ...]
    collect: Collect
    setting: str

    @classmethod
    def of(cls, arrays: Mapping[str, Any], collector: Collector) -> Statistics:
        """Return the statistics that the probes of a run have counted."""
        return cls(
            arrays=arrays,
            sites=collector.probes,
            collect=collector.collect,
            setting=collector.setting,
        )

    @classmethod
    def empty(cls, plan: ProbePlan, setting: str) -> Statistics:
        """Return the statistics of no call: every counter is zero."""
        rows = [empty_counters(probe, plan.collect) for probe in plan.probes]
        return cls(
            arrays=as_arrays(rows),
            sites=plan.probes,
            collect=plan.collect,
            setting=setting,
        )

    def merge(self, other: Statistics) -> Statistics:
        """Return the statistics of both calls together; also works inside a trace.

        Raises:
            InvalidProgramError: they are not from the same program.
        """
        if self.sites != other.sites or self.collect != other.collect:
            raise InvalidProgramError(
                "statistics of two programs cannot be merged",
                remedy="merge statistics of calls with arguments of the same types",
            )
        return replace(self, arrays=merged_arrays(self.arrays, other.arrays))

    # -- reading -----------------------------------------------------------------------

    @property
    def records(self) -> list[dict[str, Any]]:
        """Return one dict per probe, in the order of the program.

        It holds the probe's description, its counters, amax and effective bits, with
        None for unknown values; "faults" by kind: in how many "steps", and "since"
        which step; with histograms the nonzero "exponents", by the lowest exponent of a
        bin, and "scales", by exponent.
        """
        counts, amax = _numbers(self.arrays["counts"]), np.asarray(self.arrays["amax"])
        signs = np.asarray(self.arrays["signs"])
        steps, rows = int(self.arrays["steps"]), []
        for n, probe in enumerate(self.sites):
            record = _described(probe)
            record |= _known(
                probe, dict(zip(COUNTERS, counts[n].tolist(), strict=True))
            )
            is_float = probe.kind != "integer"
            record |= {"amax": float(amax[n]) if is_float else None, "steps": steps}
            record["faults"] = faults_of(probe, signs[n].tolist())
            rows.append(record | self._histograms(n))
        return rows

    def _histograms(self, n: int) -> dict[str, Any]:
        probe, histograms = self.sites[n], {}
        if "exponents" in self.arrays and probe.counted:
            place = [p.counted for p in self.sites[:n]].count(True)
            low, binades = exponent_bins(element_format(probe), self.collect.bins)
            counts = _numbers(self.arrays["exponents"][place]).tolist()
            starts = [low + binades * bin for bin in range(-1, len(counts) - 1)]
            pairs = zip(starts, counts, strict=True)
            histograms["exponents"] = {start: k for start, k in pairs if k}
        if "scales" in self.arrays and probe.blocked is not None:
            place = [p.blocked is not None for p in self.sites[:n]].count(True)
            counts = _numbers(self.arrays["scales"][place]).tolist()
            histograms["scales"] = {c - 127: k for c, k in enumerate(counts) if k}
        return histograms

    def as_metrics(self, by: str = "kind") -> dict[str, Any]:
        """Return a plain dict of fractions, amax and effective bits for a logger or
        Flax metrics.

        Keys look like "cast/underflow"; values are floats, or float32 scalars inside a
        trace. "faults/overflow" is the share of steps with an overflow, at the site
        that has most of them.

        Args:
            by: "kind", over all probes of a kind, or "site", by `Probe.key`.

        Raises:
            InvalidProgramError: `by` has another value.
        """
        if by not in ("kind", "site"):
            raise InvalidProgramError(f"by={by!r}", remedy='use "kind" or "site"')
        groups: dict[str, list[int]] = {}
        for n, probe in enumerate(self.sites):
            groups.setdefault(probe.kind if by == "kind" else probe.key, []).append(n)
        traced = any(isinstance(x, Tracer) for x in self.arrays.values())
        counts = (as_floats if traced else _numbers)(self.arrays["counts"])
        metrics = {}
        for group, numbers in groups.items():
            of = np.asarray(numbers)
            sums: dict[str, Any] = dict(
                zip(COUNTERS, counts[of].sum(axis=0), strict=True)
            )
            values = _metrics([self.sites[n] for n in numbers], sums)
            if group != "integer":
                values["amax"] = self.arrays["amax"][of].max()
            metrics |= {f"{group}/{k}": v for k, v in values.items()}
        xp = jnp if traced else np
        steps, signs = (xp.asarray(self.arrays[name]) for name in ("steps", "signs"))
        for kind, places in places_by_kind(self.sites).items():
            hits = signs[(*np.asarray(places).T, 0)].max()
            metrics[f"faults/{kind}"] = hits / xp.maximum(steps, 1)
        return metrics if traced else {k: float(v) for k, v in metrics.items()}

    # -- showing -----------------------------------------------------------------------

    def table(self, limit: int | None = 20) -> str:
        """Return the `limit` worst results (None: all), worst first, in 80 columns."""
        return str(self.display(limit=limit))

    def plot(self) -> Any:
        """Return a Matplotlib figure of ranges and faults.

        It shows the largest number of every result and the limit of its format, and the
        shares that overflowed, were flushed to zero or were lost.
        """
        return self.display().plot()

    def __rich__(self) -> Any:
        return self.display().__rich__()

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<neuronjax.Statistics of {len(self.sites)} results>"


def _numbers(pairs: Any) -> np.ndarray:
    words = np.asarray(pairs).astype(np.uint64)
    return words[..., 0] + (words[..., 1] << np.uint64(32))


def _described(probe: Probe) -> dict[str, Any]:
    names = ("key", "kind", "op", "source", "scope", "phase", "params", "format")
    fields = {name: getattr(probe, name) for name in (*names, "shape")}
    return fields | {"module": probe.location.part}


def _known(probe: Probe, counts: dict[str, int]) -> dict[str, Any]:
    """Return the counters, None for what the probe cannot know, and effective bits."""
    known: dict[str, Any] = dict(counts)
    units = known.pop("error_units")
    if not probe.counted:
        return dict.fromkeys(set(known) | {"effective_bits"})
    known |= dict.fromkeys(_unknown(probe))
    known["effective_bits"] = _effective_bits(probe, units, counts)
    return known


def _unknown(probe: Probe) -> set[str]:
    unknown = set() if probe.compared else set(COMPARED)
    unknown -= {"underflow"} if probe.never_zero else set()
    unknown -= {"saturated"} if probe.ends else set()
    unknown |= set() if probe.blocked is not None else set(BLOCKS)
    return unknown | (set() if probe.updates or probe.advances else set(SUMS))


def _effective_bits(
    probe: Probe, units: int, counts: Mapping[str, int]
) -> float | None:
    numbers = counts["nonzero"] - counts["nan_in"]
    if not probe.compared or numbers <= 0:
        return None
    if units == 0:
        return float(np.log2(ERROR_UNIT))
    return max(0.0, float(-np.log2(2 * units / ERROR_UNIT / numbers)))


def _metrics(probes: Sequence[Probe], sums: Mapping[str, Any]) -> dict[str, Any]:
    if not any(probe.counted for probe in probes):
        return {}
    unknown = set.intersection(*map(_unknown, probes))
    xp = jnp if isinstance(sums["elements"], Tracer) else np
    values = {
        name: sums[part] / xp.maximum(sums[whole], 1)
        for name, (part, whole) in _FRACTIONS.items()
        if name not in unknown
    }
    if all(probe.compared for probe in probes):
        numbers = xp.maximum(sums["nonzero"] - sums["nan_in"], 1)
        error = xp.maximum(sums["error_units"], 1) / ERROR_UNIT / numbers
        values["effective_bits"] = xp.maximum(-xp.log2(2 * error), 0)
    return values


def fraction(record: Mapping[str, Any], name: str) -> float:
    """Return a fraction of a record's numbers, such as "underflow"; 0 if unknown."""
    part, whole = (record[counter] for counter in _FRACTIONS[name])
    return part / whole if part and whole else 0.0
