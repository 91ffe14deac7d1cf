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
    "--xla_allow_excess_precision=false",
    "--xla_cpu_enable_fast_min_max=true",
]


@pytest.fixture(scope="module")
def here():
    return dict(digests())


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_changes_no_bit(flag, here):
    assert digests_elsewhere(XLA_FLAGS=flag) == here


def test_one_processor_changes_no_bit(here):
    assert digests_elsewhere(processors=1) == here


@pytest.mark.parametrize("threads", [1, 8])
def test_threads_of_xla_change_no_bit(threads, here):
    assert digests_elsewhere(NPROC=str(threads)) == here


def test_programs_kept_by_another_instruction_set_change_no_bit(tmp_path, here):
    """JAX's cache takes the flag for part of a program's name: each finds its own."""
    cache = {
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    assert digests_elsewhere(XLA_FLAGS="--xla_cpu_max_isa=SSE4_2", **cache) == here
    written = {file.name for file in tmp_path.iterdir()}
    assert digests_elsewhere(**cache) == here
    assert len({file.name for file in tmp_path.iterdir()} - written) >= len(here)


def test_kernels_of_the_host_change_no_bit(here):
    assert digests_elsewhere("--no-kernels") == here
