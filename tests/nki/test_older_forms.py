"""Forms of the older style that public kernels and the vendor's own tests use."""

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from neuronjax.nki import language as newer
from neuronjax.nki.language.programs import GridWarning
from neuronjax.nki.legacy import isa as nisa, jit, language as nl

F16, F32 = np.float16, np.float32
ONES = np.ones((8, 16), F32)


def stored(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


@pytest.mark.parametrize(
    ("imm0", "imm1", "command", "first"),
    [
        (1.0, None, "reset_reduce", 0),
        (np.full((8, 1), 1.0, F32), np.full((8, 1), 5.0, F32), "load_reduce", 5),
    ],
)
def test_a_register_that_adds_up(imm0, imm1, command, first):
    @jit
    def kernel(data, imm0, imm1=None):
        dst = nl.ndarray(data.shape, nl.float32, buffer=nl.sbuf)
        if not isinstance(imm0, float):
            imm0 = nl.load(imm0)
        imm1 = nl.load(imm1) if imm1 else None
        nisa.tensor_scalar_cumulative(
            src=nl.load(data),
            dst=dst,
            op0=nl.add,
            op1=nl.add,
            imm0=imm0,
            imm1=imm1,
            reduce_cmd=nisa.reduce_cmd[command],
        )
        return stored(dst)

    found = kernel(ONES, imm0, imm1)
    np.testing.assert_array_equal(found, first + np.cumsum(ONES + 1, axis=1))


def test_a_branch_on_a_tile_or_on_one_number_is_refused():
    @jit
    def kernel(data):
        return stored(nl.load(data)) if data else None

    @jit
    def on_chip(data):
        tile = nl.load(data)
        return stored(tile) if tile else None

    with pytest.raises(InvalidProgramError, match="branch"):
        kernel(np.ones((1, 1), F32))
    with pytest.raises(InvalidProgramError, match="branch"):
        on_chip(ONES)


def test_a_transpose_by_hardware_descriptors():
    @jit(platform_target="trn2")
    def kernel(data):
        return stored(nisa.dma_transpose(data, dge_mode=nisa.dge_mode.hwdge))

    data = np.arange(16 * 32, dtype=F16).reshape(16, 32)
    np.testing.assert_array_equal(kernel(data), data.T)
    with pytest.raises(InvalidProgramError, match="16 rows"):
        kernel(data.T)


def test_masks_are_joined_by_an_ampersand():
    @jit
    def kernel(data, joined):
        i, j = nl.arange(8)[:, None], nl.mgrid[0:8, 0:16].x
        mask = (i < 4) & (j < 8) if joined else (i < 4 and j < 8)
        return stored(nl.square(nl.load(data)[i, j], mask=mask)[0:4, 0:8])

    np.testing.assert_array_equal(kernel(ONES + 1, joined=True), 4 * ONES[:4, :8])
    with pytest.raises(InvalidProgramError, match=r"(?s)`and`.*&"):
        kernel(ONES, joined=False)


@pytest.mark.slow
def test_two_products_are_subtracted():
    @jit
    def kernel(x, y):
        x, y = nl.load(x), nl.load(y)
        first = nl.matmul(x, y, transpose_x=True)
        return stored(nl.subtract(first, nl.matmul(y, x, transpose_x=True)).as_tile())

    x = np.arange(64, dtype=F32).reshape(8, 8)
    y = np.roll(x, 3, axis=1)
    np.testing.assert_array_equal(kernel(x, y), x.T @ y - y.T @ x)


def test_who_asks_for_its_program_is_told_of_the_grid():
    @nki.jit
    def kernel(x):
        out = newer.ndarray((2, 16), x.dtype, buffer=newer.shared_hbm)
        row = newer.program_id(0)
        newer.store(out[row : row + 1], newer.load(x[row : row + 1]))
        return out

    np.testing.assert_array_equal(kernel[2](ONES), ONES[:2])
    with pytest.warns(GridWarning, match=r"test_older_forms.py:\d+.*--grid"):
        kernel.trace(ONES)
    with pytest.warns(GridWarning):
        found = nki.check(kernel)(ONES).findings
    assert [f.rule for f in found][-1] == "no-grid"
    assert "--grid" in found[-1].remedy


def test_who_asks_how_many_programs_there_are_knows_of_the_grid(recwarn):
    @nki.jit
    def kernel(x):
        out = newer.ndarray(x.shape, x.dtype, buffer=newer.shared_hbm)
        rows = x.shape[0] // newer.num_programs()
        here = newer.ds(newer.program_id(0) * rows, rows)
        newer.store(out[here], newer.load(x[here]))
        return out

    kernel.trace(ONES)
    assert not recwarn.list
