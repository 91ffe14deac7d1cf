"""Loss curves of a study with bands over seeds, and their difference to a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neuronjax.policy.values import check_word
from neuronjax.report.plots_style import FAINT, INK, pictured, plain
from neuronjax.report.study_curves import Curve, Curves
from neuronjax.report.study_verdicts import half_width

#: Okabe and Ito's colours, which colour-blind readers can distinguish; dashes help
#: where lines coincide.
COLOURS = (INK, "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", "-.", ":")

#: The bands that can be drawn around a mean, and what each of them shows.
BANDS = {
    "ci95": "95 % confidence interval of the mean",
    "std": "one standard deviation",
    "range": "least to largest",
}
_HALF_WIDTHS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "ci95": lambda values: half_width(values, 0.95),
    "std": lambda values: values.std(axis=0, ddof=1),
}


@pictured
def draw_study(
    figure: Figure, found: Curves, metric: str, baseline: str, band: str, smooth: int
) -> None:
    """Draw two panels: the metric by step, and its difference to the baseline's."""
    check_word("band", band, BANDS)
    figure.set_size_inches(9.0, 6.5)
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
    has_bands = any(len(curve.seeds) > 1 for curve in found.values())
    words = f"mean over seeds, band: {BANDS[band]}" if has_bands else "one seed"
    plain(above, f"{metric}: {words}")
    plain(below, f"difference to {baseline}, seed by seed")
    below.axhline(0.0, color=FAINT, linewidth=1, zorder=0)
    moving = f" (moving mean over {smooth} steps)" if smooth > 1 else ""
    below.set_xlabel(f"step{moving}")
    above.set_ylabel(metric)
    below.set_ylabel(f"{metric} − {baseline}")
    above.legend()


def _draw(
    axes: Axes, curve: Curve, label: str, look: tuple[str, str], band: str
) -> None:
    colour, dashes = look
    mean, low, high = (getattr(curve.values, end)(0) for end in ("mean", "min", "max"))
    if band in _HALF_WIDTHS and len(curve.seeds) > 1:  # one seed has no band
        half = _HALF_WIDTHS[band](curve.values)
        low, high = mean - half, mean + half
    axes.fill_between(curve.steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(curve.steps, mean, color=colour, linestyle=dashes, lw=1.6, label=label)
