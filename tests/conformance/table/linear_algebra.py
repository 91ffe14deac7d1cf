"""cholesky, triangular_solve, and what jax.numpy.linalg makes of them.

Eigenvalues, QR and LU are calls of the host's LAPACK. The interpreter has none of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.conformance.table.case import Case, Close, Input, only_native, rows

Function = Any

OF_POSITIVE: Mapping[str, Function] = {
    "cholesky": jnp.linalg.cholesky,
    "cholesky_upper": lambda a: jnp.linalg.cholesky(a, upper=True),
    "lax_cholesky": lambda a: lax.linalg.cholesky(a, symmetrize_input=False),
    "cho_solve": lambda a: jax.scipy.linalg.cho_solve(
        jax.scipy.linalg.cho_factor(a[0]), a[1]
    ),
    "grad_cholesky": jax.grad(lambda a: jnp.linalg.cholesky(a).sum()),
    "mvn_logpdf": lambda a: jax.scipy.stats.multivariate_normal.logpdf(
        a[1, 0], a[0, 0], a[0]
    ),
}


def solve(**keywords: bool) -> Function:
    return lambda a, b: lax.linalg.triangular_solve(a, b, **keywords)


def triangular_solves() -> Iterator[Case]:
    for dtype in ("float32", "complex64"):
        for left in (True, False):
            for lower in (True, False):
                for transposed in (True, False):
                    name = "-".join(
                        ["left" if left else "right", "lower" if lower else "upper"]
                        + ["transposed"] * transposed
                    )
                    yield Case(
                        name=f"triangular_solve-{name}-{dtype}",
                        function=solve(
                            left_side=left, lower=lower, transpose_a=transposed
                        ),
                        inputs=(
                            Input((2, 5, 5), dtype, "triangular"),
                            Input((2, 5, 3) if left else (2, 3, 5), dtype),
                        ),
                        check=Close(1e-5, 1e-5),
                    )
    for name, keywords in {
        "unit": dict(left_side=True, lower=True, unit_diagonal=True),
        "conjugated": dict(left_side=True, transpose_a=True, conjugate_a=True),
    }.items():
        yield Case(
            name=f"triangular_solve-{name}",
            function=solve(**keywords),
            inputs=(
                Input((5, 5), "complex64", "triangular"),
                Input((5, 2), "complex64"),
            ),
            check=Close(1e-5, 1e-5),
        )


#: LAPACK on the host; each is compared by what does not depend on signs.
DECOMPOSED: Mapping[str, Function] = {
    "solve": lambda a: jnp.linalg.solve(a, a[:, :, :2]),
    "inv": jnp.linalg.inv,
    "det": jnp.linalg.det,
    "slogdet": jnp.linalg.slogdet,
    "qr": lambda a: jnp.abs(jnp.linalg.qr(a)[1]),
    "lu": lambda a: jax.scipy.linalg.lu(a[0]),
    "eigvalsh": jnp.linalg.eigvalsh,
    "svd": lambda a: jnp.linalg.svd(a, compute_uv=False),
    "lstsq": lambda a: jnp.linalg.lstsq(a[0], a[1])[0],
    "pinv": lambda a: jnp.linalg.pinv(a[0]),
    "expm": lambda a: jax.scipy.linalg.expm(a[0]),
    "matrix_power": lambda a: jnp.linalg.matrix_power(a[0], 3),
    "matrix_norm": lambda a: jnp.linalg.norm(a[0], 2),
}


def positive(dtype: str) -> tuple[Input, ...]:
    return (Input((2, 5, 5), dtype, "positive_definite"),)


CASES = only_native(
    [
        *rows(OF_POSITIVE, ("float32",), positive, Close(1e-5, 1e-5)),
        *rows(
            {"cholesky": jnp.linalg.cholesky},
            ("complex64",),
            positive,
            Close(1e-5, 1e-5),
        ),
        *triangular_solves(),
        *rows(DECOMPOSED, ("float32",), positive, Close(2e-5, 2e-5)),
    ]
)
