"""How results are compared with the reference's."""

import numpy as np
import pytest

from neuronjax.diagnostics.judging.comparing import compared
from neuronjax.diagnostics.tolerance import Tolerance


def test_every_result_has_to_be_as_near_as_is_allowed():
    """A small result that is wrong is not hidden by a large one that is right."""
    large, small = np.full(4, 1e6), np.full(4, 1.0)
    allowed = [Tolerance.of_norm(x, 2e-5) for x in (large, small)]
    found = compared(0, [large, small * 1.01], allowed)
    assert not found.correct
    assert found.relative_l2 == pytest.approx(0.01)
    assert compared(0, [large, small], allowed).correct


VALUE = np.asarray([1e-3, 1.0, 1000.0])
BOUND = np.asarray([1e-9, 1e-6, 1e-3], np.float32)
#: A tolerance, a result, whether it is right, and the element that speaks.
SPEAKS = {
    "the one beyond its bound, not the largest": (
        Tolerance(VALUE, BOUND, 1.0), [1e-3 + 1e-7, 1.0, 1000.0005], False, 0),
    "of a right result the nearest to its bound": (
        Tolerance(VALUE, BOUND, 1.0), [1e-3 + 5e-10, 1.0, 1000.0001], True, 0),
    "the largest, where the norm refuses": (
        Tolerance(VALUE, BOUND, 1e-4), [1e-3, 1 + 5e-7, 1000.0005], False, 2),
    "the largest, where the elements that differ have no bounds": (
        Tolerance(VALUE, np.where(VALUE < 10, np.inf, BOUND), 1.0),
        [1e-3, 700.0, 1000.0001], True, 1),
    "the one that is no number": (
        Tolerance.of_norm(VALUE, 1e-3), [1e-3, np.nan, 1001.0], False, 1),
    "the largest, where one number is allowed": (
        Tolerance.of_norm(VALUE, 1e-3), [2e-3, 1.0, 1000.5], True, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", SPEAKS)
def test_the_element_that_is_shown_speaks_for_the_verdict(name):
    allowed, actual, is_right, place = SPEAKS[name]
    found = compared(0, [np.asarray(actual)], [allowed])
    assert found.correct is is_right
    assert found.worst is not None
    assert found.worst["index"] == [place]
    assert found.worst["actual"] == pytest.approx(actual[place], nan_ok=True)
