"""The digits example end to end: it learns in few steps, and its weights are sparse."""

from __future__ import annotations

import io

import jax
import numpy as np
import pytest
from rich.console import Console

import neuronjax as nj
from examples import digits
from neuronjax.numerics.sparsity import SparseArray

pytestmark = pytest.mark.slow

STEPS = 40


@pytest.fixture(scope="module")
def results() -> tuple[digits.Result, digits.Result]:
    return digits.run(steps=STEPS, seed=0)


def test_both_models_learn(results):
    for result in results:
        assert np.isfinite(jax.tree.leaves(result.params)[0]).all()
        assert 0.8 < result.accuracy <= 1


def test_the_weights_obey_the_pattern(results):
    dense, sparse = results
    assert sparse.name == digits.PATTERN
    for kernel in digits.kernels(sparse.params):
        compressed = SparseArray.from_dense(kernel, digits.PATTERN, axis=0)
        assert compressed.values.size * 4 == kernel.size
    with pytest.raises(nj.InvalidProgramError, match="non-zero elements"):
        digits.weight_bytes(dense.params, sparse=True)


def test_the_sparse_model_runs_on_compressed_weights(results):
    _, sparse = results
    images = digits.Digits.load(seed=0).test_images
    program = sparse.predict.lower(sparse.params, images)
    names = [type(i).__name__ for i in program.instructions]
    assert names.count("NcMatmulSparse") == 3
    # Up to 128 rows are one K tile either way, so the bits are those of dense weights.
    as_dense = nj.jit(
        lambda params, images: sparse.predict.__wrapped__(params, images),
        target=digits.TARGET,
        policy=digits.DENSE_POLICY,
    )
    np.testing.assert_array_equal(
        sparse.predict(sparse.params, images), as_dense(sparse.params, images)
    )


def test_the_table_fits_80_columns(results):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(digits.table(results, STEPS))
    text = console.export_text()
    assert "34,048" in text
    assert "3.20×" in text
    assert max(map(len, text.splitlines())) <= 80
