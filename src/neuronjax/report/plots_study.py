"""Loss curves of a study with bands over seeds, and their difference to a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import stdtrit

from neuronjax.errors import InvalidProgramError
from neuronjax.report.plots import Picture
from neuronjax.report.plots_style import FAINT, INK, plain
from neuronjax.report.study_curves import Curve, Curves

#: Okabe and Ito's colours, told apart by all readers; dashes help where lines coincide.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", "-.", ":")

Band = tuple[np.ndarray, np.ndarray]


#: What a band shows: its half in deviations, None for all values, and its words.
BANDS: Mapping[str, tuple[Callable[[int], float] | None, str]] = {
    "ci95": (
        lambda seeds: stdtrit(seeds - 1, 0.975) / np.sqrt(seeds),
        "95 % confidence interval of the mean",
    ),
    "std": (lambda seeds: 1.0, "one standard deviation"),
    "range": (None, "least to largest"),
}


def _band(values: np.ndarray, kind: str) -> Band:
    """Return the limits of a band; one seed has all of its values."""
    deviations, _ = BANDS[kind]
    if deviations is None or len(values) < 2:
        return values.min(axis=0), values.max(axis=0)
    width = deviations(len(values)) * values.std(axis=0, ddof=1)
    mean = values.mean(axis=0)
    return mean - width, mean + width


def draw_study(
    found: Curves, metric: str, baseline: str, band: str, smooth: int
) -> Figure:
    """Two panels: the metric by step, and its difference to the baseline's."""
    if band not in BANDS:
        raise InvalidProgramError(
            f"a band of kind {band!r}", remedy=f"one of {', '.join(BANDS)}"
        )
    figure = Picture(figsize=(9.0, 6.5), dpi=110, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    looks = {
        label: (COLOURS[i % len(COLOURS)], _DASHES[i // len(COLOURS) % len(_DASHES)])
        for i, label in enumerate(found)
    }
    for label, curve in found.items():
        _draw(above, curve.smoothed(smooth), label, looks[label], band)
        if label != baseline:
            difference = curve.minus(found[baseline]).smoothed(smooth)
            _draw(below, difference, label, looks[label], band)
    plain(above, f"{metric}: mean over seeds, band: {BANDS[band][1]}")
    plain(below, f"difference to {baseline}, seed by seed")
    below.axhline(0.0, color=FAINT, linewidth=1, zorder=0)
    moving = f" (moving mean over {smooth} steps)" if smooth > 1 else ""
    below.set_xlabel(f"step{moving}", color=INK)
    above.set_ylabel(metric, color=INK)
    below.set_ylabel(f"{metric} − {baseline}", color=INK)
    above.legend(frameon=False, labelcolor=INK)
    return figure


def _draw(
    axes: Axes, curve: Curve, label: str, look: tuple[str, str], band: str
) -> None:
    colour, dashes = look
    low, high = _band(curve.values, band)
    mean = curve.values.mean(axis=0)
    axes.fill_between(curve.steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(curve.steps, mean, color=colour, linestyle=dashes, lw=1.6, label=label)
