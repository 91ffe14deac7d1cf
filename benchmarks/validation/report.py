"""Predicted and published times, and their errors by class.

An error is predicted / published - 1; medians and worst errors are of magnitudes. Only
the best time of a workload counts: variants, bounds and suspicious figures are listed
separately, and held-out rows have their own medians.
"""

from __future__ import annotations

import functools
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.validation.programs import lowered
from benchmarks.validation.rows import ROWS, Row
from neuronjax.hardware import resolve_target
from neuronjax.timing.schedule import schedule
from neuronjax.timing.work import QUEUES, Core, Queue

#: The classes whose medians have a target, in order of appearance.
WORKLOADS: tuple[str, ...] = tuple(
    dict.fromkeys(row.workload for row in ROWS if row.kind == "best")
)
#: The reasons for the errors of classes, from the predicted timelines.
NOTES: Mapping[str, str] = MappingProxyType(
    {
        "rmsnorm fp8": "hand-written kernel against compiled program. The kernel takes"
        " one tile of rows after another, 82 us each at H 16384: what its instructions"
        " and transfers add up to; the model overlaps tiles. The page's targets are"
        " bounds.",
        "layernorm": "hand-written kernel against compiled program. The kernel leaves"
        " six passes to VectorE (1.4 of its 2.0 ms); the model gives the statistics to"
        " ScalarE, and DMA is the limit.",
        "mamba": "the loop over tokens is predicted as the scan instruction that the"
        " kernels use. Of the 173 us at 256 channels 22 are start and end of the"
        " program, for which the model has 10; at 4096 the best kernel's VectorE takes"
        " 6.9 cycles per element where the published formulas make it 8.",
        "attention": "3 x 2048 x 2048 is published as 1.8 times what the big causal"
        " rows cost per score: some 90 us more than engines need.",
        "mlp prefill": "8192 rows at LNC 1: within a batch of 512 rows the kernel's"
        " steps overlap, and the model's do not. 2048 rows of 8448: 1408 columns leave"
        " PSUM room for batches of 256 rows, for which the kernel loads the weights"
        " again; the model plans 512.",
        "mlp decode": "at LNC 1 the weights came at 385 GB/s, for the core next to it"
        " was idle; the model gives a core its share of HBM, 362 GB/s.",
        "qkv decode": "8 x 7 rows take 43 us more than 4 x 7, which nothing explains.",
    }
)
LARGEST_ERROR = 0.35  # target for the best variant of a workload
LARGEST_MEDIAN = 0.20


@dataclass(frozen=True)
class Prediction:
    """A row and the time that the model predicts for it.

    Attributes:
        row: the published measurement.
        seconds: predicted time.
        busy_seconds: predicted busy time of each queue that is used.
        read_bytes: bytes read from HBM.
        write_bytes: bytes written to HBM.
    """

    row: Row
    seconds: float
    busy_seconds: dict[Queue, float]
    read_bytes: int
    write_bytes: int

    @property
    def error(self) -> float:
        """The relative error: predicted / published - 1."""
        return self.seconds / self.row.seconds - 1

    @property
    def fullest(self) -> Queue:
        """The queue with the longest busy time."""
        return max(self.busy_seconds, key=self.busy_seconds.__getitem__)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        row = self.row
        return {
            "name": row.name,
            "workload": row.workload,
            "chip": row.chip,
            "lnc": row.lnc,
            "kind": row.kind,
            "section": row.section,
            "source": row.source,
            "held_out": row.is_held_out,
            "published_seconds": row.seconds,
            "predicted_seconds": self.seconds,
            "error": self.error,
            "busy_seconds": self.busy_seconds,
            "hbm_read_bytes": self.read_bytes,
            "hbm_write_bytes": self.write_bytes,
        }


@functools.cache
def predict(row: Row) -> Prediction:
    """Return the model's prediction for a row's program; deterministic."""
    return _predict(row)


def _predict(row: Row) -> Prediction:
    target = resolve_target(row.chip)
    timeline = schedule(lowered(row), Core.of(target, row.lnc), target)
    busy: dict[Queue, float] = {q: timeline.busy_seconds(q) for q in QUEUES}
    return Prediction(
        row,
        timeline.total_seconds,
        {q: s for q, s in busy.items() if s},
        timeline.hbm_read_bytes,
        timeline.hbm_write_bytes,
    )


@dataclass(frozen=True)
class Summary:
    """The errors of a class of rows.

    Attributes:
        name: name of the class.
        tuned: magnitudes of errors of rows that are not held out.
        held_out: magnitudes of errors of held-out rows.
    """

    name: str
    tuned: tuple[float, ...]
    held_out: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The largest magnitude of all errors."""
        return max((*self.tuned, *self.held_out))

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        return {
            "class": self.name,
            "rows": len(self.tuned),
            "median": median(self.tuned),
            "held_out_rows": len(self.held_out),
            "held_out_median": median(self.held_out),
            "worst": self.worst,
        }


def median(values: Sequence[float]) -> float | None:
    """Return the median, or None for no values."""
    return statistics.median(values) if values else None


def summarize(name: str, predictions: Iterable[Prediction]) -> Summary:
    """Return the summary of the best times among some predictions."""
    best = [p for p in predictions if p.row.kind == "best"]
    return Summary(
        name,
        tuple(abs(p.error) for p in best if not p.row.is_held_out),
        tuple(abs(p.error) for p in best if p.row.is_held_out),
    )


def summaries(predictions: Sequence[Prediction]) -> Iterator[Summary]:
    """Yield the summary of each class and of all rows."""
    for workload in WORKLOADS:
        own = [p for p in predictions if p.row.workload == workload]
        if any(p.row.kind == "best" for p in own):
            yield summarize(workload, own)
    yield summarize("all", predictions)


# -- text ------------------------------------------------------------------------------

_TITLES = (
    ("best", "Best times"),
    ("variant", "Variants: other times of programs above"),
    ("suspicious", "Suspicious figures: round, repeated or illustrative"),
    ("bound", "Bounds: the prediction has to be below"),
)
_HEAD = f"{'':54}{'':6}{'published':>12}{'predicted':>12}{'error':>8}  fullest queue"


def tables(predictions: Sequence[Prediction]) -> str:
    """Return every row by kind, then the medians, as text."""
    parts = []
    for kind, title in _TITLES:
        own = [p for p in predictions if p.row.kind == kind]
        if own:
            parts.append("\n".join([title, _HEAD, *map(_line, own)]))
    parts.append(_summary_table(predictions))
    return "\n\n".join(parts)


def _line(p: Prediction) -> str:
    row = p.row
    core = f"{row.chip}" + (f"/{row.lnc}" if row.lnc > 1 else "")
    busy = f"{p.fullest} {p.busy_seconds[p.fullest] / p.seconds:.0%}"
    if row.kind == "bound":
        verdict = "met" if p.seconds <= row.seconds else "BROKEN"
    else:
        verdict = f"{p.error:+.0%}"
    held = "  (held out)" if row.is_held_out and row.kind == "best" else ""
    return (
        f"{row.name:54}{core:6}{_time(row.seconds):>12}{_time(p.seconds):>12}"
        f"{verdict:>8}  {busy}{held}"
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _mean_of(chip: str, best: Sequence[Prediction]) -> str:
    """Return the mean absolute percentage error of a chip's best times."""
    found = summarize(chip, [p for p in best if p.row.chip == chip])
    means = (
        f"{statistics.fmean(e):.1%}" if e else "-"
        for e in (found.tuned, found.held_out)
    )
    return "mean absolute percentage error on {}: {}, held out {}".format(chip, *means)


def _summary_table(predictions: Sequence[Prediction]) -> str:
    lines = [
        "Magnitudes of errors of best times",
        f"{'':16}{'rows':>6}{'median':>8}{'held out':>10}{'median':>8}{'worst':>8}",
    ]
    for s in summaries(predictions):
        lines.append(
            f"{s.name:16}{len(s.tuned):>6}{_percent(median(s.tuned)):>8}"
            f"{len(s.held_out):>10}{_percent(median(s.held_out)):>8}"
            f"{_percent(s.worst):>8}"
        )
    best = [p for p in predictions if p.row.kind == "best"]
    lines += map(_mean_of, dict.fromkeys(p.row.chip for p in best), [best] * len(best))
    missed = sum(abs(p.error) > LARGEST_ERROR for p in best)
    bounds = [p for p in predictions if p.row.kind == "bound"]
    met = sum(p.seconds <= p.row.seconds for p in bounds)
    lines.append(
        f"{missed} of {len(best)} best times are missed by more than"
        f" {LARGEST_ERROR:.0%}; {met} of {len(bounds)} bounds are met."
    )
    shown = {p.row.workload for p in best}
    lines += [
        textwrap.fill(f"{name}: {NOTES[name]}", 88, subsequent_indent="  ")
        for name in WORKLOADS
        if name in NOTES and name in shown
    ]
    return "\n".join(lines)
