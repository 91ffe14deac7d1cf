"""The kernel's figures are those of their definitions, one element after the other."""

from __future__ import annotations

import math
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from neuronjax.diagnostics.distances import distances
from neuronjax.diagnostics.faults.shares import Seen, share_of
from neuronjax.diagnostics.op_errors import errors_of
from neuronjax.numerics.host_kernels import choice, compiled
from neuronjax.numerics.host_kernels.figures import ASKED_BY, Distance, Told

pytestmark = pytest.mark.skipif(
    not compiled.lanes(), reason="no kernels for this processor"
)
SETTING = {
    Told.SMALLEST: 2.0**-14,
    Told.LARGEST: 448.0,
    Told.LOST: 0.5,
    Told.STEP: 2.0**-126,
    Told.PRECISION: 2.0**23,
    Told.FLOOR: 1e-6,
}
EDGES = [0.0, -0.0, 448.0, -448.0, 449.0, 2.0**-14, 1e-45, 2.0**-126, 3e38, 1.0]
ACTUAL = st.floats(width=32, allow_nan=False, allow_infinity=False)
NUMBERS = ACTUAL | st.sampled_from(EDGES)
SIZES = st.integers(0, 40)


def definition(a, r):
    """Each figure of Python floats, summed exactly and rounded once."""
    with np.errstate(over="ignore"):
        differs = (a != r.astype(a.dtype)).tolist()
    if a.dtype == r.dtype:
        differs = [x.tobytes() != y.tobytes() for x, y in zip(a, r, strict=True)]
    s = SETTING
    found = {f: [] for f in Distance}
    for x, y, other in zip(a.tolist(), r.tolist(), differs, strict=True):
        error, size = abs(x - y), abs(y)
        exponent = math.frexp(max(abs(x), size, s[Told.STEP]))[1] - 1
        ulp = error / 2.0**exponent * s[Told.PRECISION]
        beyond = size > s[Told.LARGEST]
        lost = error > s[Told.LOST] * max(size, s[Told.FLOOR])
        values = {
            Distance.ERROR2: error * error,
            Distance.REFERENCE2: y * y,
            Distance.ACTUAL2: x * x,
            Distance.PRODUCT: x * y,
            Distance.ULP: ulp,
            Distance.ULP_MOST: ulp,
            Distance.SIZE_MOST: size,
            Distance.DIFFERENT: other,
            Distance.NOTHING: x == 0,
            Distance.ZEROS: x == 0 and y != 0,
            Distance.BENEATH: 0 < size < s[Told.SMALLEST],
            Distance.BEYOND: beyond,
            Distance.CLIPPED: beyond and abs(x) == s[Told.LARGEST],
            Distance.LOST: lost,
        }
        for figure, value in values.items():
            found[figure].append(value)
    most = (Distance.ULP_MOST, Distance.SIZE_MOST)
    return {
        f: max(v, default=0.0) if f in most else math.fsum(v) for f, v in found.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("types", ["fd", "ff", "dd"])
@given(data=st.data(), size=SIZES)
@settings(max_examples=200, deadline=None)
def test_every_figure(types, data, size):
    a = data.draw(arrays.arrays(np.float32, size, elements=NUMBERS))
    near = data.draw(arrays.arrays(np.float64, size, elements=st.floats(-2, 2)))
    exact = data.draw(arrays.arrays(np.bool_, size))
    r = np.where(exact, a.astype(np.float64), a.astype(np.float64) * near + near / 8)
    with np.errstate(over="ignore"):
        a, r = a.astype(types[0]), r.astype(types[1])
    assume(np.isfinite(r).all())
    found, expected = distances(a, r, SETTING), definition(a, r)
    assert found is not None
    for figure, value in expected.items():
        scale = math.sqrt(expected[Distance.ACTUAL2] * expected[Distance.REFERENCE2])
        within = scale if figure is Distance.PRODUCT else value
        assert abs(found[figure] - value) <= 1e-13 * within, figure.name


@pytest.mark.parametrize("name", [Told.STEP, Told.LARGEST, Told.LOST])
def test_what_no_setting_asks_for_is_nothing(name):
    """One setting gives the figures that it asks for, with the same values."""
    rng = np.random.default_rng(0)
    r = rng.normal(size=99) * 300
    a = (r * rng.choice([0, 1, 1.5], 99)).astype(np.float32)
    a[:2], r[:2] = (0, 448), (1e-6, 500)
    whole = distances(a, r, SETTING)
    others = {Told.SMALLEST, Told.PRECISION, Told.FLOOR, name}
    found = distances(a, r, {told: SETTING[told] for told in others})
    others = {f for told, asked in ASKED_BY.items() if told != name for f in asked}
    assert all(whole[f] for f in others)
    assert found == whole | dict.fromkeys(others, 0.0)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 17, 36])
def test_what_is_not_finite_has_no_figures(bad, place):
    a = np.ones(37, np.float32)
    other = a.copy()
    other[place] = bad
    assert distances(other, a.astype(np.float64), SETTING) is None
    assert distances(a, other.astype(np.float64), SETTING) is None
    assert distances(other, other.astype(np.float64), SETTING) is None


def test_inf_of_both_signs_is_no_warning():
    """Their products with 2 are Inf and -Inf, whose sum is NaN."""
    a, r = np.ones(64, np.float32), np.full(64, 2.0)
    a[:2] = np.inf, -np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert distances(a, r, SETTING) is None


def test_other_numbers_have_no_figures():
    wide = np.ones(3)
    assert distances(wide, wide.astype(np.float32), SETTING) is None
    assert distances(wide.astype(np.int32), wide, SETTING) is None
    assert distances(np.ones(3, np.float32), np.ones(3, np.int32), SETTING) is None


def test_strides_do_not_matter():
    a = np.arange(64, dtype=np.float32)
    found = distances(a[::2], a.astype(np.float64)[1::2], SETTING)
    assert found == distances(a[::2].copy(), a.astype(np.float64)[1::2].copy(), SETTING)


@pytest.mark.parametrize(
    ("dtype", "reference"),
    [
        ("float32", "float32"),
        ("float32", "float64"),
        ("bfloat16", "float64"),
        ("float8_e4m3fn", "float64"),
        ("float16", "float32"),
    ],
)
def test_reports_are_the_same_without_the_kernel(monkeypatch, dtype, reference):
    """NumPy's and the kernel's, of numbers within the range of the format or not."""
    rng = np.random.default_rng(0)
    r = rng.standard_normal(300_001) * 2.0 ** rng.integers(-40, 20, 300_001)
    most = float(ml_dtypes.finfo(dtype).max) / 2
    r = np.clip(r, -most, most)
    a = (r * (1 + 1e-6 * rng.standard_normal(r.size))).astype(dtype)
    a[::1000], r[::777] = 0, 0
    r = r.astype(reference)
    seen = Seen(np.dtype(dtype), r, a)
    kernel = errors_of(a, r), share_of(seen, 2.0**-24)
    monkeypatch.setattr(choice, "enabled", False)
    for ours, numpys in zip(
        kernel, (errors_of(a, r), share_of(seen, 2.0**-24)), strict=True
    ):
        for name in ours._fields:
            x, y = getattr(ours, name), getattr(numpys, name)
            assert x == y if isinstance(y, int) else x == pytest.approx(y, rel=1e-12)
