"""Distances from NumPy: their measurement, and distances of small kernels made here.

The slow tests are the quick form of `make validate-numerics`: without a corpus, with
kernels of the same computations, they check properties of published rows of trn2.
"""

from __future__ import annotations

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import fp32_models, validate_numerics
from benchmarks.validate_numerics import Distances
from benchmarks.validation import corpus as corpora, numeric_rows
from benchmarks.validation.numeric_rows import NumericRow
from neuronjax import nki
from neuronjax.nki import isa as nisa, language as nl
from neuronjax.numerics.exact import opaque_zero

KERNEL = """
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x, eps):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.multiply(nl.load(x), eps))
    return out
"""
REFERENCE = """
import numpy as np


def get_inputs():
    return [np.random.rand(128, 64).astype(np.float32), 3.0]


def forward(x, eps):
    return x * x.dtype.type(eps)


def transform_to_nki_inputs(inputs):
    return inputs
"""


@pytest.fixture
def corpus(tmp_path):
    """Return a folder with one kernel made here in the place of rope's."""
    reference = tmp_path / "AccelOpt" / "NKIBench" / "reference"
    runs = tmp_path / "kda-for-trainium" / "workspaces" / "rope_single_freq_apply"
    for folder in (reference, runs / "runs"):
        folder.mkdir(parents=True)
    (reference / "rope_single_freq_apply_B1.py").write_text(REFERENCE)
    (runs / "runs" / "rope_v1.py").write_text(KERNEL)
    return tmp_path


def row(distance: float = 1.8e-7, digits: int = 2) -> NumericRow:
    return NumericRow(
        op="bmm",
        kernel="runs/bmm_v1.py",
        chip="trn2",
        distance=distance,
        digits=digits,
        about="",
    )


def distances(of: NumericRow, here: float, numpy: float = 0.0) -> Distances:
    return Distances(of, here=here, exact=1e-7, numpy=numpy, seconds=1, peak_bytes=1)


def test_every_published_distance_has_a_row():
    rows = numeric_rows.rows()
    published = [e for e in corpora.entries() if e.get("rel_l2") and e["passed"]]
    assert len(rows) == len(published) + len(numeric_rows.OTHERS)
    assert len({(r.op, r.kernel) for r in rows}) == len(rows)
    quick = [r.op in numeric_rows.HEAVY for r in rows]
    assert quick == sorted(quick)


def test_a_figure_is_as_good_as_its_digits():
    assert distances(row(), 1.8e-7 * 1.12).is_close  # 1.8 may be 1.85
    assert not distances(row(), 1.8e-7 * 1.14).is_close
    assert not distances(row(1.8e-7, digits=4), 1.8e-7 * 1.12).is_close
    assert distances(row(0.0), 0.0).is_close
    assert not distances(row(0.0), 1e-9).is_close


def test_the_error_of_numpy_is_taken_out_where_it_counts():
    assert distances(row(), 2e-7, numpy=1e-8).device_alone is None
    alone = distances(row(), 2e-7, numpy=1.44e-7).device_alone
    assert alone == pytest.approx(math.sqrt(1.8**2 - 1.44**2) * 1e-7)
    assert distances(row(), 2e-7, numpy=1.9e-7).device_alone is None


def test_pieces_make_up_the_whole():
    q = np.arange(2 * 16 * 3).reshape(1, 2, 16, 3)
    k = np.arange(2 * 8 * 3).reshape(1, 2, 8, 3)
    found = list(numeric_rows.in_pieces("gqa_full", [q, k, k]))
    assert len(found) == 8
    where, (queries, keys, _) = found[3]
    assert where == (slice(None), slice(6, 8))
    assert np.array_equal(queries, q[:, :, 6:8])
    assert np.array_equal(keys, k[:, :, 3:4])
    assert list(numeric_rows.in_pieces("silu", [q])) == [((), [q])]


@pytest.mark.slow
def test_a_row_runs_in_a_process_of_its_own(corpus, capsys, tmp_path):
    path = tmp_path / "found.json"
    given = [str(corpus), "--only", "rope", "swiglu_v1", "--output", str(path)]
    assert validate_numerics.main(given) == 0
    printed = capsys.readouterr().out
    assert "rope_v1                           0.000e+00  0.000e+00  1.000" in printed
    assert "swiglu_v1                       failed: " in printed
    assert "1 of 1 within 10 %; 1 not done" in printed
    found = json.loads(path.read_text())
    assert found["not_done"]["bmm_v1"] == "not asked for"
    assert found["entries"][0]["peak_bytes"] > 1e6


def test_a_row_may_take_too_long(corpus):
    (rope,) = (r for r in numeric_rows.rows() if r.name == "rope_v1")
    said = validate_numerics.measured_apart(rope, corpus, "exact", 0.01)
    assert said == "not done within 0 s"


def test_without_a_corpus_it_says_what_to_fetch(tmp_path, capsys):
    assert validate_numerics.main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert all(address in said for address, _ in corpora.REPOSITORIES.values())


# ---- Models of FP32 operands.


def test_halves_add_up():
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    for model in fp32_models.MODELS:
        halves = fp32_models.split(x, model)
        assert np.array_equal(halves["h"] + halves["l"], x)
        kept = np.frexp(halves["h"])[0] * 2.0**model.digits
        assert np.array_equal(kept, np.rint(kept))


def test_two_models_are_those_of_the_policy():
    import neuronjax as nj

    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((300, 20), (300, 30)))
    for model in fp32_models.MODELS:
        if model.name.startswith("fp32_"):
            policy = nj.Policy(fp32_model=model.name)
            ours = nj.jit(lambda x, y: x.T @ y, target="trn2", policy=policy)(a, b)
            assert np.array_equal(ours, fp32_models.fp32_matmul(a, b, model))


def test_sums_of_32_rows_are_as_far_from_shorter_tiles_as_trn2():
    from neuronjax.execution.engines.array_fold import FoldOrder, Matrix
    from neuronjax.execution.engines.tensor import Psum, accumulate

    a = np.linspace(-1, 1, 512 * 512, dtype=np.float32).reshape(1, 512, 512)
    operand, zero = Matrix(jnp.asarray(a), k_first=True), opaque_zero()
    psum = Psum(zero, zero, "rne", None)

    def difference(rows: int | None) -> float:
        orders = (FoldOrder(k, passes=4, group_rows=rows) for k in (128, 64))
        long, short = (accumulate(operand, operand, order, psum) for order in orders)
        return float(jnp.abs(long - short).max())

    assert difference(32) == pytest.approx(6.1035e-5, rel=1e-4)
    assert difference(None) == pytest.approx(1.83e-4, rel=1e-2)


def test_blas_of_one_block_is_a_left_fold():
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((64, 20), (64, 30)))
    total = np.zeros((20, 30), np.float32)
    for row_a, row_b in zip(a.astype(float), b.astype(float), strict=True):
        total = (total + np.multiply.outer(row_a, row_b)).astype(np.float32)
    assert np.array_equal(fp32_models.blas_matmul(a, b, 320), total)


# ---- The quick form: kernels made here.

P = 128


@nki.jit(target="trn2")
def product(stationary, moving):
    """Compute [K, 128].T @ [K, N] in tiles of 128 rows."""
    k, n = moving.shape
    acc = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.psum)
    for start in range(0, k, P):
        rows = slice(start, min(start + P, k))
        tiles = []
        for source in (stationary, moving):
            part = source[rows, :]
            tile = nl.ndarray(part.shape, dtype=source.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=part)
            tiles.append(tile)
        nisa.nc_matmul(dst=acc, stationary=tiles[0], moving=tiles[1])
    held = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=held, src=acc)
    out = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=held)
    return out


@nki.jit(target="trn2")
def product_of_halves(stationary, moving):
    """Compute the same as three products of BF16 halves, in one PSUM."""
    k, n = moving.shape
    acc = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.psum)
    for start in range(0, k, P):
        rows = slice(start, start + P)
        halves = []
        for source in (stationary, moving):
            shape = (P, source.shape[1])
            tile = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=source[rows, :])
            high, low = (
                nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf) for _ in "hl"
            )
            nisa.tensor_copy(dst=high, src=tile)
            nisa.tensor_tensor(dst=low, data1=tile, data2=high, op=nl.subtract)
            halves.append((high, low))
        for i, j in ((0, 0), (0, 1), (1, 0)):
            nisa.nc_matmul(dst=acc, stationary=halves[0][i], moving=halves[1][j])
    held = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=held, src=acc)
    out = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=held)
    return out


def operands(k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(42)
    a, b = (rng.normal(size=(k, n)).astype(np.float32) for n in (P, 512))
    return a, b


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "published", "ratio"), [(64, 1.8e-7, 1.03), (2048, 3.987e-7, 0.91)]
)
def test_an_fp32_product_is_as_far_from_numpy_as_the_model_says(k, published, ratio):
    a, b = operands(k)
    ours = np.asarray(product(a, b))
    model = fp32_models.MODELS[0]
    assert np.array_equal(ours, fp32_models.fp32_matmul(a, b, model))
    blas = fp32_models.blas_matmul(a, b, block=320)
    found = fp32_models.distance(ours, blas) / published
    assert found == pytest.approx(ratio, rel=0.03)


@pytest.mark.slow
def test_three_bf16_products_miss_the_smallest_quarter():
    a, b = operands(1024)
    ours = np.asarray(product_of_halves(a, b))
    model = fp32_models.Model(name="sums of all rows")
    assert np.array_equal(ours, fp32_models.bf16_matmul(a, b, model))
    exact = a.astype(np.float64).T @ b.astype(np.float64)
    # The published distance on trn2, with one or two more matmuls, is 4.476e-6.
    assert fp32_models.distance(ours, exact) == pytest.approx(4.476e-6, rel=0.05)
