"""Stochastic rounding of what kernels write: neighbours, shares and seeds."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from tests.execution.kernels.test_kernels import data


@nki.jit(target="trn2")
def narrowed(x):
    """FP32 to BF16 by three engines, and a sum that exists in BF16."""
    out = nl.ndarray((3, *x.shape), nl.bfloat16, buffer=nl.shared_hbm)
    wide = nl.load(x)
    for n, engine in enumerate((nisa.vector_engine, nisa.scalar_engine)):
        tile = nl.ndarray(x.shape, nl.bfloat16, nl.sbuf)
        nisa.tensor_copy(tile, wide, engine=engine)
        nl.store(out[n], tile)
    nisa.tensor_scalar(wide, wide, nl.multiply, 1.0)
    last = nl.ndarray(x.shape, nl.bfloat16, nl.sbuf)
    nisa.tensor_tensor(last, wide, wide, nl.add)
    nl.store(out[2], last)
    return out


def neighbours(x):
    """The BF16 below and above a float32, toward zero and away from it."""
    low = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    step = ((x.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32)
    return low, np.where(low == x, x, step)


@pytest.mark.slow
def test_stochastic_rounding_goes_up_or_down_in_proportion():
    x = np.full((128, 512), 1 + 2**-7 * 0.25, np.float32)  # a quarter of the way
    found = np.asarray(narrowed.with_rounding("stochastic")(x)).astype(np.float32)
    for n, factor in enumerate((1, 1, 2)):
        low, high = neighbours(x * factor)
        assert ((found[n] == low) | (found[n] == high)).all()
        share = (found[n] == high).mean()
        assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / x.size)
    assert (found[0] != found[1]).any()  # every instruction has bits of its own
    nearest = np.asarray(narrowed(x)).astype(np.float32)
    assert (nearest[0] == 1).all()


@pytest.mark.slow
def test_stochastic_rounding_depends_on_the_seed_alone():
    x = data(128, 64)
    kernel = narrowed.with_rounding("stochastic")
    first = np.asarray(kernel(x))
    for other in (kernel, nki.simulate(narrowed, rounding="stochastic", seed=0)):
        np.testing.assert_array_equal(np.asarray(other(x)), first)
    assert (np.asarray(kernel.with_seed(1)(x)) != first).any()
    exact = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    copied = np.asarray(kernel(exact))[0].astype(np.float32)
    np.testing.assert_array_equal(copied, exact)
    with jax.disable_jit():
        np.testing.assert_array_equal(np.asarray(kernel(x[:8, :4])), kernel(x[:8, :4]))


def test_psum_rounds_stochastically_where_it_is_narrow():
    @nki.jit(target="trn3", rounding="stochastic")
    def product(a, b):
        out = nl.ndarray((128, 512), nl.bfloat16, buffer=nl.shared_hbm)
        psum = nl.ndarray((128, 512), nl.bfloat16, nl.psum)
        nisa.nc_matmul(psum, nl.load(a), nl.load(b))
        tile = nl.ndarray((128, 512), nl.bfloat16, nl.sbuf)
        nisa.tensor_copy(tile, psum)
        nl.store(out, tile)
        return out

    a = np.zeros((128, 128), ml_dtypes.bfloat16)
    a[0], a[1] = 1, 1
    b = np.zeros((128, 512), ml_dtypes.bfloat16)
    b[0], b[1] = 1, 2**-8  # half of the way to the next
    found = np.asarray(product(a, b)).astype(np.float32)
    assert set(np.unique(found)) == {1, 1 + 2**-7}
    assert abs((found > 1).mean() - 0.5) < 5 * 0.5 / np.sqrt(found.size)


def test_a_rounding_that_there_is_not():
    with pytest.raises(InvalidProgramError, match="stochastic"):
        narrowed.with_rounding("up")
