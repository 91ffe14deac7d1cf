"""TensorE's throttle: a ramp after idle, and what few rows make of it."""

import pytest

from neuronjax.hardware import resolve_target
from neuronjax.timing.assumptions import THROTTLE_SINKING
from neuronjax.timing.engines.throttle import Throttle, after_idle_seconds, is_idle
from neuronjax.timing.work import Core

US = 1e-6
WARM_SECONDS = 2.25 * US  # of work, in a ramp of 3 us that begins at half


def in_a_row(throttle, count, share, seconds=0.1 * US, start=0.0):
    """When so many matmuls end that follow each other without a gap."""
    for _ in range(count):
        start += throttle.spent(start, seconds, share)
    return start


def core(target):
    return Core.of(resolve_target(target), 1)


def test_only_later_cores_have_it():
    assert after_idle_seconds(core("trn1"), 1e-3) == 0
    for target in ("trn2", "trn3"):
        assert after_idle_seconds(core(target), 1e-3) == pytest.approx(0.75 * US)


@pytest.mark.parametrize("parts", [1, 3, 90])
def test_the_ramp_takes_three_microseconds(parts):
    throttle = Throttle()
    end = in_a_row(throttle, parts, 1.0, WARM_SECONDS / parts)
    assert end == pytest.approx(3 * US)
    assert throttle.spent(end, 1 * US, 1.0) == pytest.approx(1 * US)


def test_the_ramp_begins_at_half():
    assert Throttle().spent(0.0, 1e-9, 1.0) == pytest.approx(2e-9, rel=1e-3)


@pytest.mark.parametrize(("gap", "again"), [(1.4 * US, False), (1.6 * US, True)])
def test_half_a_window_of_rest_brings_the_limit_back(gap, again):
    throttle = Throttle()
    start = in_a_row(throttle, 1, 1.0, 1e-3) + gap
    assert is_idle(gap) == again
    assert (throttle.spent(start, 1e-9, 1.0) > 1.9e-9) == again


@pytest.mark.parametrize("rows", [1, 32, 63])
def test_few_rows_never_leave_the_limit(rows):
    """FP32 of one row: 8 cycles a column where a product has 4 (mamba [KDA])."""
    end = in_a_row(Throttle(), 1000, rows / 128)
    assert end == pytest.approx(2 * 100 * US)


def test_half_of_the_rows_keep_what_others_reached():
    cold, warm = Throttle(), Throttle()
    assert in_a_row(cold, 1000, 0.5) == pytest.approx(200 * US)
    start = in_a_row(warm, 1, 1.0, WARM_SECONDS)
    assert in_a_row(warm, 1000, 0.5, start=start) - start == pytest.approx(100 * US)


def test_a_short_gap_ends_what_half_of_the_rows_keep():
    """20 ns cost nothing at once, and in the end everything."""
    throttle = Throttle()
    start = in_a_row(throttle, 1, 1.0, WARM_SECONDS) + 0.02 * US
    soon = in_a_row(throttle, 1000, 0.5, start=start)
    assert soon - start < 1.05 * 100 * US
    later = in_a_row(throttle, 4000, 0.5, start=soon)
    end = in_a_row(throttle, 1000, 0.5, start=later)
    assert end - later == pytest.approx(200 * US)


def test_the_limit_sinks_by_what_lacks():
    throttle = Throttle()
    start = in_a_row(throttle, 1, 1.0, WARM_SECONDS) + 1 * US
    lost = THROTTLE_SINKING.value * 0.5 * 1 * US
    limit = 0.5 + 0.5 * (3 * US - lost) / (3 * US)
    assert throttle.spent(start, 1e-12, 1.0) == pytest.approx(1e-12 / limit, rel=1e-3)


def test_nothing_takes_nothing_and_changes_nothing():
    throttle = Throttle()
    end = in_a_row(throttle, 1, 1.0, WARM_SECONDS)
    assert throttle.spent(end + 1.0, 0.0, 1.0) == 0.0
    assert throttle.spent(end, 1 * US, 1.0) == pytest.approx(1 * US)
