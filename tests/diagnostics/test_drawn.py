"""Runs with drawn errors: bounds that stay small where those by slopes grow."""

import tracemalloc

import numpy as np
import pytest

from neuronjax.diagnostics.tolerance import drawn, error_bounds, tracked
from neuronjax.diagnostics.tolerance.drawn import Spread
from neuronjax.diagnostics.tolerance.judged import Tolerance
from tests.arrays import normal


def newton_schulz(a):
    x = a
    for _ in range(5):
        g = x @ x.T
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x


def contraction(x):
    s = np.zeros_like(x[0])
    for row in x:
        s = s - 0.9 * (s - row)
    return s


def turns(x):
    """Each turn cancels what it adds."""
    s = x
    for _ in range(40):
        s = s + x * 3 - s * 2
    return s


_SQUARE = normal(24, 24)
DEEP = {
    "Newton-Schulz": (newton_schulz, _SQUARE / np.linalg.norm(_SQUARE), 1e3, 0.02),
    "contraction": (contraction, normal(128, 64), 1e20, 1e-4),
    "turns": (turns, normal(64), 1e9, 1e-3),
}


@pytest.mark.parametrize("name", DEEP)
def test_what_is_deep_is_bounded(name):
    function, x, least, most = DEEP[name]
    slopes = error_bounds(function, [x], samples=0)
    narrow = error_bounds(function, [x])
    assert slopes.largest_passing > least
    assert 1e-7 < narrow.largest_passing < most
    assert (slopes.runs, narrow.runs) == (0, 16)
    assert narrow.check(function(x))
    assert np.all(narrow.bound <= slopes.bound)
    assert narrow.l2_bound == error_bounds(function, [x]).l2_bound


def test_what_is_shallow_is_not_drawn():
    assert error_bounds(lambda x: x @ x.T, [normal(8, 8)]).runs == 0


@pytest.mark.slow
def test_several_results_and_integers():
    def both(x):
        return {"s": contraction(x), "n": x.argmax(0), "t": (x[0] * 2, 3.0)}

    found = error_bounds(both, [normal(128, 8)])
    assert found["s"].bound.max() < 1e-4
    assert not found["n"].bound.any()
    assert [t.value.shape for t in found["t"]] == [(8,), ()]


def filled(x):
    out = np.zeros((3, *x.shape), np.float32)
    for t in range(3):
        x = x * 0.9
        out[t] = x
        x = out[t]
        x[0] = x[1]
    return out


TOGETHER = {
    "sort": lambda x: np.sort(x * 0.3),
    "argsort": lambda x: np.take_along_axis(x / 3, np.argsort(x, 1), 1),
    "cumsum": lambda x: np.cumsum(x, 1),
    "moved": lambda x: np.pad(np.tril(x) + np.roll(x, 1), 1)[1:-1, ::-1],
    "power": lambda x: np.abs(x) ** 1.5 + x**2 + x**3,
    "a kink": lambda x: np.where(x > 0, x, 0.1 * x),
    "softmax": lambda x: np.exp(x - x.max(1, keepdims=True)) / np.exp(x).sum(),
    "variance": lambda x: (x - x.mean(1, keepdims=True)) / np.std(x),
    "products": lambda x: (
        np.einsum("ij,kj->ik", x, x) @ x / 8 + np.dot(x, x[0])[:, None]
    ),
    "joined": lambda x: np.concatenate([x[:3], np.ones((3, 8), np.float32) / 3]) * x,
    "joined with integers": lambda x: np.hstack([x / 3, np.ones((6, 3), np.int32)]),
    "filled": filled,
    "a branch": lambda x: x * 2 if x.sum() > -1e9 else x,
    "a table": lambda x: (x[0] * 0.3)[np.rint(np.abs(x)).astype(np.int32)],
    "integers": lambda x: np.round(x * 100) * 0.01 * np.arange(8),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_runs_together_are_the_runs_one_by_one(name, monkeypatch):
    function, x = TOGETHER[name], normal(6, 8)
    together = error_bounds(function, [x], samples=6)
    monkeypatch.setattr(drawn, "_MOST_HELD", 1)
    alone = error_bounds(function, [x], samples=6)
    assert together.runs == alone.runs == 6
    np.testing.assert_allclose(together.bound, alone.bound, rtol=0.02)


def test_runs_that_do_not_narrow_the_norm_end_after_two(monkeypatch):
    """Of which there is room for two at a time."""
    taken, whole = [], Spread.add
    monkeypatch.setattr(Spread, "add", lambda s, v: (taken.append(1), whole(s, v)))

    def multiplied(x):  # by numbers that share one error: it grows in each run too
        for _ in range(80):
            x = x * np.exp(x * 0 + 1e-3)
        return x

    x = normal(64, 16)
    wide = {"products": "fp32", "functions": {"exp": 5e-4}, "usual": 10}
    monkeypatch.setattr(drawn, "_MOST_HELD", 2 * x.size)
    slopes = error_bounds(multiplied, [x], samples=0, **wide)
    found = error_bounds(multiplied, [x], **wide)
    assert (len(taken), found.runs) == (2, 0)
    assert found.l2_bound == slopes.l2_bound
    assert error_bounds(turns, [normal(64, 16)], **wide).runs == 10


def test_runs_that_choose_otherwise_go_one_by_one():
    x = normal(6, 8)
    found = error_bounds(lambda x: np.where(x + 1 > 1, x, 2 * x), [x * 1e-7], samples=6)
    assert found.runs == 6


def test_values_in_fp32_and_in_float64_are_joined(monkeypatch):
    """As those of a large array and a small one are, many times."""
    monkeypatch.setattr(tracked, "LARGE_ELEMENTS", 35)
    for rows in range(5, 40):
        x, ones = normal(rows, 8), np.ones((2, 8), np.float32)
        found = error_bounds(lambda x: np.vstack([x / 3, ones]), [x], samples=16)
        np.testing.assert_allclose(found.value, np.vstack([x / 3, ones]), rtol=1e-6)
        assert found.runs == 16


def test_an_input_without_room_for_all_runs_is_held_for_fewer(monkeypatch):
    x = normal(1 << 14)
    monkeypatch.setattr(drawn, "_MOST_HELD", 4 * x.size)
    tracemalloc.start()
    found = error_bounds(lambda x: x[:1] * 0.3, [x], samples=32)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.runs == 32
    assert most < 16 * x.size * 8


def test_a_number_that_jumps_is_bounded_by_the_jump():
    spread = Spread(np.zeros(2))
    for sign in (1, -1):
        spread.add(np.asarray([1.0, 4.0 * sign]))
    wide = Tolerance(np.zeros(2), np.full(2, np.inf, np.float32), np.inf)
    found = spread.narrowed(wide, 1.0)
    assert found.bound is not None
    assert found.bound[1] >= 4.0
    assert found.runs == 2
