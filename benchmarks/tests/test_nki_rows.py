"""Published times of kernels: every row has its kernel, and one prediction is close."""

import pytest

from benchmarks.validation import nki_rows
from tests.nki import published_kernels


def test_every_row_has_a_kernel():
    names = [row.name + row.chip for row in nki_rows.ROWS]
    assert len(set(names)) == len(names)
    assert all(hasattr(published_kernels, row.kernel) for row in nki_rows.ROWS)


def test_a_small_published_kernel():
    """Check that Mamba of 256 channels is within a tenth of the measured time."""
    (row,) = (row for row in nki_rows.ROWS if row.name == "Mamba S512 C256, v1")
    found = nki_rows.predict(row)
    assert abs(found.error) < 0.1
    assert found.busy_seconds["vector"] == pytest.approx(
        0.9871 * 150.93e-6, rel=0.1
    )  # active VectorE [MAM]
    assert row.name in nki_rows.table([found])


def test_the_ladder_of_equal_instructions_stands_in_order():
    """Check the order of resident operands, alternating accumulators, and sunk loads.

    The prediction for single buffers is twice too long, as the notes of the table
    say."""
    found = [nki_rows.predict(row) for row in nki_rows.LADDER]
    seconds = [f.seconds for f in found]
    assert seconds == sorted(seconds, reverse=True)
    assert all(abs(f.error) < 0.15 for f in found[1:])
    busy = found[1].busy_seconds
    assert busy["tensor"] / found[1].seconds == pytest.approx(0.72, abs=0.06)
    assert busy["vector"] / found[1].seconds == pytest.approx(0.18, abs=0.03)
    assert found[2].busy_seconds["tensor"] / found[2].seconds == pytest.approx(
        0.88, abs=0.02
    )
