"""What 16 bits, 8 bits and whole numbers cost: in one op, a loop and a channel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from neuronjax import make_mesh
from neuronjax.api.compare import compare
from tests.diagnostics.faults.marked import assert_named, marked_line


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# ---- A difference of two products in BF16.


def difference_of_products(x, dark, w):
    return jnp.tanh((x @ w - dark @ w) / 8)  # here


def product_of_difference(x, dark, w):
    return jnp.tanh(((x - dark) @ w) / 8)


def lights(*shape):
    dark = (600 + 40 * np.random.default_rng(0).random(64)).astype(np.float32)
    w = normal(1, 64, 6) / 8
    return dark + 6 * normal(2, *shape, 6) @ w.T, dark, w


def test_a_difference_of_products():
    programs = difference_of_products, product_of_difference
    assert_named("cancellation", *programs, lights(40), policy="bf16")


def expanded(q, k):
    dots = q @ k.T
    norms = jnp.sum(q * q, -1)[:, None] + jnp.sum(k * k, -1)
    return jnp.sqrt(jnp.maximum(norms - 2 * dots, 0.0))  # here


def direct(q, k):
    return jnp.sqrt(jnp.sum((q[:, None, :] - k) ** 2, -1))


def test_a_difference_from_norms_of_the_same_numbers():
    k = 20 + normal(16, 32, 16)
    arguments = k[:16] + 0.5 * normal(17, 16, 16), k
    assert_named("cancellation", expanded, direct, arguments, policy="bf16")


def in_a_scan(function):
    def scanned(x, dark, w):
        return jax.lax.scan(lambda c, x: (c, function(x, dark, w)), 0.0, x)[1]

    return scanned


def under_vmap(function):
    return jax.vmap(function, in_axes=(0, None, None))


def over_devices(function):
    mesh, specs = make_mesh((4,), ("d",)), (P("d"), P(), P())
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=P("d"))


@pytest.mark.parametrize("within", [in_a_scan, under_vmap, over_devices])
def test_a_difference_of_products_within(within):
    asked = {"policy": "bf16", "target": "trn2"}
    report = compare(within(difference_of_products), **asked)(*lights(4, 20))
    assert report.faults[0].record.source == marked_line(difference_of_products)
    report = compare(within(product_of_difference), **asked)(*lights(4, 20))
    assert report.faults == (), str(report)


def test_a_deep_network_in_bf16_is_as_exact_as_bf16_allows():
    def deep(x, ws):
        for w in ws:
            x = x + jnp.tanh(x @ w)
        return x, jax.nn.softmax(x)

    arguments = normal(3, 32, 24), normal(4, 12, 24, 24) / 4
    report = compare(deep, policy="bf16")(*arguments)
    assert report.faults == (), str(report)


# ---- A loop that multiplies its state by a matrix that BF16 rounds.


def by_a_matrix(x, a):
    step = jnp.eye(8) + a / 800

    def body(x, _):
        return x @ step, None  # here

    return jax.lax.scan(body, x, length=1200)[0]


def by_the_change(x, a):
    return jax.lax.scan(lambda x, _: (x + x @ (a / 800), None), x, length=1200)[0]


def test_a_loop_that_multiplies_by_a_rounded_matrix():
    a = np.random.default_rng(5).uniform(0.05, 0.2, (8, 8)) * (1 - np.eye(8))
    arguments = abs(normal(6, 5, 8)), (a - np.diag(a.sum(1))).astype(np.float32)
    assert_named("coarse", by_a_matrix, by_the_change, arguments, policy="bf16")


# ---- FP32 matmuls before a difference: no cast rounds their operands.


def unit(d):
    return d / jnp.linalg.norm(d, axis=1, keepdims=True)


def far_sphere(d, c):
    b = unit(d) @ c
    return jnp.maximum(b * b - (c @ c - 2.25), 0.0)  # here


def near_sphere(d, c):
    d = unit(d)
    across = c - (d @ c)[:, None] * d
    return jnp.maximum(2.25 - jnp.sum(across * across, 1), 0.0)


def test_a_difference_after_matmuls_in_fp32():
    c = np.array([800.0, -350.0, 2100.0], np.float32)
    d = c + normal(7, 60, 3) * np.array([0.6, 0.6, 0], np.float32)
    assert_named("cancellation", far_sphere, near_sphere, [d, c], policy="fp32")


# ---- A constant that takes the scale of an FP8 matmul, before a norm.


def normed(h):
    h = h - jnp.mean(h, -1, keepdims=True)
    return h / jnp.sqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-5)


def filled(x, mask, w, fill):
    h = jnp.where(mask[..., None], x, fill)  # here
    h = normed(h @ w[0])
    h = h + jax.nn.relu(normed(h) @ w[1])
    return jnp.where(mask[..., None], h, 0.0)


def test_a_large_fill_before_a_norm_in_fp8():
    mask = np.arange(12) < np.array([5, 12, 9, 3])[:, None]
    arguments = normal(8, 4, 12, 16), mask, [normal(9, 16, 32) / 4, normal(10, 32, 32)]
    report = compare(lambda *a: filled(*a, -1e7), policy="fp8")(*arguments)
    assert report.faults[0].record.source == marked_line(filled), str(report)
    assert report.faults[0].remedy.startswith("use a constant that is no larger")
    report = compare(lambda *a: filled(*a, 0.0), policy="fp8")(*arguments)
    assert report.faults == (), str(report)


# ---- Channels that one scale for all makes zero.


def one_scale(w):
    scale = jnp.max(jnp.abs(w)) / 127  # here
    return jnp.round(w / scale).astype(jnp.int8), scale


def scale_of_each(w):
    scale = jnp.max(jnp.abs(w), axis=0) / 127
    return jnp.round(w / scale).astype(jnp.int8), scale


def layer(quantize):
    def run(x, w, gains):
        codes, scale = quantize(w)
        return x @ codes.astype(jnp.float32) * scale / gains

    return run


def test_channels_that_become_zero():
    gains = np.exp(np.linspace(-4, 2, 24)).astype(np.float32)
    w = np.random.default_rng(11).uniform(-1, 1, (16, 24)).astype(np.float32)
    arguments = normal(12, 20, 16), w * gains, gains
    report = compare(layer(one_scale), policy="fp32")(*arguments)
    assert report.faults[0].record.source == marked_line(one_scale), str(report)
    assert "multiply the numbers by 1," not in str(report)
    report = compare(layer(scale_of_each), policy="fp32")(*arguments)
    assert report.faults == (), str(report)


def test_numbers_that_codes_of_16_bits_make_zero():
    def stored(v, most):
        return jnp.round(v / most * 65535).astype(jnp.uint16)  # here

    def restored(v):
        most = jnp.max(v)
        return stored(v, most).astype(jnp.float32) / 65535 * most

    v = np.exp(np.linspace(-30, 0, 40)).astype(np.float32)
    report = compare(restored, policy="fp32")(v)
    lines = [fault.record.source for fault in report.faults]
    assert marked_line(stored) in lines, str(report)
    report = compare(restored, policy="fp32")(v[-8:])
    assert report.faults == (), str(report)


def test_halves_that_a_floor_rounds_down_are_zeros():
    def requantized(x):
        return jnp.floor(jnp.maximum(x, 0) * 40 + 0.5).astype(jnp.int8)

    report = compare(requantized, policy="fp32")(normal(13, 20, 16))
    assert report.faults == (), str(report)


# ---- Steps of an integer state.


def trained(step):
    def run(x, key):
        def body(state, n):
            sums, rest = state
            change, rest = step(x * jnp.sin(n * 0.1), rest, jax.random.fold_in(key, n))
            return (sums + change, rest), None

        start = jnp.full(x.shape, 4096), jnp.zeros_like(x)
        return jax.lax.scan(body, start, jnp.arange(80))[0][0]

    return run


def truncated(x, rest, key):
    return x.astype(jnp.int32), rest  # here


def kept(x, rest, key):
    whole = jnp.round(x + rest)
    return whole.astype(jnp.int32), x + rest - whole


def stochastic(x, rest, key):
    return jnp.floor(x + jax.random.uniform(key, x.shape)).astype(jnp.int32), rest


def test_steps_of_an_integer_state_that_a_cast_truncates():
    arguments = 4 * normal(14, 30), jax.random.key_data(jax.random.key(0))
    report = compare(trained(truncated), policy="fp32")(*arguments)
    assert report.faults[0].record.source == marked_line(truncated), str(report)
    assert "add the remainder of each rounding to the next update" in str(report)
    for step in (kept, stochastic):
        report = compare(trained(step), policy="fp32")(*arguments)
        assert report.faults == (), str(report)


# ---- Products that wrap around, and selects that discard them or not.


def power_of(base, dtype):
    def places(x):
        powers = jnp.asarray(base, dtype) ** jnp.arange(14, dtype=dtype)  # here
        return jnp.sum(x * powers.astype(jnp.float32), axis=1)

    return places


def test_an_integer_power_wraps_only_if_its_last_product_is_used():
    digits = normal(15, 9, 14)
    report = compare(power_of(4, jnp.int32), policy="fp32")(digits)
    assert report.faults == (), str(report)
    report = compare(power_of(4, jnp.int16), policy="fp32")(digits)
    assert [f.kind for f in report.faults[:1]] == ["integer"], str(report)


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("largest", [1000, 100_000])
def test_products_that_a_select_discards(largest, devices):
    def area(x):
        return jnp.where(x <= largest, x * x, 0).astype(jnp.float32)

    # Only the first device has numbers whose squares wrap around.
    x = np.arange(0, 100_000, 125, dtype=np.int32)[::-1]
    mesh = make_mesh((devices,), ("d",))
    spread = jax.shard_map(area, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    report = compare(spread, policy="fp32", target="trn2")(x)
    assert [f.kind for f in report.faults] == ["integer"] * (largest > 1000)


# ---- Small numbers that a difference or one maximum loses.


def noise_of(betas):
    kept = jnp.cumprod(1 - betas)
    variance = 1 - kept  # here
    return 1 / jnp.sqrt(jnp.maximum(variance, 1e-12))


def noise_by_logarithms(betas):
    return 1 / jnp.sqrt(-jnp.expm1(jnp.cumsum(jnp.log1p(-betas))))


def likelihoods(x):
    above = jax.nn.sigmoid(12 * x + 0.05)
    below = jax.nn.sigmoid(12 * x - 0.05)
    return jnp.log(jnp.maximum(above - below, 1e-18))  # here


def likelihoods_of_the_lower_tail(x):
    return likelihoods(-jnp.abs(x))


@pytest.mark.parametrize(
    ("faulty", "healthy", "x"),
    [
        (noise_of, noise_by_logarithms, np.geomspace(2e-8, 2e-2, 40, dtype="f")),
        (likelihoods, likelihoods_of_the_lower_tail, normal(17, 12, 16)),
    ],
    ids=["variance", "likelihoods"],
)
@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.vmap])
def test_a_difference_that_loses_small_numbers(faulty, healthy, x, around):
    """The norm of the difference hardly changes, but a root or logarithm does."""
    x = x[None] if around is jax.vmap else x
    for program, kinds in (faulty, ["cancellation"]), (healthy, []):
        report = compare(around(program), policy="fp32")(x)
        assert [f.kind for f in report.faults[:1]] == kinds, str(report)


def kernels(x, y):
    scores = -x
    weights = jnp.exp(scores - jnp.max(scores))  # here
    return (weights @ y) / jnp.sum(weights, 1, keepdims=True)


def kernels_of_rows(x, y):
    scores = -x
    weights = jnp.exp(scores - jnp.max(scores, 1, keepdims=True))
    return (weights @ y) / jnp.sum(weights, 1, keepdims=True)


def scanned_rows(program):
    return lambda x, y: jax.lax.scan(lambda _, x: (None, program(x, y)), None, x)[1]


@pytest.mark.parametrize(("policy", "farthest"), [("fp32", 200), ("fp8", 30)])
@pytest.mark.parametrize("around", [lambda f: f, scanned_rows])
def test_one_maximum_for_several_rows(policy, farthest, around):
    x = np.abs(normal(18, 8, 12)) + np.linspace(0, farthest, 8, dtype="f")[:, None]
    x = x if around is not scanned_rows else np.stack([x, x])
    arguments = x, 1 + np.abs(normal(19, 12, 4))
    for program, kinds in (kernels, ["underflow"]), (kernels_of_rows, []):
        report = compare(around(program), policy=policy)(*arguments)
        assert [f.kind for f in report.faults[:1]] == kinds, str(report)
        assert not kinds or report.faults[0].record.source == marked_line(program)
        assert not kinds or "maximum of each row" in str(report)


# ---- Whole numbers that a sort puts in order.


def grouped(groups, x):
    keys = groups.astype(jnp.float32) * 2**20 + jnp.arange(len(groups))  # here
    order = jnp.sort(keys).astype(jnp.int32) % 2**20
    return x[jnp.clip(order, 0, len(groups) - 1)]


def grouped_by_integers(groups, x):
    order = jnp.sort(groups * 2**20 + jnp.arange(len(groups))) % 2**20
    return x[jnp.clip(order, 0, len(groups) - 1)]


def test_keys_of_a_sort_that_float32_rounds():
    groups = np.random.default_rng(20).integers(0, 48, 96).astype(np.int32)
    arguments = groups, normal(21, 96, 4)
    assert_named("integer", grouped, grouped_by_integers, arguments, policy="fp32")


# ---- A scale from an earlier, larger loss, and the steps of weights in BF16.


def normalized_gradient(history, g):
    scale = jnp.max(history) / 448  # here
    codes = jnp.clip(g / scale, -448, 448).astype(jnp.float8_e4m3fn)
    g = codes.astype(jnp.float32) * scale
    return g / jnp.sqrt(jnp.sum(g * g))


def test_zeros_of_a_scale_before_a_norm():
    arguments = np.float32([3.1, 0.7]), 1e-6 * normal(22, 8, 8)
    found = compare(normalized_gradient, policy="fp32", target="trn3")(*arguments)
    lines = [f.record.source for f in found.faults]
    assert marked_line(normalized_gradient) in lines[:2], str(found)
    assert [f.kind for f in found.faults[:2]] == ["underflow"] * 2, str(found)


def trained_change(w, gradients):
    start = w.astype(jnp.bfloat16)

    def step(w, g):
        return (w - 1e-3 * g).astype(jnp.bfloat16), None  # here

    w, _ = jax.lax.scan(step, start, gradients)
    return w.astype(jnp.float32) - start.astype(jnp.float32)


def test_lost_steps_come_before_the_rounding_of_the_first_weights():
    w = np.sign(normal(23, 8, 8)) * (1 + np.abs(normal(24, 8, 8)))
    arguments = w.astype(np.float32), normal(25, 6, 8, 8)
    assert_named("absorption", trained_change, None, arguments, policy="fp32")


# ---- Integers that a cast rounds, before they are scaled and subtracted.


def steps_of_positions(fixes):
    radians = jnp.deg2rad(fixes.astype(jnp.float32) * 1e-7)  # here
    return radians[1:] - radians[:-1]


def steps_of_integers(fixes):
    return jnp.deg2rad((fixes[1:] - fixes[:-1]).astype(jnp.float32) * 1e-7)


def test_a_cast_of_large_integers_comes_before_the_difference():
    fixes = 473_712_345 + np.cumsum(np.random.default_rng(26).integers(4, 12, (60, 2)))
    arguments = [fixes.astype(np.int32)]
    assert_named(
        "integer", steps_of_positions, steps_of_integers, arguments, policy="fp32"
    )
