"""The figures of the example timeline, computed by hand."""

from __future__ import annotations

import pytest

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.report.profile_summary import METRICS, metrics, roofs
from neuronjax.timing.work import Core
from tests.report.timelines import EXAMPLE, MICRO, scheduled

TRN2 = Core.of(resolve_target("trn2"))
BF16 = 2 * 2 * 128 * 128 * 2.4e9  # two cores of 128 x 128 cells
STACK = 2.9e12 / 4

FIGURES = {
    "total_time": 20 * MICRO,
    "neuroncore_cycle_count": 24_000,
    "model_flops": 1000 + 4 * 500,
    "adjusted_hardware_flops": 4500,
    "adjusted_transpose_flops": 1500,
    "mfu_estimated_percent": 3000 / (BF16 * 20 * MICRO),
    "hfu_estimated_percent": 4500 / (BF16 * 20 * MICRO),
    "mm_arithmetic_intensity": 3000 / 5500,
    "peak_flops_bandwidth_ratio": BF16 / STACK,
    "mfu_max_achievable_estimated_percent": (3000 / 5500) / (BF16 / STACK),
    "tensor_engine_instruction_count": 2 + 4,
    "tensor_engine_active_time": 15 * MICRO,
    "tensor_engine_active_time_percent": 0.75,
    "vector_engine_active_time": 0,
    "scalar_engine_active_time_percent": 0.05,
    "matmul_instruction_count": 6,
    "activate_instruction_count": 1,
    "activate_instruction_time": MICRO,
    "dma_active_time": 5 * MICRO,
    "dma_active_time_percent": 0.25,
    "dma_transfer_count": 3,
    "dma_transfer_total_bytes": 5500,
    "dma_transfer_average_bytes": 5500 / 3,
    # 32 engines of 25.6 GB/s
    "dma_efficiency_percent": 5500 / (5 * MICRO) / (32 * 25.6e9),
    "mbu_estimated_percent": 5500 / (STACK * 20 * MICRO),
    "hbm_read_bytes": 5000,
    "hbm_write_bytes": 500,
    "spill_save_bytes": 0,
    "spill_reload_bytes": 1000,
    "useful_read_percent": 0.8,
    "input_queue_bytes": 0,
    "weight_queue_bytes": 4000,
    "output_queue_bytes": 500,
    "sbuf_read_bytes": 5 * 64 + 500,
    "sbuf_write_bytes": 16 + 5000,
    "psum_read_bytes": 32,
    "psum_write_bytes": 5 * 32,
    "cc_op_count": 0,
    "cc_op_active_time_percent": 0,
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure(name):
    assert metrics(EXAMPLE, TRN2)[name] == pytest.approx(FIGURES[name])


def test_every_figure_is_described():
    found = metrics(EXAMPLE, TRN2)
    assert found.keys() == METRICS.keys()
    assert sum(not metric.is_vendor for metric in METRICS.values()) == 1


def test_nothing_takes_no_time():
    empty = metrics(scheduled(()), TRN2)
    assert empty.pop("peak_flops_bandwidth_ratio") > 0
    assert set(empty.values()) == {0}


def test_the_cycle_count_of_trn3_is_not_published():
    trn3 = Core.of(resolve_target("trn3"))
    assert "neuroncore_cycle_count" not in metrics(EXAMPLE, trn3)


@pytest.mark.parametrize(
    ("peak", "factor"), [("fp8", 2), ("fp32", 0.25), (BF16 / 1e12 * 3, 3)]
)
def test_mfu_refers_to_a_peak(peak, factor):
    found = metrics(EXAMPLE, TRN2, peak)["mfu_estimated_percent"]
    assert found == pytest.approx(FIGURES["mfu_estimated_percent"] / factor)


@pytest.mark.parametrize(
    ("chip", "stack"), [("trn1", 410e9), ("trn2", 725e9), ("trn3", 1.225e12)]
)
def test_a_stack_of_hbm(chip, stack):
    core = Core.of(resolve_target(chip))
    assert roofs(core).hbm_bytes_per_second == pytest.approx(stack)


@pytest.mark.parametrize(
    ("chip", "peak", "words"), [("trn1", "mx", "no mx"), ("trn2", "int8", "'int8'")]
)
def test_an_unknown_peak_is_named(chip, peak, words):
    with pytest.raises(InvalidProgramError, match=words):
        roofs(Core.of(resolve_target(chip)), peak)
