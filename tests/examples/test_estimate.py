"""The example of prices: from shapes alone, in tables of 80 columns."""

from __future__ import annotations

import pytest

from examples import estimate

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained():
    return estimate.training(trn3_price=100.0, gpu_step=0.25, gpu_price=50.0)


def test_every_machine_trains_on_as_many_tokens(trained):
    rows = [(cost.machine, cost.policy) for cost in trained.costs]
    machines = [(name, p) for name in estimate.TRAINED for p in ("bf16", "fp8")]
    assert rows == [*machines, ("your GPU node", "")]
    for cost in trained.costs:
        assert cost.tokens == pytest.approx(estimate.TRAINED_ON, rel=1e-3)
        assert cost.fits


def test_newer_chips_are_faster(trained):
    first, second, third = (cost.time.compute_seconds for cost in trained.costs[:6:2])
    assert first > second > third


def test_the_same_parameters_are_served():
    served = estimate.serving()
    cache = 2 * 2 * 12 * 16 * 2048 * 768
    for cost in served.costs:
        assert cost.weights_bytes == pytest.approx(2 * 110e6, rel=0.05)
        assert cost.kv_cache_bytes == pytest.approx(cache, rel=1e-3)
        assert cost.inter_token_seconds < cost.request_seconds
    assert max(map(len, str(served).splitlines())) <= 80


def test_tables_fit_80_columns(trained):
    assert max(map(len, str(trained).splitlines())) <= 80
