"""The public cast: what it accepts and returns, its gradients, its random numbers.

The values are those of `rounding`, which has its own proofs; here they are compared
with ml_dtypes and NumPy through the public function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from neuronjax.errors import InvalidProgramError, NeuronJaxError, UnsupportedError
from neuronjax.numerics import rounding
from neuronjax.numerics.casting import cast, fake_cast
from neuronjax.numerics.float_format import FORMATS, INTEGERS, IntFormat
from neuronjax.numerics.random_bits import random_bits
from tests.arrays import bits

SIGNED = [fmt for fmt in FORMATS.values() if fmt.signed]
DIFFERENTIABLE = [fmt.name for fmt in SIGNED]
X = np.array([0.3, -1.7, 0.0, 5.2, -1000.0, 70000.0], np.float32)
SIGMAS = 4.0

pytestmark = pytest.mark.usefixtures("strict_promotion")


# -- Targets and sources


@pytest.mark.slow_except("bfloat16", "float8_e4m3fn")
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_names_dtypes_and_formats_are_one(fmt: Any) -> None:
    by_name = cast(X, fmt.name)
    assert (by_name.dtype, by_name.shape) == (fmt.dtype, X.shape)
    np.testing.assert_array_equal(bits(cast(X, fmt)), bits(by_name))
    expected = jax.jit(rounding.cast, static_argnums=1)(X, fmt)
    np.testing.assert_array_equal(bits(by_name), bits(expected))
    if fmt.name != "tfloat32":
        np.testing.assert_array_equal(bits(cast(X, fmt.dtype)), bits(by_name))
    if fmt.name not in ("tfloat32", "float8_e8m0fnu", "float4_e2m1fn"):
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(bits(by_name), bits(X.astype(fmt.dtype)))


@pytest.mark.slow_except("bfloat16", "float8_e4m3fn", "float8_e8m0fnu")
@pytest.mark.parametrize("source", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_every_source_is_widened_exactly(source: Any) -> None:
    low = jnp.asarray(X).astype(source.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        wide = np.asarray(low).astype(np.float32)
        expected = wide.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(bits(cast(low, "bfloat16")), bits(expected))
    np.testing.assert_array_equal(fake_cast(low, "float32"), wide)


def test_numbers_and_numpy_arrays() -> None:
    for x in (3, 3.0, np.float32(3), np.float64(3), np.array(3.0), jnp.float16(3)):
        result = cast(x, "float8_e4m3")
        assert (result.dtype, result.shape) == (ml_dtypes.float8_e4m3, ())
        assert float(result) == 3
    assert cast(np.ones((2, 0, 3)), "bfloat16").shape == (2, 0, 3)


@pytest.mark.slow
def test_options_reach_the_rounding() -> None:
    assert float(fake_cast(1e9, "float8_e4m3")) == np.inf
    assert float(fake_cast(1e9, "float8_e4m3", overflow="saturate")) == 240
    assert float(fake_cast(2.5, "float4_e2m1fn")) == 2
    assert float(fake_cast(2.5, "float4_e2m1fn", rounding="half_away")) == 3
    assert float(fake_cast(2.9, "float4_e2m1fn", rounding="rtz")) == 2


@pytest.mark.slow
def test_integers_are_nearest_and_saturate() -> None:
    x = np.array([0.5, 1.5, -2.5, 127.5, 1e10, -1e10, np.inf, -np.inf, np.nan])
    for fmt in INTEGERS.values():
        expected = np.clip(np.rint(np.nan_to_num(x, posinf=1e10)), fmt.min, fmt.max)
        for target in (fmt, fmt.name, fmt.dtype):
            actual = cast(x.astype(np.float32), target)
            assert actual.dtype == fmt.dtype
            np.testing.assert_array_equal(np.asarray(actual, np.float64), expected)
    assert cast(np.float32([2.5, -2.5]), "int8", rounding="rtz").tolist() == [2, -2]
    away = cast(np.float32([2.5, -2.5, 2.4]), "int8", rounding="half_away")
    assert away.tolist() == [3, -3, 2]


# -- Gradients

WEIGHTS = np.array([1.0, 2.0, -3.0, 0.5, 4.0, 8.0], np.float32)  # exact in every format


def _weighted(x: jax.Array, **options: Any) -> jax.Array:
    """A sum whose cotangents at the cast are WEIGHTS."""
    return jnp.sum(cast(x, **options).astype(jnp.float32) * WEIGHTS)


@pytest.mark.slow_cases("float8_e5m2-rne", "float8_e3m4-rne", "float4_e2m1fn-rne")
@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, "rne") for name in DIFFERENTIABLE), ("float8_e4m3", "stochastic")],
)
def test_the_gradient_is_straight_through(name: str, mode: Any) -> None:
    weights = WEIGHTS.copy()
    if FORMATS[name].nan == "none":  # stops at its largest value
        weights[np.abs(X) > 6] = 0
    with np.errstate(over="ignore"):  # a cotangent of FP4 stops at 6
        weights = weights.astype(FORMATS[name].dtype).astype(np.float32)
    grad = jax.grad(functools.partial(_weighted, dtype=name, rounding=mode, seed=1))
    np.testing.assert_array_equal(grad(jnp.asarray(X)), weights)
    np.testing.assert_array_equal(jax.jit(grad)(jnp.asarray(X)), weights)


@pytest.mark.slow_except("bfloat16", "float8_e4m3fn")
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_no_gradient_where_the_value_stopped_at_the_largest(name: str) -> None:
    largest = np.float32(FORMATS[name].max_finite)
    with np.errstate(over="ignore"):
        beyond = np.nextafter(largest, np.float32(np.inf))
    x = np.array([largest, beyond, -largest, -beyond, np.inf, np.nan], np.float32)
    for options in ({"overflow": "saturate"}, {"rounding": "rtz"}):
        grad = jax.grad(lambda x, how=options: jnp.sum(fake_cast(x, name, **how)))
        np.testing.assert_array_equal(grad(jnp.asarray(x)), [1, 0, 1, 0, 0, 1])
    plain = jax.grad(lambda x: jnp.sum(fake_cast(x, name)))(jnp.asarray(x))
    passes = [1, 0, 1, 0, 0, 1] if FORMATS[name].nan == "none" else np.ones(6)
    np.testing.assert_array_equal(plain, passes)


@pytest.mark.slow
def test_a_float8_cotangent_is_widened_exactly_and_arrives_rounded() -> None:
    """JAX gives a cotangent the dtype of the value: 1/3 arrives as FP8's nearest."""
    third = jnp.float32(1 / 3)
    rounded = np.float32(1 / 3).astype(ml_dtypes.float8_e4m3).astype(np.float32)
    grad = jax.grad(lambda x: cast(x, "float8_e4m3").astype(jnp.float32) * third)
    assert float(grad(jnp.float32(2))) == rounded
    kept = jax.grad(lambda x: fake_cast(x, "float8_e4m3") * third)
    assert float(kept(jnp.float32(2))) == np.float32(1 / 3)
    with np.errstate(invalid="ignore"):
        codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3)
        expected = codes.astype(np.float32)
    _, pull = jax.vjp(lambda x: cast(x, "float8_e4m3"), jnp.ones(256, jnp.float32))
    np.testing.assert_array_equal(pull(jnp.asarray(codes))[0], expected)


@pytest.mark.slow_cases("float16")
@pytest.mark.parametrize("source", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_gradients_have_the_dtype_of_the_input(source: Any) -> None:
    grad = jax.grad(functools.partial(_weighted, dtype="float8_e5m2"))(
        jnp.asarray(X[:4], source).repeat(2)[:6]
    )
    assert grad.dtype == source
    np.testing.assert_array_equal(np.asarray(grad, np.float32), WEIGHTS)


@pytest.mark.slow
def test_forward_mode_and_second_derivatives() -> None:
    x = jnp.asarray(X[:4])
    value, tangent = jax.jvp(lambda x: cast(x, "float8_e4m3"), (x,), (x,))
    assert value.dtype == tangent.dtype == ml_dtypes.float8_e4m3
    np.testing.assert_array_equal(bits(tangent), bits(value))
    square = lambda x: jnp.sum(fake_cast(x, "bfloat16") ** 2)  # noqa: E731
    np.testing.assert_array_equal(jax.hessian(square)(x), 2 * np.eye(4))
    jacobian = jax.jacfwd(functools.partial(fake_cast, dtype="float16"))(x)
    np.testing.assert_array_equal(jacobian, np.eye(4))


@pytest.mark.parametrize("dtype", ["int8", "uint32", "float8_e8m0fnu"])
def test_targets_without_a_gradient(dtype: Any) -> None:
    grad = jax.grad(functools.partial(_weighted, dtype=dtype))(jnp.abs(X))
    np.testing.assert_array_equal(grad, np.zeros(6))


@pytest.mark.slow
def test_training_through_fp8_descends() -> None:
    """Straight-through gradients fit a weight whose cast is what counts."""
    target = jnp.float32([0.75, -1.5, 3.0])

    def loss(w: jax.Array) -> jax.Array:
        return jnp.sum((fake_cast(w, "float8_e4m3") - target) ** 2)

    w = jnp.zeros(3)
    for _ in range(40):
        w = w - jnp.float32(0.2) * jax.grad(loss)(w)
    np.testing.assert_array_equal(fake_cast(w, "float8_e4m3"), target)


# -- Transformations and composition


def _composed(x: jax.Array, seed: jax.Array) -> tuple[jax.Array, ...]:
    """Casts between arithmetic that XLA would like to fuse with them."""
    low = cast(x * x, "bfloat16")
    total = low.astype(jnp.float32) + x
    noisy = cast(total, "float8_e5m2", rounding="stochastic", seed=seed)
    return low, noisy, fake_cast(total, "tfloat32"), cast(total, "int16")


@pytest.mark.slow
def test_the_same_bits_under_every_transformation() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32))
    seeds = jnp.arange(3, dtype=jnp.uint32)
    with jax.disable_jit():
        rows = [_composed(row, seed) for row, seed in zip(x, seeds, strict=True)]
    expected = [np.stack([bits(row[i]) for row in rows]) for i in range(4)]
    runs = {
        "vmap": jax.vmap(_composed),
        "jit of vmap": jax.jit(jax.vmap(_composed)),
        "scan": jax.jit(lambda x, s: lax.map(lambda xs: _composed(*xs), (x, s))),
    }
    for name, run in runs.items():
        for actual, wanted in zip(run(x, seeds), expected, strict=True):
            np.testing.assert_array_equal(bits(actual), wanted, err_msg=name)


def test_the_gradient_of_a_batch() -> None:
    x = jnp.asarray(X)
    for transform in (jax.vmap, lambda f: jax.jit(jax.vmap(f))):
        grad = transform(jax.grad(lambda v: fake_cast(v, "float8_e3m4")))
        np.testing.assert_array_equal(grad(x), np.ones(6))


# -- Stochastic rounding


@pytest.mark.slow
def test_a_seed_is_a_key_of_random_bits() -> None:
    x = np.linspace(-3, 3, 1000, dtype=np.float32)
    options: dict[str, Any] = {"rounding": "stochastic", "random_bit_count": 20}
    for seed in (0, 7, -1, 2**40 + 7, np.uint32(7), np.int64(7)):
        key = jnp.uint32(int(seed) % 2**32)
        expected = cast(
            x, "float8_e4m3", random_bits=random_bits((1000,), key), **options
        )
        for s in (seed, key):
            actual = cast(x, "float8_e4m3", seed=s, **options)
            np.testing.assert_array_equal(bits(actual), bits(expected))
    traced = jax.jit(lambda s: cast(x, "float8_e4m3", seed=s, **options))
    np.testing.assert_array_equal(
        bits(traced(jnp.uint32(2**32 - 1))),
        bits(cast(x, "float8_e4m3", seed=-1, **options)),
    )


@pytest.mark.slow_except("bfloat16", "float8_e4m3")
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_stochastic_rounding_is_unbiased(fmt: Any) -> None:
    """A million draws each of values between two neighbours, within four sigma."""
    if fmt.mantissa_bits == 23:
        pytest.skip("float32 discards nothing")
    draws = 1 << 20
    low, step = 1.0, fmt.eps
    shares = np.array([1 / 256, 0.3, 0.5, 0.9], np.float32)  # of the way up
    x = np.float32(low) + np.repeat(shares, draws // 4) * np.float32(step)
    rounded = np.asarray(fake_cast(x, fmt, rounding="stochastic", seed=fmt.bias))
    ups = (rounded > low).reshape(4, -1)
    exact = (x.reshape(4, -1)[:, 0].astype(np.float64) - low) / step
    deviation = np.sqrt(exact * (1 - exact) * ups.shape[1])
    assert (np.abs(ups.sum(axis=1) - exact * ups.shape[1]) < SIGMAS * deviation).all()
    assert set(np.unique(rounded)) == {low, low + step}


# -- Errors

WRONG: list[tuple[type[NeuronJaxError], str, Callable[[], Any]]] = [
    (InvalidProgramError, "no float", lambda: cast(np.arange(3), "bfloat16")),
    (InvalidProgramError, "no float", lambda: cast(True, "bfloat16")),
    (InvalidProgramError, "'int64' is not", lambda: cast(X, "int64")),
    (InvalidProgramError, "'bool' is not", lambda: cast(X, np.bool_)),
    (
        InvalidProgramError,
        "'float8_e4m3fnuz' is not",
        lambda: cast(X, "float8_e4m3fnuz"),
    ),
    (
        InvalidProgramError,
        "'float8_e4m3fnuz' is not",
        lambda: cast(jnp.ones(3, jnp.float8_e4m3fnuz), "bfloat16"),
    ),
    (InvalidProgramError, "rounding='up'", lambda: cast(X, "bfloat16", rounding="up")),
    (InvalidProgramError, "rounding='up'", lambda: cast(X, "int8", rounding="up")),
    (InvalidProgramError, "overflow='wrap'", lambda: cast(X, "int8", overflow="wrap")),
    (
        InvalidProgramError,
        "overflow='wrap'",
        lambda: cast(X, "bfloat16", overflow="wrap"),
    ),
    (InvalidProgramError, "neither", lambda: cast(X, "float16", rounding="stochastic")),
    (
        InvalidProgramError,
        "both",
        lambda: cast(
            X, "float16", rounding="stochastic", seed=0, random_bits=jnp.uint32(1)
        ),
    ),
    (
        InvalidProgramError,
        "seed is float32",
        lambda: cast(X, "float16", rounding="stochastic", seed=jnp.float32(0)),
    ),
    (
        InvalidProgramError,
        r"random bits have shape \(2,\)",
        lambda: cast(
            X, "float16", rounding="stochastic", random_bits=jnp.ones(2, jnp.uint32)
        ),
    ),
    (
        UnsupportedError,
        "stochastic rounding to int8",
        lambda: cast(X, "int8", rounding="stochastic", seed=0),
    ),
    (
        InvalidProgramError,
        "fake_cast has no int8",
        lambda: fake_cast(X, IntFormat(8, True)),
    ),
]


@pytest.mark.parametrize(("error", "message", "call"), WRONG)
def test_errors_name_the_problem_and_the_remedy(
    error: type[NeuronJaxError], message: str, call: Callable[[], Any]
) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert caught.value.remedy


def test_float64_is_refused_where_jax_has_it(x64: None) -> None:
    with pytest.raises(UnsupportedError, match="float64, which no engine reads"):
        cast(np.ones(3), "bfloat16")
    assert cast(1.5, "bfloat16").dtype == jnp.bfloat16
