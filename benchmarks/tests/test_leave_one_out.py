"""Figures are chosen by the other ops, and restored afterwards."""

import numpy as np
import pytest

from benchmarks import leave_one_out
from neuronjax import nki
from neuronjax.hardware import resolve_target
from neuronjax.timing import assumptions
from neuronjax.timing.kernel_schedule import schedule_kernel

TARGET = resolve_target("trn2")


def stream(columns: int):
    """Return a program that copies an array and is limited by DMA."""
    nki.install()
    import neuronxcc.nki as older
    import neuronxcc.nki.language as nl

    @older.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for n in nl.affine_range(16):
            nl.store(out[n], value=nl.load(x[n]))
        return out

    x = np.zeros((16, 128, columns), np.float32)
    return kernel.with_target("trn2").trace(x)


def seconds(program, rate):
    (figure, *_) = leave_one_out.FIGURES
    with figure.applied(rate):
        return schedule_kernel(program, TARGET, lnc=1).total_seconds


def test_an_op_is_held_against_what_the_others_choose():
    """Check two ops that stream at 22 GB/s per engine and one at the model's rate."""
    programs = [stream(n) for n in (1024, 2048, 4096)]
    rates = (22e9, 22e9, 25.6e9)
    kernels = [
        (op, seconds(program, rate), program)
        for op, program, rate in zip("abc", programs, rates, strict=True)
    ]
    found = leave_one_out.by_value(kernels, TARGET)
    row = leave_one_out.left_out("c", kernels, found, TARGET)
    assert row["kernels"] == 1
    assert row["chosen"]["streaming_bytes_per_second"] == 22e9
    assert row["chosen"]["THROTTLE_SINKING"] == assumptions.THROTTLE_SINKING.value
    assert row["median_error"] == pytest.approx(0, abs=1e-9)
    assert row["left_out_error"] > 0.1
    assert "streaming_bytes_per_second 2.2e+10" in leave_one_out.table([row])


def test_figures_are_put_back_and_begin_with_the_model():
    program = stream(1024)
    before = schedule_kernel(program, TARGET, lnc=1).total_seconds
    for figure in leave_one_out.FIGURES:
        with figure.applied(figure.values[0]):
            own = schedule_kernel(program, TARGET, lnc=1).total_seconds
        assert own == before, figure.name
        with figure.applied(figure.values[1]):
            schedule_kernel(program, TARGET, lnc=1)
    assert schedule_kernel(program, TARGET, lnc=1).total_seconds == before


def test_without_a_corpus_it_says_what_to_fetch(tmp_path, capsys):
    assert leave_one_out.main([str(tmp_path)]) == 2
    assert "git clone" in capsys.readouterr().err
