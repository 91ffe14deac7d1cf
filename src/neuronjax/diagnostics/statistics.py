"""`Statistics`: what the writes of a run did to its numbers, site by site.

A pytree of a plain dict of arrays, with the same structure for every call of a program,
so that a training loop or `lax.scan` can carry it and `merge` those of its steps.
Counts are 64 bits, in pairs of words; a plain sum of the arrays would lose the carry.
Outside a trace it answers with Python numbers, and prints the worst sites first.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from rich.console import RenderableType
from rich.table import Table

from neuronjax.errors import InvalidProgramError
from neuronjax.execution.probes.accumulator import as_arrays, merged_arrays
from neuronjax.execution.probes.collect import Collect, Site, element_format
from neuronjax.execution.probes.plan import Collector, Plan
from neuronjax.execution.probes.rounding_counters import (
    COUNTERS,
    ERROR_UNIT,
    Measure,
    exponent_bins,
)
from neuronjax.lowering.context import is_cotangent_scope
from neuronjax.report.html import Displayed
from neuronjax.report.places import place
from neuronjax.report.profile_tables import new_table
from neuronjax.report.rendering import as_text

#: Only known where the numbers before the rounding were seen.
COMPARED = ("underflow", "overflow", "saturated", "nan_in")
BLOCKS = ("blocks", "blocks_underflow", "blocks_saturated", "blocks_nan")
SUMS = ("updates", "stagnant")
_SHOWN = 20
#: Fraction -> (its counter, of which).
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
    meta_fields=("sites", "collect"),
)
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Statistics(Displayed):
    """What a call of `neuronjax.jit(..., collect=...)` returns beside its outputs.

    Loops count every iteration, branches the one that is taken, callees every call, and
    the devices of a mesh all of theirs; what all devices compute alike counts once.

    Counters of a site; a "number" is neither NaN nor Inf:
        elements: measured, nonzero: of them, before the rounding.
        underflow: non-zero, and zero after it (flushed).
        subnormal: below the format's smallest normal number after it, and not zero; an
            element of an MX block before its scale.
        overflow: numbers that became Inf or NaN. saturated: larger than the largest
            number of the format (or block), and set to that.
        nan_in: NaNs before, nan, inf: after it.
        updates: of additions, where what is added is not zero; stagnant: of them, where
            the sum is what it was before.
        blocks: MX blocks, and those of them with elements that underflow, that
            saturate, or that are all NaN.

    Attributes:
        arrays: "counts" uint32 [sites, counters, 2], low word first; "amax" float32
            [sites], the largest number; with histograms "exponents" uint32 [sites,
            bins, 2] and "scales" uint32 [MX sites, 256, 2], by E8M0 code.
        sites: what was measured.
        collect: the selection.
    """

    arrays: Mapping[str, jax.Array]
    sites: tuple[Site, ...]
    collect: Collect

    @classmethod
    def of(cls, arrays: Mapping[str, Any], collector: Collector) -> Statistics:
        """What the probes of a run have counted."""
        return cls(arrays=arrays, sites=collector.sites, collect=collector.collect)

    @classmethod
    def empty(cls, plan: Plan) -> Statistics:
        """Of no call."""
        rows = [Measure.of(site, plan.collect).empty() for site in plan.sites]
        return cls(arrays=as_arrays(rows), sites=plan.sites, collect=plan.collect)

    def merge(self, other: Statistics) -> Statistics:
        """Of both calls; also inside a trace.

        Raises:
            InvalidProgramError: they are not of the same program.
        """
        if self.sites != other.sites or self.collect != other.collect:
            raise InvalidProgramError(
                "statistics of two programs cannot be merged",
                remedy="merge those of calls with arguments of the same types",
            )
        arrays = merged_arrays(self.arrays, other.arrays)
        return Statistics(arrays=arrays, sites=self.sites, collect=self.collect)

    # -- reading -----------------------------------------------------------------------

    @property
    def records(self) -> list[dict[str, Any]]:
        """One dict per site, in the order of the program: what it is, its counters,
        amax and effective bits (see `neuronjax.measuring`), None for what is not known;
        with histograms "exponents", by the exponent from which a bin counts, and
        "scales", by exponent: what is not zero."""
        counts, amax = _numbers(self.arrays["counts"]), np.asarray(self.arrays["amax"])
        found = []
        for n, site in enumerate(self.sites):
            record = _described(site)
            record |= _known(site, dict(zip(COUNTERS, counts[n].tolist(), strict=True)))
            record |= {"amax": float(amax[n])}
            found.append(record | self._histograms(n))
        return found

    def _histograms(self, n: int) -> dict[str, Any]:
        site, histograms = self.sites[n], {}
        if "exponents" in self.arrays:
            low, binades = exponent_bins(element_format(site), self.collect.bins)
            counts = _numbers(self.arrays["exponents"][n]).tolist()
            starts = [low + binades * bin for bin in range(-1, len(counts) - 1)]
            pairs = zip(starts, counts, strict=True)
            histograms["exponents"] = {start: k for start, k in pairs if k}
        if "scales" in self.arrays and site.blocked is not None:
            place = [s.blocked is not None for s in self.sites[:n]].count(True)
            counts = _numbers(self.arrays["scales"][place]).tolist()
            histograms["scales"] = {c - 127: k for c, k in enumerate(counts) if k}
        return histograms

    def as_metrics(self, by: str = "kind") -> dict[str, Any]:
        """A plain dict of fractions, amax and effective bits, "cast/underflow", for a
        logger or Flax metrics: floats, float32 scalars inside a trace.

        Args:
            by: "kind", over all sites of one, or "site", by `Site.key`.

        Raises:
            InvalidProgramError: another `by`.
        """
        if by not in ("kind", "site"):
            raise InvalidProgramError(f"by={by!r}", remedy='use "kind" or "site"')
        groups: dict[str, list[int]] = {}
        for n, site in enumerate(self.sites):
            groups.setdefault(site.kind if by == "kind" else site.key, []).append(n)
        traced = any(isinstance(x, Tracer) for x in self.arrays.values())
        counts = (_floats if traced else _numbers)(self.arrays["counts"])
        metrics = {}
        for group, numbers in groups.items():
            of = np.asarray(numbers)
            sums: dict[str, Any] = dict(
                zip(COUNTERS, counts[of].sum(axis=0), strict=True)
            )
            values = _metrics([self.sites[n] for n in numbers], sums)
            values["amax"] = self.arrays["amax"][of].max()
            metrics |= {f"{group}/{k}": v for k, v in values.items()}
        return metrics if traced else {k: float(v) for k, v in metrics.items()}

    # -- showing -----------------------------------------------------------------------

    def table(self, limit: int | None = _SHOWN) -> str:
        """The worst sites first, as text of 80 columns.

        Args:
            limit: how many of them; None for all.
        """
        return as_text(self._table(limit))

    def __rich__(self) -> RenderableType:
        return self._table(_SHOWN)

    def __repr__(self) -> str:
        return f"<neuronjax.Statistics of {len(self.sites)} results>"

    def _table(self, limit: int | None) -> Table:
        records = sorted(self.records, key=_badness, reverse=True)[:limit]
        cells = {name: list(map(show, records)) for name, show in _COLUMNS.items()}
        told = {name: column for name, column in cells.items() if any(column)}
        table = new_table(
            f"{len(self.sites)} results, the worst {len(records)} first",
            caption="; ".join(text for name, text in _LEGEND.items() if name in told),
        )
        table.add_column("where", overflow="fold", ratio=1)
        for name in told:
            table.add_column(name, justify="right", no_wrap=True)
        for record, *row in zip(records, *told.values(), strict=True):
            table.add_row(_where(record), *row)
        return table


def _numbers(pairs: Any) -> np.ndarray:
    words = np.asarray(pairs).astype(np.uint64)
    return words[..., 0] + (words[..., 1] << np.uint64(32))


def _floats(pairs: jax.Array) -> jax.Array:
    words = pairs.astype(jnp.float32)
    return words[..., 0] + words[..., 1] * jnp.float32(2.0**32)


def _described(site: Site) -> dict[str, Any]:
    names = ("key", "kind", "op", "source", "scope", "params", "format", "shape")
    return {name: getattr(site, name) for name in names}


def _known(site: Site, counts: dict[str, int]) -> dict[str, Any]:
    """Counters, None for what the site cannot tell, and effective bits."""
    known: dict[str, Any] = dict(counts)
    units = known.pop("error_units")
    unknown = () if site.compared else COMPARED
    unknown += () if site.blocked is not None else BLOCKS
    unknown += () if site.updates else SUMS
    known |= dict.fromkeys(unknown)
    known["effective_bits"] = _effective_bits(site, units, counts)
    return known


def _effective_bits(site: Site, units: int, counts: Mapping[str, int]) -> float | None:
    numbers = counts["nonzero"] - counts["nan_in"]
    if not site.compared or numbers <= 0:
        return None
    if units == 0:
        return float(np.log2(ERROR_UNIT))
    return max(0.0, float(-np.log2(2 * units / ERROR_UNIT / numbers)))


def _metrics(sites: Sequence[Site], sums: Mapping[str, Any]) -> dict[str, Any]:
    """Fractions of all, and effective bits; of a kind all sites know the same."""
    unknown: set[str] = set()
    unknown |= set() if any(site.compared for site in sites) else set(COMPARED)
    unknown |= set() if any(site.updates for site in sites) else set(SUMS)
    xp = jnp if isinstance(sums["elements"], Tracer) else np
    values = {
        name: sums[part] / xp.maximum(sums[whole], 1)
        for name, (part, whole) in _FRACTIONS.items()
        if name not in unknown
    }
    if all(site.compared for site in sites):
        numbers = xp.maximum(sums["nonzero"] - sums["nan_in"], 1)
        error = xp.maximum(sums["error_units"], 1) / ERROR_UNIT / numbers
        values["effective_bits"] = xp.maximum(-xp.log2(2 * error), 0)
    return values


# -- a row of the table ----------------------------------------------------------------


def _fraction(record: Mapping[str, Any], name: str) -> float:
    part, whole = (record[counter] for counter in _FRACTIONS[name])
    return part / whole if part and whole else 0.0


def _badness(record: Mapping[str, Any]) -> tuple:
    """Numbers that became NaN or Inf come before all else."""
    broken = _fraction(record, "overflow") or (
        0.0 if record["overflow"] is not None else _nonfinite(record)
    )
    lost = max(_fraction(record, n) for n in ("underflow", "saturated", "stagnant"))
    bits = record["effective_bits"]
    return broken, lost, 0.0 if bits is None else -bits


def _nonfinite(record: Mapping[str, Any]) -> float:
    return _fraction(record, "nan") + _fraction(record, "inf")


def _percent(fraction: float) -> str:
    if not fraction:
        return ""
    return "<0.1%" if fraction < 1e-3 else f"{fraction:.1%}"


def _where(record: Mapping[str, Any]) -> str:
    """The user's line, and below it what is measured: the kind of site, the JAX op,
    whether it is of the backward pass, the shape, the argument it descends from."""
    line = place(record["source"])
    op = record["scope"].rpartition("/")[2] or record["op"]
    back = "bwd" if is_cotangent_scope(record["scope"]) else ""
    shape = "x".join(map(str, record["shape"]))
    params = " ".join(record["params"][:1])
    what = " ".join(filter(None, [record["kind"], op, back, shape, params]))
    return f"{line}\n{what}"


def _amax(record: Mapping[str, Any]) -> str:
    return f"{record['amax']:.1e}"


def _bits(record: Mapping[str, Any]) -> str:
    bits = record["effective_bits"]
    return "" if bits is None else f"{bits:.1f}"


_LEGEND = {
    "flushed": "flushed to 0, of non-zero numbers",
    "lost": "lost updates: x + u == x",
}
_COLUMNS = {
    "format": lambda record: record["format"].replace("float", "f"),
    "amax": _amax,
    "flushed": lambda record: _percent(_fraction(record, "underflow")),
    "over": lambda record: _percent(
        _fraction(record, "overflow") + _fraction(record, "saturated")
    ),
    "nan inf": lambda record: _percent(_nonfinite(record)),
    "lost": lambda record: _percent(_fraction(record, "stagnant")),
    "bits": _bits,
}
