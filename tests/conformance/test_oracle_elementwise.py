"""VectorE's arithmetic against the oracle, bit for bit, alone and in composition.

The compositions are those that XLA likes to rewrite: x * y + z into an FMA, a / s into
a * (1 / s). Each test that relies on it asserts that the rewrite shows in its data.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from tests.oracles import data, floats, reduction

OPERATIONS = {
    "add": (jnp.add, floats.add),
    "subtract": (jnp.subtract, floats.subtract),
    "multiply": (jnp.multiply, floats.multiply),
    "divide": (jnp.divide, floats.divide),
}
FORMATS = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}


def assert_rewrite_shows(rewritten, expected, share: float = 0.05) -> None:
    assert np.mean(np.asarray(rewritten) != expected) > share


@pytest.mark.slow_cases("op by op")
@pytest.mark.parametrize("eager", [False, True], ids=["jitted", "op by op"])
def test_fp32_arithmetic_flushes_subnormals(eager):
    rng = np.random.default_rng(1)
    x, y = data.kinds(rng, (600,)), data.kinds(rng, (600,))[::-1].copy()
    program = nj.jit(lambda x, y: [op(x, y) for op, _ in OPERATIONS.values()])
    with jax.disable_jit(eager):
        outputs = program(x, y)
    for (name, (_, oracle)), out in zip(OPERATIONS.items(), outputs, strict=True):
        floats.same_bits(out, oracle(x, y), name)


def test_results_at_the_smallest_normal():
    below = np.float32(1 - 2.0**-24)
    above, under = np.float32(1 + 2.0**-23), np.float32(1 - 2.0**-23)
    root = np.float32(2.0**-63)
    tiny = np.float32(2.0**-126)
    x = np.float32([tiny, tiny * 2 * below, root * above, -tiny * 1.5, 2.0**-127])
    y = np.float32([below, 0.5, root * under, -tiny * 1.25, 2.0**100])
    program = nj.jit(lambda x, y: [op(x, y) for op, _ in OPERATIONS.values()])
    for (name, (_, oracle)), out in zip(OPERATIONS.items(), program(x, y), strict=True):
        floats.same_bits(out, oracle(x, y), name)


@pytest.mark.parametrize("zero", [0.0, -0.0], ids=str)
@pytest.mark.parametrize("eager", [False, True], ids=["jitted", "op by op"])
def test_constant_zeros_keep_their_sign(eager, zero):
    x = np.float32([1, -1, -0.0, 0.0])
    constant = np.full(x.shape, zero, np.float32)

    def program(x):
        zeros = jnp.full(x.shape, zero)
        padded = lax.pad(x, np.float32(zero), [(1, 0, 0)])
        return x / zero, x + zero, x * zero, jnp.where(x == 9, x, zero), zeros, padded

    with jax.disable_jit(eager):
        outputs = nj.jit(program)(x)
    arithmetic = [f(x, constant) for f in (floats.divide, floats.add, floats.multiply)]
    padded = np.concatenate([constant[:1], x])
    expected = [*arithmetic, constant, constant, padded]
    for index, (out, values) in enumerate(zip(outputs, expected, strict=True)):
        floats.same_bits(out, values, f"{zero}, output {index}")


@pytest.mark.slow_cases("bf16")
@pytest.mark.parametrize("name", FORMATS)
def test_narrow_arithmetic_rounds_on_every_write(name):
    rng = np.random.default_rng(2)
    dtype = FORMATS[name]
    values = [data.normal(rng, (4000,)) for _ in range(3)]
    values += [np.concatenate([data.kinds(rng, (200,))[i] for i in (3, 4, 5)])]
    values[3] = np.resize(values[3], 4000)
    with np.errstate(over="ignore", invalid="ignore"):
        x, y, z, special = (v.astype(dtype) for v in values)

    def program(x, y, z, special):
        single = [op(x, special) for op, _ in OPERATIONS.values()]
        return [*single, x * y + z, (x - y) / z, (x + y) * (x - y)]

    def write(operation, a, b):
        return floats.round_to(operation(a, b), name)

    outputs = nj.jit(program)(x, y, z, special)
    x, y, z, special = (v.astype(np.float32) for v in (x, y, z, special))
    scaled = write(floats.multiply, x, y)
    difference, total = write(floats.subtract, x, y), write(floats.add, x, y)
    expected = [
        *(write(oracle, x, special) for _, oracle in OPERATIONS.values()),
        write(floats.add, scaled, z),
        write(floats.divide, difference, z),
        write(floats.multiply, total, difference),
    ]
    once = floats.round_to(floats.add(floats.multiply(x, y), z), name)
    assert_rewrite_shows(once, expected[4])
    for index, (out, values) in enumerate(zip(outputs, expected, strict=True)):
        with np.errstate(over="ignore", invalid="ignore"):
            floats.same_bits(out, values.astype(dtype), f"{name} output {index}")


def compositions(x, y, z, scale, bias):
    """Multi-step arithmetic without elementary functions."""
    row_sum = x.sum(-1, keepdims=True)
    mean = row_sum / x.shape[-1]
    centred = x - mean
    squares = centred * centred
    variance = squares.sum(-1, keepdims=True) / x.shape[-1]
    return {
        "scale * x + bias": scale * x + bias,
        "x * y + z": x * y + z,
        "z - x * y": z - x * y,
        "x * y - z * x": x * y - z * x,
        "horner": ((x * y + z) * y + x) * y + z,
        "dot by hand": (x * y).sum(-1),
        "normalised": x / row_sum,
        "halves": x / scale,
        "mean": mean,
        "centred": centred,
        "variance": variance,
        "ratio": centred / variance * scale + bias,
        "axpy then sum": (x + scale * y).sum((0, 1)),
    }


def expected_compositions(x, y, z, scale, bias) -> dict[str, np.ndarray]:
    add, subtract = floats.add, floats.subtract
    multiply, divide = floats.multiply, floats.divide
    count = np.float32(x.shape[-1])

    def row_sums(values):
        return reduction.reduce(values, (-1,))[..., None]

    products = multiply(x, y)
    total = row_sums(x)
    mean = divide(total, count)
    centred = subtract(x, mean)
    variance = divide(row_sums(multiply(centred, centred)), count)
    horner = add(multiply(add(multiply(add(products, z), y), x), y), z)
    return {
        "scale * x + bias": add(multiply(scale, x), bias),
        "x * y + z": add(products, z),
        "z - x * y": subtract(z, products),
        "x * y - z * x": subtract(products, multiply(z, x)),
        "horner": horner,
        "dot by hand": row_sums(products)[..., 0],
        "normalised": divide(x, total),
        "halves": divide(x, scale),
        "mean": mean,
        "centred": centred,
        "variance": variance,
        "ratio": add(multiply(divide(centred, variance), scale), bias),
        "axpy then sum": reduction.reduce(add(x, multiply(scale, y)), (0, 1)),
    }


@pytest.fixture(scope="module")
def operands():
    rng = np.random.default_rng(3)
    x, y, z = (data.normal(rng, (4, 3, 520)) for _ in range(3))
    scale, bias = np.float32(0.7310586), np.float32(0.3333333)
    return x + np.float32(0.1), y, z, scale, bias


@pytest.fixture(scope="module")
def expected(operands):
    return expected_compositions(*operands)


def assert_compositions(got, expected) -> None:
    assert set(got) == set(expected)
    for name, values in expected.items():
        floats.same_bits(got[name], values, name)


@pytest.mark.slow
def test_compositions_jitted(operands, expected):
    assert_compositions(nj.jit(compositions)(*operands), expected)


@pytest.mark.slow
def test_compositions_op_by_op(operands, expected):
    with jax.disable_jit():
        assert_compositions(nj.jit(compositions)(*operands), expected)


@pytest.mark.slow
def test_compositions_under_an_outer_jit_with_constants(operands, expected):
    x, y, z, scale, bias = operands
    emulated = nj.jit(compositions)
    got = jax.jit(lambda x: emulated(x, y, z, scale, bias))(x)
    assert_compositions(got, expected)


@pytest.mark.slow
def test_compositions_with_constants_in_the_program(operands, expected):
    x, y, z, scale, bias = operands
    got = nj.jit(lambda x, y, z: compositions(x, y, z, scale, bias))(x, y, z)
    assert_compositions(got, expected)


@pytest.mark.slow
def test_compositions_under_vmap(operands, expected):
    x, y, z, scale, bias = operands
    emulated = jax.vmap(nj.jit(compositions), in_axes=(0, 0, 0, None, None))
    got = emulated(*(v[:, None] for v in (x, y, z)), scale, bias)
    for name in set(expected) - {"axpy then sum"}:
        values = np.asarray(got[name]).reshape(expected[name].shape)
        floats.same_bits(values, expected[name], name)


def test_compositions_would_show_a_rewrite(operands, expected):
    x, y, z, scale, bias = operands
    assert_rewrite_shows(floats.fma(scale, x, bias), expected["scale * x + bias"])
    assert_rewrite_shows(floats.fma(x, y, z), expected["x * y + z"])
    centred = expected["centred"]
    unrounded = reduction.reduce(x, (-1,))[..., None]
    negative = -np.float32(1 / 520)
    assert_rewrite_shows(floats.fma(unrounded, negative, x), centred)
    for name, divisor in (("normalised", unrounded), ("halves", scale)):
        reciprocal = floats.divide(np.float32(1), divisor)
        assert_rewrite_shows(floats.multiply(x, reciprocal), expected[name])
    total = np.zeros(x.shape[:-1], np.float32)
    for k in range(x.shape[-1]):
        total = floats.fma(x[..., k], y[..., k], total)
    assert_rewrite_shows(total, expected["dot by hand"])


@pytest.mark.slow_cases("op by op")
@pytest.mark.parametrize("eager", [False, True], ids=["jitted", "op by op"])
def test_a_recurrence_in_a_scan_and_its_gradient(eager):
    rng = np.random.default_rng(4)
    decay = np.float32(0.9) + data.normal(rng, (16,)) * np.float32(0.01)
    xs = data.normal(rng, (40, 16))

    def recurrence(decay, xs):
        return lax.scan(lambda c, x: (c * decay + x,) * 2, jnp.zeros(16), xs)

    def program(decay, xs):
        _, vjp = jax.vjp(lambda d: recurrence(d, xs)[0], decay)
        return recurrence(decay, xs), vjp(jnp.ones(16))[0]

    with jax.disable_jit(eager):
        (carry, history), gradient = nj.jit(program)(decay, xs)
    state, states = np.zeros(16, np.float32), []
    for x in xs:
        states.append(state)
        state = floats.add(floats.multiply(state, decay), x)
    floats.same_bits(carry, state, "carry")
    floats.same_bits(history, np.stack([*states[1:], state]), "history")
    cotangent, total = np.ones(16, np.float32), np.zeros(16, np.float32)
    for before in reversed(states):
        total = floats.add(total, floats.multiply(before, cotangent))
        cotangent = floats.multiply(cotangent, decay)
    floats.same_bits(gradient, total, "gradient")
