"""Final losses of a study: by machine, and against the baseline seed by seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from neuronjax.report.study_curves import Curve, Curves
from neuronjax.report.tables import RIGHT, new_table


def final_figures(found: Curves, baseline: str, last: int) -> list[dict[str, Any]]:
    """Mean and standard deviation of every machine's final values; see `Study.final`.

    A deviation is that of a sample (n - 1), NaN for one seed.
    """
    figures = []
    for label, own in found.items():
        values = _final(own, last)
        mean, deviation = _moments(values)
        differences = _moments(_final(own.minus(found[baseline]), last))
        figures.append(
            {
                "machine": label,
                "seeds": len(own.seeds),
                "steps": len(own.steps),
                "mean": mean,
                "std": deviation,
                "difference": differences[0],
                "difference_std": differences[1],
                "diverged": int(np.sum(~np.isfinite(values))),
                "unmoved": own.unmoved,
            }
        )
    return figures


def _final(curve: Curve, last: int) -> np.ndarray:
    return curve.values[:, -last:].mean(axis=1)


def _moments(values: np.ndarray) -> tuple[float, float]:
    with np.errstate(invalid="ignore"):  # of a diverged run
        deviation = values.std(ddof=1) if len(values) > 1 else np.nan
        return float(values.mean()), float(deviation)


def final_table(
    figures: Sequence[Mapping[str, Any]],
    metric: str,
    baseline: str,
    last: int,
    settings: Mapping[str, str],
) -> Table:
    """`final_figures` as a table of at most 80 columns, and what the machines are."""
    notes = [f"{label} is {setting}." for label, setting in settings.items()]
    notes.append(f"Differences are taken seed by seed against {baseline}.")
    notes += _unmoved(figures, metric)
    of = f"mean of the last {last} steps" if last > 1 else "at the last step"
    headings = ("seeds", "steps", metric, f"− {baseline}", "diverged")
    return new_table(
        f"{metric}, {of}, mean ± std over seeds",
        {"machine": {"overflow": "fold"}} | dict.fromkeys(headings, RIGHT),
        [_cells(row, baseline) for row in figures],
        caption="\n".join(notes),
    )


def _unmoved(figures: Sequence[Mapping[str, Any]], metric: str) -> Iterator[str]:
    """Say which runs train nothing that their numbers show."""
    still = [
        f"{row['machine']} with seed {', '.join(map(str, row['unmoved']))}"
        for row in figures
        if row["unmoved"]
    ]
    if still:
        yield (
            f"{metric} ends where it began, within its noise, in: {'; '.join(still)}. "
            "Does every step get the state that the step before it made?"
        )


def _cells(row: Mapping[str, Any], baseline: str) -> tuple[str, ...]:
    same = row["machine"] == baseline
    return (
        row["machine"],
        str(row["seeds"]),
        str(row["steps"]),
        _pair(row["mean"], row["std"]),
        "" if same else _pair(row["difference"], row["difference_std"], "+"),
        str(row["diverged"]) if row["diverged"] else "",
    )


def _pair(mean: float, deviation: float, sign: str = "") -> str:
    """`mean ± deviation`, both with the digits that the deviation warrants."""
    known = np.isfinite(deviation) and deviation > 0
    smallest = deviation if known else abs(mean)
    leading = np.floor(np.log10(smallest)) if np.isfinite(smallest) and smallest else 0
    digits = int(np.clip((1 if known else 3) - leading, 2, 7))
    text = f"{mean:{sign}.{digits}f}"
    return text if np.isnan(deviation) else f"{text} ± {deviation:.{digits}f}"
