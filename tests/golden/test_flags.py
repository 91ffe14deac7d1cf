"""The bits under flags of XLA, on fewer processors, without the host's kernels."""

import pytest

from tests.golden.elsewhere import digests, digests_elsewhere

pytestmark = pytest.mark.slow
FLAGS = [
    "--xla_cpu_max_isa=SSE4_2",
    "--xla_cpu_max_isa=AVX2",
    "--xla_cpu_max_isa=AVX512",
    "--xla_cpu_multi_thread_eigen=false",
    *(f"--xla_backend_optimization_level={level}" for level in range(4)),
    "--xla_force_host_platform_device_count=8",
    # Reassociates sums: known to change bits, and not refused yet.
    pytest.param(
        "--xla_cpu_enable_fast_math=true",
        marks=pytest.mark.xfail(raises=AssertionError, strict=True),
    ),
]


@pytest.fixture(scope="module")
def here():
    return digests()


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_changes_no_bit(flag, here):
    assert digests_elsewhere(XLA_FLAGS=flag) == here


def test_one_processor_changes_no_bit(here):
    assert digests_elsewhere(processors=1) == here


def test_kernels_of_the_host_change_no_bit(here):
    assert digests_elsewhere("--no-kernels") == here
