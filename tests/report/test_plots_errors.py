"""The picture of a comparison: one scale, and the backward pass in the legend."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from neuronjax.report.plots_errors import draw_errors

_RUN, _OWN = "in the run (own and inherited)", "in isolation (own only)"


def row(number, error, scope="jit(step)/jvp()/add", isolation=0.0):
    return {
        "number": number,
        "scope": scope,
        "phase": "backward" if "transpose(" in scope else "forward",
        "accumulation_relative_l2": error,
        "accumulation_differing": int(error > 0),
        "isolation_relative_l2": isolation,
        "isolation_differing": int(isolation > 0),
    }


def drawn(rows, marks=()):
    figure = draw_errors("step", rows, {r["number"] for r in rows}, marks)
    figure.draw_without_rendering()
    return figure


def labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_few_small_errors_do_not_stretch_the_axis():
    rows = [row(n, 1e-3 * (1 + n)) for n in range(30)]
    rows += [row(30, 1e-12), row(31, 3e-11)]
    figure = drawn(rows)
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert 1e-4 < low < 1e-3
    assert 0.03 < high < 0.2
    assert "below the axis" in labels(figure)
    lowest = min(
        y for dots in axes.collections for _, y in np.asarray(dots.get_offsets())
    )
    assert lowest >= low  # they are drawn, at the bottom


def test_the_axis_is_at_most_five_decades_deep():
    rows = [row(n, 10.0**-n) for n in range(12)]
    (axes,) = drawn(rows).axes
    low, high = axes.get_ylim()
    assert high / low < 10**6


def test_no_decade_below_the_errors_of_a_cluster_is_empty():
    """The casts of FP8 are off by hundredths, what is FP32 by ten millionths."""
    rows = [row(n, 0.01 * (1 + n % 5)) for n in range(60)]
    rows += [row(60 + n, 1e-7) for n in range(30)]
    (axes,) = drawn(rows).axes
    low, _ = axes.get_ylim()
    assert 1e-3 < low < 1e-2


def test_few_large_errors_do_not_hide_the_others():
    """Against a reference that is nearly zero an error is as large as you like."""
    rows = [row(n, 1e-3 * (1 + n)) for n in range(30)]
    rows += [row(30 + n, 1e9) for n in range(5)]
    figure = drawn(rows)
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert 1e-4 < low < 1e-3
    assert 0.03 < high < 0.2
    assert "above the axis" in labels(figure)
    highest = max(
        y for dots in axes.collections for _, y in np.asarray(dots.get_offsets())
    )
    assert 0.03 < highest <= high


def test_without_outliers_there_are_no_arrows():
    assert "below the axis" not in labels(drawn([row(0, 1e-3), row(1, 1e-2)]))


BACK = "jit(step)/transpose(jvp())/mul"


def test_the_backward_pass_is_grey_and_in_the_legend():
    scopes = ["jit(step)/jvp()/add"] * 40 + [BACK] * 60
    scopes[70] = "jit(step)/jvp()/sub"  # one op within does not divide it
    rows = [row(n, 1e-3, scope) for n, scope in enumerate(scopes)]
    figure = drawn(rows)
    assert labels(figure).count("backward pass") == 1
    (axes,) = figure.axes
    spans = [
        (patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches
    ]
    assert spans == [(39.5, 99.5)]


def test_marks_are_in_the_legend_and_no_label_is_cut_off():
    marks = [(3, "1. overflow: op 3"), (7, "first divergence: op 7, dot_general")]
    figure = drawn([row(n, 1e-3, isolation=1e-4) for n in range(10)], marks)
    found = labels(figure)
    assert {_RUN, _OWN, *(label for _, label in marks)} <= set(found)
    boxes = [text.get_window_extent() for text in figure.legends[0].get_texts()]
    page = figure.get_window_extent()
    assert all(page.x0 <= box.x0 and box.x1 <= page.x1 for box in boxes)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_no_error_at_all():
    (axes,) = drawn([row(0, 0.0)]).axes
    assert axes.get_ylim() == (1e-12, 1.0)


def test_what_is_not_finite_is_a_cross_at_the_top():
    (axes,) = drawn([row(0, 1e-3), row(1, float("inf"))]).axes
    crosses = [
        dots.get_offsets().tolist()
        for dots in axes.collections
        if dots.get_transforms().shape and len(dots.get_offsets())
    ]
    assert [[1, pytest.approx(0.98)]] in crosses


def test_the_optimizer_is_another_grey():
    rows = [row(n, 1e-3, "jit(step)/transpose(jvp())/add") for n in range(20)]
    rows += [{**row(n, 1e-3), "phase": "optimizer"} for n in range(20, 30)]
    figure = drawn(rows)
    assert {"backward pass", "optimizer"} <= set(labels(figure))
    assert len({patch.get_facecolor() for patch in figure.axes[0].patches}) == 2
