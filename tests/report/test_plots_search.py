"""The picture of a search: what has no place on a logarithmic axis has a line."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.report.plots_search import Trial, draw_search

WITHIN, BEYOND = "tried, within the tolerance", "tried, beyond the tolerance"


def drawn(*errors, tolerance=1e-2, margin=1.0, found=0):
    tried = [Trial((9 - n) * 1e-4, error) for n, error in enumerate(errors)]
    chosen = dict(tried=tried, path=tried[:1], found=tried[found])
    figure = draw_search("step", "loss", tolerance, margin, 9e-4, **chosen)
    figure.draw_without_rendering()
    return figure


def heights(figure):
    """Of all dots, by what their kind is called."""
    (axes,) = figure.axes
    return {
        dots.get_label(): [y for _, y in dots.get_offsets()]
        for dots in axes.collections
    }


def written(figure):
    (axes,) = figure.axes
    return [text.get_text() for text in axes.texts]


@pytest.mark.slow
def test_an_error_of_zero_is_below_the_axis_and_called_exact():
    figure = drawn(4e-5, 0.0, 3e-3)
    first, exact, last = heights(figure)[WITHIN]
    assert (first, last) == (4e-5, 3e-3)
    assert exact < 4e-5 / 2
    assert "0: exact" in written(figure)
    (axes,) = figure.axes
    ticks = [tick for tick in axes.get_yticks() if tick <= exact]
    assert ticks == []  # no number stands where zero is
    (label,) = [text for text in axes.texts if text.get_text() == "0: exact"]
    low, high = axes.get_ylim()
    assert low < exact < high
    assert label.xy[1] == exact


@pytest.mark.slow
def test_without_a_zero_there_is_no_such_line():
    assert "0: exact" not in written(drawn(4e-5, 3e-3))


@pytest.mark.slow
def test_what_is_not_finite_is_above():
    figure = drawn(4e-5, math.inf, 0.2)
    first, second = heights(figure)[BEYOND]
    assert first > 0.2
    assert second == 0.2
    assert "not finite" in written(figure)


@pytest.mark.parametrize("errors", [(0.0, 0.0), (0.0, 3e-3)])
def test_no_tolerance_is_exact(errors):
    figure = drawn(*errors, tolerance=0.0)
    (axes,) = figure.axes
    exact = heights(figure)["found"][0]
    assert [
        np.asarray(line.get_ydata())[0]
        for line in axes.lines
        if line.get_linestyle() == "--"
    ] == [exact]


def test_the_legend_says_what_dots_are():
    labels = {t.get_text() for t in drawn(1e-3, 0.1).legends[0].get_texts()}
    assert labels == {WITHIN, BEYOND, "found", "steps kept"}


@pytest.mark.slow
def test_within_is_what_the_search_takes_for_it():
    figure = drawn(7e-3, 9e-3, 0.1, margin=1.25)
    assert heights(figure)[WITHIN] == [7e-3]
    assert heights(figure)[BEYOND] == [9e-3, 0.1]
    assert {"tolerance", "tolerance / 1.25 (margin)"} <= set(written(figure))
    assert "tolerance / 1" not in written(drawn(7e-3, 9e-3))


def test_times_fill_the_width():
    (axes,) = drawn(7e-3, 9e-3).figure.axes
    low, high = axes.get_xlim()
    assert 0 < low < 800
    assert 900 < high < 1000


@pytest.mark.slow
def test_points_are_named_where_there_is_room():
    """The found one and its path first; one of two in the same place."""
    start, half = Trial(9e-4, 1e-3, "all fp32"), Trial(5e-4, 2e-3, "layers/0/q to bf16")
    beside = Trial(5.001e-4, 2e-3, "layers/1/q to bf16")
    far = Trial(6e-4, 8e-3, f"{'deep/' * 20}kernel to fp8")
    tried = [start, beside, half, far]
    figure = draw_search(
        "step", "loss", 1e-2, 1.0, 9e-4, tried=tried, path=[start, half], found=half
    )
    found = written(figure)
    assert {"all fp32", "layers/0/q to bf16"} <= set(found)
    assert any(
        text.startswith("…") and text.endswith("kernel to fp8") for text in found
    )
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)


@pytest.mark.slow
def test_a_search_names_what_was_tried():
    def step(w, x):
        return jnp.tanh(x @ w["up"]) @ w["down"]

    key = jax.random.key(0)
    w = {"up": jax.random.normal(key, (64, 64)), "down": jnp.ones((64, 64))}
    search = nj.search_precision(step, target="trn2", tolerance=0.1, progress=False)
    found = search(w, jnp.ones((8, 64)))
    assert "all fp32" in written(found.plot())
