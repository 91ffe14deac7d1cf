"""The picture of statistics: every result, the limits of formats, and what was lost."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest

import neuronjax as nj


def dots(axes):
    return {
        each.get_label(): each.get_offsets().tolist()
        for each in axes.collections
        if len(each.get_offsets())
    }


@pytest.fixture(scope="module")
def statistics():
    """A step in FP8 whose gradients lose numbers: some are far below the largest."""

    def step(w, x):
        gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
        return w - 1e-9 * gradient

    w = jnp.linspace(-1, 1, 64).reshape(8, 8)
    x = jnp.geomspace(1e-9, 3.0, 64).reshape(8, 8)
    collected = nj.jit(step, target="trn2", policy="fp8", collect=nj.Collect())
    return collected(w, x)[1]


@pytest.mark.slow
def test_every_result_with_a_number_has_a_dot(statistics):
    figure = statistics.plot()
    above, below = figure.axes
    expected = [
        [n, pytest.approx(record["amax"])]
        for n, record in enumerate(statistics.records)
        if record["amax"]
    ]
    found = dots(above)
    assert found["largest"] == expected
    limits = {y for _, y in found["the format's largest"]}
    assert limits <= {240.0, 57344.0}
    assert limits
    assert above.get_yscale() == below.get_yscale() == "log"


def test_what_was_lost_is_drawn_by_its_share(statistics):
    _, below = statistics.plot().axes
    flushed = [
        [n, pytest.approx(record["underflow"] / record["nonzero"])]
        for n, record in enumerate(statistics.records)
        if record["underflow"]
    ]
    assert flushed
    found = dots(below)
    assert found["share of non-zero numbers flushed to 0"] == flushed
    assert [y for _, y in found["updates lost: x + u == x"]] == [1.0]


@pytest.mark.slow
def test_names_lie_within_the_picture_and_apart(statistics):
    figure = statistics.plot()
    figure.draw_without_rendering()
    _, below = figure.axes
    boxes = [text.get_window_extent() for text in below.texts]
    assert boxes
    inside = below.get_window_extent()
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_the_legend_names_the_backward_pass_once(statistics):
    labels = [t.get_text() for t in statistics.plot().legends[0].get_texts()]
    assert labels.count("backward pass") == 1
    assert len(labels) == len(set(labels))


@pytest.mark.slow
def test_where_nothing_is_lost_it_is_said():
    run = nj.jit(lambda x: x + 1, target="trn2", collect=nj.Collect(kinds=("add",)))
    _, below = run(jnp.ones(4))[1].plot().axes
    assert [text.get_text() for text in below.texts] == ["nothing"]
