"""Injected faults: a comparison with the same policy without the fault names the op."""

import pytest

from benchmarks.fault_injection import KINDS, trials


def test_one_fault_of_every_kind_is_named():
    found = list(trials(len(KINDS), sizes=(200,)))
    assert {t.kind for t in found} == set(KINDS)
    assert all(t.named for t in found)
    assert sum(t.stands_out for t in found) >= 2


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_99_of_100_faults_are_named():
    found = list(trials(100))
    assert sorted({t.ops for t in found})[0] >= 200
    assert sum(t.named for t in found) >= 99
    assert sum(t.stands_out or t.diverges for t in found) >= 75
