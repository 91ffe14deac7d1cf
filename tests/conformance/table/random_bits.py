"""rng_bit_generator and jax.random with its three implementations.

Bits, integers and uniform numbers are exact; what needs a logarithm or an error
function is as near as these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.conformance.table.case import Case, Check, Close, Exact, Input

Function = Any
IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")
SHAPE = (5, 7)

BITS: Mapping[str, Function] = {
    "bits": lambda k: jax.random.bits(k, SHAPE),
    "bits_uint8": lambda k: jax.random.bits(k, SHAPE, "uint8"),
    "bits_uint16": lambda k: jax.random.bits(k, (3,), "uint16"),
    "split": lambda k: jax.random.split(k, 3),
    "split_2d": lambda k: jax.random.split(k, (2, 2)),
    "fold_in": lambda k: jax.random.fold_in(k, 7),
    "uniform": lambda k: jax.random.uniform(k, SHAPE),
    "uniform_range": lambda k: jax.random.uniform(k, SHAPE, minval=0.5, maxval=2),
    "uniform_bf16": lambda k: jax.random.uniform(k, SHAPE, jnp.bfloat16),
    "randint": lambda k: jax.random.randint(k, SHAPE, 0, 100),
    "randint_uint8": lambda k: jax.random.randint(k, SHAPE, 3, 250, "uint8"),
    "permutation": lambda k: jax.random.permutation(k, 11),
    "bernoulli": lambda k: jax.random.bernoulli(k, 0.3, SHAPE),
    "choice": lambda k: jax.random.choice(k, 9, (4,), replace=False),
    "rademacher": lambda k: jax.random.rademacher(k, SHAPE),
    "clone": lambda k: jax.random.bits(jax.random.clone(k)),
    "vmap_bits": lambda k: jax.vmap(lambda k: jax.random.bits(k, (3,)))(
        jax.random.split(k, 4)
    ),
    "bits_in_scan": lambda k: lax.scan(
        lambda k, _: (jax.random.split(k)[0], jax.random.bits(k, (2,))), k, None, 3
    ),
}
VALUES: Mapping[str, Function] = {
    "normal": lambda k: jax.random.normal(k, SHAPE),
    "truncated_normal": lambda k: jax.random.truncated_normal(k, -1, 2, SHAPE),
    "exponential": lambda k: jax.random.exponential(k, SHAPE),
    "gumbel": lambda k: jax.random.gumbel(k, SHAPE),
    "laplace": lambda k: jax.random.laplace(k, SHAPE),
    "logistic": lambda k: jax.random.logistic(k, SHAPE),
    "cauchy": lambda k: jax.random.cauchy(k, SHAPE),
    "rayleigh": lambda k: jax.random.rayleigh(k, 1.5, SHAPE),
    "weibull_min": lambda k: jax.random.weibull_min(k, 1.0, 2.0, SHAPE),
    "pareto": lambda k: jax.random.pareto(k, 3.0, SHAPE),
    "categorical": lambda k: jax.random.categorical(k, jnp.arange(4.0), shape=(9,)),
    "orthonormal_start": lambda k: jax.random.ball(k, 3, shape=(4,)),
}
#: With loops of rejection: they take a second each to compile.
REJECTION: Mapping[str, Function] = {
    "gamma": lambda k: jax.random.gamma(k, 2.5, (4,)),
    "beta": lambda k: jax.random.beta(k, 2.0, 3.0, (4,)),
    "poisson": lambda k: jax.random.poisson(k, 4.0, (6,)),
    "dirichlet": lambda k: jax.random.dirichlet(k, jnp.array([1.0, 2.0, 3.0])),
    "binomial": lambda k: jax.random.binomial(k, 9, 0.4, (5,)),
    "student_t": lambda k: jax.random.t(k, 3.0, (4,)),
}


def seeded(function: Function, implementation: str) -> Function:
    return lambda seed: function(jax.random.key(seed, impl=implementation))


def rows_of(
    table: Mapping[str, Function], check: Check, slow: bool = False
) -> Iterator[Case]:
    for implementation in IMPLEMENTATIONS:
        for name, function in table.items():
            if name == "poisson" and implementation != "threefry2x32":
                continue  # JAX has no other
            yield Case(
                name=f"{name}-{implementation}",
                function=seeded(function, implementation),
                inputs=(Input((), "uint32"),),
                check=check,
                # rng_bit_generator is no op of the interpreter's.
                interpreter=implementation == "threefry2x32" and not slow,
                slow=slow,
            )


def generators() -> Iterator[Case]:
    algorithms = {
        "philox": (lax.RandomAlgorithm.RNG_PHILOX, 4),
        "threefry": (lax.RandomAlgorithm.RNG_THREE_FRY, 4),
        "default": (lax.RandomAlgorithm.RNG_DEFAULT, 4),
    }
    for name, (algorithm, words) in algorithms.items():
        for dtype in ("uint8", "uint16", "uint32"):
            for shape in ((1,), (7,), (3, 5), (4, 4)):
                size = "x".join(map(str, shape))
                yield Case(
                    name=f"rng_bit_generator-{name}-{dtype}-{size}",
                    function=lambda key, a=algorithm, s=shape, d=dtype: (
                        lax.rng_bit_generator(key, s, jnp.dtype(d), a)
                    ),
                    inputs=(Input((words,), "uint32"),),
                    interpreter=False,
                )


CASES = (
    *rows_of(BITS, Exact()),
    *rows_of(VALUES, Close(1e-5, 2e-6)),
    *rows_of(REJECTION, Close(1e-4, 1e-5), slow=True),
    *generators(),
)
