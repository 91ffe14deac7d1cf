"""The float64 reference computes linear algebra and Fourier transforms in float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax import lax

import neuronjax as nj
from neuronjax.api.compare import compare
from neuronjax.capture.trace import capture
from neuronjax.diagnostics.compare import Setting
from neuronjax.diagnostics.op_walk import ParallelWalk
from neuronjax.hardware import resolve_target
from neuronjax.lowering.complex_program import real_program
from tests.arrays import normal
from tests.diagnostics.faults.marked import marked_line


def in_float64(function, *arrays):
    """Return the results of `function` in the reference, which must not use FP32. The
    program gets the real and imaginary parts of complex arrays."""
    parts = split(*arrays)

    def of_parts(*parts):
        left = iter(parts)
        whole = (
            next(left) + 1j * next(left) if np.iscomplexobj(a) else next(left)
            for a in arrays
        )
        return jax.tree.leaves(function(*whole))

    types = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in parts)
    names = [f"x{n}" for n in range(len(types))]
    program = capture(of_parts, types, names).program
    if program.holds_complex():
        program = real_program(program, sdk=nj.Policy().sdk)
    setting = Setting(program=program, target=resolve_target("trn2"))
    side = setting.side("float64", nj.Policy.resolve("fp32"))
    results = ParallelWalk(side, side, lambda *heard: None).run(parts)
    assert not side.executor.kept_in_float32
    return results


def split(*arrays):
    """Return functions' complex results as real and imaginary parts."""
    parts = ((x.real, x.imag) if np.iscomplexobj(x) else (x,) for x in arrays)
    return [part for pair in parts for part in pair]


def definite(dtype):
    a = normal(3, 6, 6, seed=1).astype(dtype)
    if dtype == "c8":
        a = a + 1j * normal(3, 6, 6, seed=2)
    return (a @ a.conj().swapaxes(-1, -2) + np.eye(6)).astype(dtype)


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", ["f4", "c8"])
def test_cholesky_factors_are_those_of_numpy(dtype):
    a = definite(dtype)

    def factors(a):
        lower = jnp.linalg.cholesky(a, symmetrize_input=False)
        upper = jnp.linalg.cholesky(a, upper=True, symmetrize_input=False)
        return split(lower, upper)

    lower = np.linalg.cholesky(a.astype("c16" if dtype == "c8" else "f8"))
    upper = lower.conj().swapaxes(-1, -2)
    assert_equal(in_float64(lambda a: tuple(factors(a)), a), split(lower, upper))


def test_a_matrix_that_is_not_definite_has_no_factor():
    [factor] = in_float64(jnp.linalg.cholesky, -np.eye(3, dtype=np.float32))
    assert np.isnan(factor[np.tril_indices(3)]).all()


@pytest.mark.parametrize("dtype", ["f4", "c8"])
def test_triangular_solves_are_those_of_scipy(dtype):
    a = np.linalg.cholesky(definite(dtype)[0]).astype(dtype)
    b = (normal(6, 2, seed=3) * (1j + 1 if dtype == "c8" else 1)).astype(dtype)
    options = [*itertools.product((False, True), (0, 1, 2), (False, True))]

    def solve(a, b, lower, trans, unit):
        square = a if lower else a.T
        options = {"trans": trans, "lower": lower, "unit_diagonal": unit}
        return scipy.linalg.solve_triangular(square, b, **options)

    def solved(a, b):
        found = []
        for lower, trans, unit in options:
            matrix = a if lower else a.T
            rest = {"transpose_a": trans > 0, "conjugate_a": trans == 2}
            rest |= {"lower": lower, "unit_diagonal": unit}
            found += [lax.linalg.triangular_solve(matrix, b, left_side=True, **rest)]
        return tuple(split(*found))

    wide = [x.astype("c16" if dtype == "c8" else "f8") for x in (a, b)]
    expected = [solve(*wide, *o) for o in options]
    assert_equal(in_float64(solved, a, b), split(*expected))


def test_fourier_transforms_are_those_of_numpy():
    z = (normal(4, 15, seed=4) + 1j * normal(4, 15, seed=5)).astype(np.complex64)
    x = normal(4, 14, seed=6).astype(np.float32)

    def transforms(np, z, x):
        half = np.fft.irfft(z, n=17)
        both = np.fft.fft(z), np.fft.ifft2(z), np.fft.rfft2(x)
        return tuple(split(*both, half))

    wide = z.astype(np.complex128), x.astype(np.float64)
    found = in_float64(lambda z, x: transforms(jnp, z, x), z, x)
    assert_equal(found, transforms(np, *wide))


def fold_by_fft(probabilities):
    tail = jnp.fft.irfft(jnp.fft.rfft(probabilities, 512) ** 16, 512)[:130]  # here
    return jnp.log(jnp.maximum(tail, 1e-35))


def fold_by_sums(probabilities):
    total = probabilities
    for _ in range(4):
        total = jnp.convolve(total, total)
    return jnp.log(jnp.maximum(total[:130], 1e-35))


def claims():
    return ((p := 0.62 ** np.arange(24)) / p.sum()).astype(np.float32)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_an_fft_is_at_fault_for_a_tail_below_its_error(wrap):
    arguments = (claims(),)
    report = compare(wrap(fold_by_fft), policy="fp32")(*arguments)
    assert report.faults, str(report)
    assert report.faults[0].record.source == marked_line(fold_by_fft), str(report)
    assert not compare(wrap(fold_by_sums), policy="fp32")(*arguments).faults
