"""Linear algebra and Fourier transforms as JAX programs use them.

Compiled and op by op with equal bits, near to what JAX itself computes in FP32, alone
and inside loops, batches and gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest

import neuronjax as nj
from tests.conformance.bits import assert_same, relative_errors, same_both_ways

# Of the 2-norm, between two FP32 computations with matrices of condition 10.
BOUND = 2e-6


def matrix(seed: int = 0, n: int = 4) -> jax.Array:
    x = np.random.default_rng(seed).standard_normal((n, n))
    return jnp.asarray(x + n * np.eye(n), jnp.float32)


def definite(x: jax.Array) -> jax.Array:
    return x @ x.T


def factor_and_solve(a: jax.Array, b: jax.Array) -> tuple:
    """Between other arithmetic, whose products XLA would like to fuse with it."""
    factor = jnp.linalg.cholesky(definite(a) + a * a.T)
    x = jsp.linalg.solve_triangular(factor, b * 3 + 1, lower=True, trans=1)
    return factor * 2 - a, x * x + b


def spectra(x: jax.Array) -> tuple:
    """Every kind of transform, with complex numbers inside the program."""
    half = jnp.fft.rfft(x * 2 + 1)
    shifted = jnp.fft.fftshift(jnp.fft.fft2(x), axes=-1)
    back = jnp.fft.irfft(half * jnp.conj(half), n=x.shape[-1])
    return jnp.abs(shifted), back, jnp.fft.ifftn(shifted)


def filtered(x: jax.Array) -> jax.Array:
    """A scalar through a transform and back."""
    spectrum = jnp.fft.rfft(x) * jnp.linspace(1, 0, x.shape[-1] // 2 + 1)
    return jnp.sum(jnp.fft.irfft(spectrum, n=x.shape[-1]) ** 3)


PROGRAMS: dict[str, Callable] = {
    "gradient of cholesky": jax.grad(
        lambda a: jnp.sum(jnp.linalg.cholesky(definite(a)) ** 2)
    ),
    "spectra": spectra,
}
MORE_PROGRAMS: dict[str, Callable] = {
    "cholesky": lambda a: jnp.linalg.cholesky(definite(a)),
    "upper": lambda a: jnp.linalg.cholesky(definite(a), upper=True),
    "complex cholesky": lambda a: jnp.linalg.cholesky(
        definite(a) + 1j * (a - a.T)  # Hermitian
    ),
    "complex solve": lambda a: jsp.linalg.solve_triangular(
        a + 1j * a.T, a[0] + 0j, trans=2
    ),
    "solve": lambda a: jnp.linalg.solve(a, a[:, :2]),
    "gradient of solve": jax.grad(lambda a: jnp.sum(jnp.linalg.solve(a, a[0]))),
    "inv": jnp.linalg.inv,
    "det": jnp.linalg.det,
    "slogdet": jnp.linalg.slogdet,
    "matrix_power": lambda a: jnp.linalg.matrix_power(a, -3),
    "lu": jsp.linalg.lu,
    "lu_factor": jsp.linalg.lu_factor,
    "solve_triangular": lambda a: jsp.linalg.solve_triangular(a, a, trans=1),
    "cho_solve": lambda a: jsp.linalg.cho_solve((a, True), a),
    "expm": lambda a: jsp.linalg.expm(a / 4),
    "tridiagonal_solve": lambda a: jax.lax.linalg.tridiagonal_solve(
        a[0], a[1] + 4, a[2], a
    ),
    "jacobian of solve": jax.jacrev(lambda a: jnp.linalg.solve(a, a[0])),
    "gradient of a spectrum": jax.grad(filtered),
    "fft": lambda a: jnp.fft.fft(a, n=6),
    "ifft": lambda a: jnp.fft.ifft(a + 1j * a.T, axis=0),
    "rfftn": jnp.fft.rfftn,
    "irfft2": lambda a: jnp.fft.irfft2(jnp.fft.rfft2(a)),
    "hfft": lambda a: jnp.fft.hfft(a + 1j * a.T),
}


def near_native(function: Callable, *args: jax.Array) -> None:
    got = same_both_ways(nj.jit(function), *args)
    with jax.default_matmul_precision("highest"):
        want = jax.jit(function)(*args)
    got, want = jax.tree.map(_parts, (got, want))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for path, difference in relative_errors(got, want).items():
        assert difference < BOUND, path


def _parts(x: jax.Array) -> tuple:
    return (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    near_native(PROGRAMS[name], matrix())


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_PROGRAMS)
def test_more_programs(name):
    near_native(MORE_PROGRAMS[name], matrix())


@pytest.mark.slow
def test_alone_batched_and_in_a_loop():
    """The bits of an example do not depend on how it is computed."""
    a = jnp.stack([matrix(seed) for seed in range(3)])
    b = a[:, :, 0]
    alone = nj.jit(factor_and_solve)
    want = [alone(x, y) for x, y in zip(a, b, strict=True)]

    def loop(a: jax.Array, b: jax.Array) -> tuple:
        step = lambda carry, x: (carry, factor_and_solve(*x))  # noqa: E731
        return jax.lax.scan(step, 0, (a, b))[1]

    want = jax.tree.map(lambda *x: np.stack(x), *want)
    assert_same(jax.vmap(alone)(a, b), want, "vmap")
    assert_same(same_both_ways(nj.jit(loop), a, b), want, "loop")


@pytest.mark.slow
def test_a_transform_alone_and_batched():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 20)), jnp.float32)
    power = nj.jit(lambda x: jnp.abs(jnp.fft.fft(x)) * 3 + x)
    want = np.stack([power(row) for row in x])
    assert_same(jax.vmap(power)(x), want)


def test_not_definite_is_nan():
    got = nj.jit(jnp.linalg.cholesky)(jnp.diag(jnp.float32([1, -1, 1])))
    want = jnp.linalg.cholesky(jnp.diag(jnp.float32([1, -1, 1])))
    assert_same(got, want)


def test_instructions_say_what_they_are():
    text = nj.jit(factor_and_solve).lower(matrix(), matrix()[0]).compile().as_text()
    for name in ("gpsimd.cholesky", "gpsimd.triangular_solve"):
        [line] = [line for line in text.splitlines() if name in line]
        assert "# modelled" in line
