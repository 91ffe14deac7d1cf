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
