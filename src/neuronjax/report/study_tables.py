"""Final losses of a study: by machine, and against the baseline seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from neuronjax.report.study_curves import Curves
from neuronjax.report.study_verdicts import Interval, TrainingVerdict, ends_of
from neuronjax.report.tables import NUMBER, new_table


def final_figures(
    found: Curves, verdicts: Mapping[str, TrainingVerdict], baseline: str, last: int
) -> list[dict[str, Any]]:
    """Return mean and deviation of each machine's final values; see `Study.final`.

    The standard deviation is that of a sample (n - 1), NaN for one seed."""
    figures = []
    for label, own in found.items():
        mean, deviation = _moments(ends_of(own, last))
        differences = _moments(ends_of(own.minus(found[baseline]), last))
        verdict = verdicts[label]
        figures.append(
            {"machine": label}
            | flat_interval("difference", verdict.difference)
            | flat_interval("steps_ratio", verdict.steps_ratio)
            | {
                "seeds": len(own.seeds),
                "steps": len(own.steps),
                "mean": mean,
                "std": deviation,
                "difference": differences[0],
                "difference_std": differences[1],
                "diverged": len(verdict.diverged),
                "unmoved": own.unmoved,
                "verdict": verdict.words(baseline),
                "margin": verdict.margin,
            }
        )
    return figures


def flat_interval(name: str, found: Interval | None) -> dict[str, float | None]:
    """Return the estimate and the bounds of an interval as fields of a flat record."""
    names = {name: "estimate", f"{name}_low": "low", f"{name}_high": "high"}
    return {key: found and getattr(found, field) for key, field in names.items()}


def _moments(values: np.ndarray) -> tuple[float, float]:
    with np.errstate(invalid="ignore"):  # for a diverged run
        deviation = values.std(ddof=1) if len(values) > 1 else np.nan
        return float(values.mean()), float(deviation)


def final_table(
    figures: Sequence[Mapping[str, Any]],
    verdicts: Mapping[str, TrainingVerdict],
    metric: str,
    baseline: str,
    confidence: float,
    settings: Mapping[str, str],
    seen: Mapping[str, str],
) -> Table:
    """Return `final_figures` as a table of 80 columns, with notes on the machines."""
    notes = [f"{label} is {setting}." for label, setting in settings.items()]
    notes += [f"{label} before it diverges: {found}." for label, found in seen.items()]
    if len(verdicts) > 1:
        notes += [
            f"− {baseline}: the {metric} minus that of {baseline} with the same seed. "
            f"steps ×: the steps to the same {metric}, divided by those of {baseline}. "
            f"In both, ± is half of a {100 * confidence:.4g} % interval.",
            f"A policy trains like {baseline} if no number in its interval under '− "
            f"{baseline}' is worse than the margin, {verdicts[baseline].margin:.2g}.",
        ]
    still = [
        f"{row['machine']} with seed {', '.join(map(str, row['unmoved']))}"
        for row in figures
        if row["unmoved"]
    ]
    if still:
        notes.append(
            f"{metric} ends where it began, within its noise, in: {'; '.join(still)}. "
            "Does every step get the state that the step before it made?"
        )
    scale = next(abs(r["mean"]) for r in figures if r["machine"] == baseline)
    known = np.isfinite(scale) and scale > 0
    digits = max(2, 3 - math.floor(math.log10(scale))) if known else 4
    headings = ("seeds", metric, f"− {baseline}", "steps ×")
    return new_table(
        f"final {metric} ± standard deviation; other ± are 95 % intervals",
        {"policy": {"overflow": "fold"}}
        | dict.fromkeys(headings, NUMBER)
        | {"verdict": {"overflow": "fold"}},
        [_cells(row, verdicts[row["machine"]], baseline, digits) for row in figures],
        caption="\n".join(notes),
    )


def _cells(
    row: Mapping[str, Any], verdict: TrainingVerdict, baseline: str, digits: int
) -> tuple[str, ...]:
    mean, deviation = row["mean"], row["std"]
    final = Interval(mean, mean - deviation, mean + deviation)
    difference, ratio = verdict.difference, verdict.steps_ratio
    return (
        row["machine"],
        str(row["seeds"]),
        final.shown(most=digits),
        difference.shown("+", digits) if difference else "",
        ratio.shown(most=3) if ratio else "",
        verdict.words(baseline),
    )
