"""The line that causes an error comes before those at which it shows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from neuronjax import make_mesh
from neuronjax.api.compare import compare
from tests.diagnostics.faults.marked import assert_named, marked_line

F16, F32 = jnp.float16, jnp.float32


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# ---- The scale of a loss, which only its gradient shows.


def half_loss(w, x, y):
    prediction = (x.astype(F16) @ w.astype(F16)).astype(F32)
    return jnp.mean((prediction - y) ** 2)


def large_scale(w, x, y):
    def loss(w):
        return half_loss(w, x, y) * 65536.0  # here

    return jax.grad(loss)(w) / 65536.0


def small_scale(w, x, y):
    return jax.grad(lambda w: half_loss(w, x, y) * 8.0)(w) / 8.0


def test_the_scale_of_a_loss():
    arguments = [0.3 * normal(0, 6, 2), normal(1, 32, 6), 20 + normal(2, 32, 2)]
    assert_named("overflow", large_scale, small_scale, arguments, policy="fp32")


# ---- The backward rule of a custom_vjp.


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def dense(x, cast, w):
    return x @ w


def dense_backward(cast, saved, g):
    x, w = saved
    g = cast(g)
    return g @ w.T, x.T @ g


dense.defvjp(lambda x, cast, w: (x @ w, (x, w)), dense_backward)


def cast_unscaled(x, w):
    def cast(g):
        return g.astype(jnp.float8_e4m3).astype(F32)  # here

    return jax.grad(lambda x, w: jnp.mean(dense(x, cast, w)), (0, 1))(x, w)


def cast_scaled(x, w):
    def cast(g):
        scale = 240 / jnp.max(jnp.abs(g))
        return (g * scale).astype(jnp.float8_e4m3).astype(F32) / scale

    return jax.grad(lambda x, w: jnp.mean(dense(x, cast, w)), (0, 1))(x, w)


def test_a_line_of_a_backward_rule():
    arguments = [normal(3, 64, 8), normal(4, 8, 16)]
    assert_named("underflow", cast_unscaled, cast_scaled, arguments, policy="fp32")


def test_a_line_of_a_backward_rule_in_a_scan():
    def cast(g):
        return g.astype(jnp.float8_e4m3).astype(F32)  # here

    def loss(w, x):
        x, _ = jax.lax.scan(lambda x, _: (dense(x, cast, w), None), x, length=2)
        return jnp.mean(x)

    arguments = [0.3 * normal(4, 8, 8), normal(3, 64, 8)]
    report = compare(jax.grad(loss), policy="fp32")(*arguments)
    assert report.faults[0].record.source == marked_line(cast)


# ---- Running sums and clocks.


def window_of_sums(x):
    sums = jnp.cumsum(x)  # here
    mean = (sums[8:] - sums[:-8]) / 8
    return x[8:] - mean


def window(x):
    mean = sum(x[n : n + len(x) - 8] for n in range(1, 9)) / 8
    return x[8:] - mean


def test_a_window_of_running_sums():
    x = 900 + 0.2 * normal(5, 3000)
    assert_named("stagnation", window_of_sums, window, [x], policy="fp32")


def restarted(total, losses):
    def step(total, loss):
        before = total
        total = total + loss  # here
        return total, jnp.exp((total - before) / 64)

    return jax.lax.scan(step, total, losses)[1]


def from_zero(total, losses):
    return jax.lax.scan(lambda t, x: (t + x, jnp.exp(x / 64)), total, losses)[1]


def test_a_sum_that_loses_its_addends_before_a_difference():
    arguments = [np.float32(3e9), 200 + 20 * normal(6, 24)]
    assert_named("absorption", restarted, from_zero, arguments, policy="fp32")


def clock(start, event):
    def step(time, _):
        time = time + 0.002  # here
        return time, jnp.exp(-(((time - event) / 0.3) ** 2))

    return jax.lax.scan(step, start, length=400)[1]


def lead(start, event):
    def step(k, _):
        return k + 1, jnp.exp(-(((start - event + k * 0.002) / 0.3) ** 2))

    return jax.lax.scan(step, jnp.float32(1), length=400)[1]


def test_a_clock_before_an_exponential():
    arguments = [np.float32(65536), np.float32(65536.5)]
    assert_named("absorption", clock, lead, arguments, policy="fp32")


def cycles(n, hertz):
    seconds = n.astype(F32) / 48000  # here
    turns = seconds * hertz
    return jnp.sin(2 * jnp.pi * (turns - jnp.floor(turns)))


def ticks(n, hertz):
    return jnp.sin(2 * jnp.pi * (((n % 48000) * hertz) % 48000).astype(F32) / 48000)


def test_the_first_of_several_large_numbers_before_a_phase():
    n = np.arange(400_000_001, 400_000_101, dtype=np.int32)
    assert_named("integer", cycles, ticks, [n, np.int32(331)], policy="fp32")


# ---- Integers.


def group_sums(packed, x):
    low = (packed << 4) >> 4
    codes = jnp.stack([low, packed >> 4])
    return jnp.einsum("k,gk->g", x, codes.astype(jnp.int16)).astype(F32)  # here


def wide_sums(packed, x):
    low = (packed << 4) >> 4
    codes = jnp.stack([low, packed >> 4])
    x = x.astype(jnp.int32)
    return jnp.einsum("k,gk->g", x, codes.astype(jnp.int32)).astype(F32)


def test_shifts_that_unpack_integers_are_no_fault():
    packed = np.full(128, 0x66, np.int8)
    x = np.full(128, 100, np.int16)
    assert_named("integer", group_sums, wide_sums, [packed, x], policy="fp32")


def reduced(divisor):
    mesh = make_mesh((8,), ("d",))

    def local(x):
        scale = 2.0**30 / jax.lax.pmax(jnp.max(jnp.abs(x)), "d") / divisor
        codes = jnp.round(x * scale).astype(jnp.int32)
        return jax.lax.psum(codes, "d").astype(F32) / scale

    return jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P())


def test_a_sum_over_devices_that_saturates():
    """The chip adds integers in FP32, so that a sum ends at the largest integer."""
    x = 1 + 0.1 * normal(7, 8, 4)
    options = {"target": "trn2.48xlarge", "policy": "fp32"}
    assert compare(reduced(8.0), **options)(x).faults == ()
    fault = compare(reduced(1.0), **options)(x).faults[0]
    assert (fault.kind, fault.record.op) == ("integer", "stablehlo.all_reduce")
    assert "4 sums or products are beyond the range of int32" in fault.evidence


def bus_of_16_bits(tracks, gain):
    def add(n, bus):
        total = jnp.round(bus.astype(F32) + tracks[n])
        return jnp.clip(total, -32768, 32767).astype(jnp.int16)  # here

    bus = jax.lax.fori_loop(0, 8, add, jnp.zeros(64, jnp.int16))
    return bus.astype(F32) * gain


def quiet_bus(tracks, gain):
    return bus_of_16_bits(tracks * gain, 1.0)


def test_a_bus_that_clips_its_sum():
    tracks = 20000 * np.cos(0.01 * np.arange(64)) + 100 * normal(8, 8, 64)
    arguments = [tracks.astype(np.float32), np.float32(0.125)]
    assert_named("saturation", bus_of_16_bits, quiet_bus, arguments, policy="fp32")


# ---- Zeros, states and constants.


def forward(p, first):
    def step(alpha, row):
        moved = alpha + jnp.concatenate([jnp.zeros(1), alpha[:-1]])
        alpha = moved * row  # here
        return alpha, None

    return jnp.log(jax.lax.scan(step, first, p)[0].sum())


def normalized(p, first):
    def step(carry, row):
        alpha, total = carry
        alpha = (alpha + jnp.concatenate([jnp.zeros(1), alpha[:-1]])) * row
        return (alpha / alpha.sum(), total + jnp.log(alpha.sum())), None

    (alpha, total), _ = jax.lax.scan(step, (first / first.sum(), 0.0), p)
    return total + jnp.log(first.sum() * alpha.sum())


def test_zeros_are_made_by_the_product_and_not_by_the_sum_that_reads_them():
    p = (0.05 + 0.02 * np.random.default_rng(9).uniform(size=(60, 6))).astype(
        np.float32
    )
    first = np.full(6, 0.1, np.float32)
    assert_named("underflow", forward, normalized, [p, first], policy="fp32")


def diffuse(z):
    def step(carry, z):
        m, p = carry
        p = p + 1e-5
        gain = p / (p + 0.04)
        p = p - gain * p  # here
        return (m + gain * (z - m), p), (m, p)

    return jax.lax.scan(step, (0.0, 1e7), z)[1]


def stable(z):
    def step(carry, z):
        m, p = carry
        p = p + 1e-5
        gain = p / (p + 0.04)
        return (m + gain * (z - m), gain * 0.04), (m, gain * 0.04)

    return jax.lax.scan(step, (0.0, 1e7), z)[1]


def test_a_small_addend_that_does_not_matter_is_no_cause():
    arguments = [3 + 0.2 * normal(10, 40)]
    assert_named("cancellation", diffuse, stable, arguments, policy="fp32")


def moved(w, x):
    """The distance from an argument is no state whose step could be judged instead."""
    for _ in range(3):
        w = w - 1e-3 * (x.T @ (x @ w))
    return w


def test_a_distance_from_an_argument_is_judged_itself():
    def distance(w, x):
        new = moved(w, x.astype(F16).astype(F32) * 1e-6)
        return {"w": (new.astype(F16) - w.astype(F16)).astype(F32)}

    w = {"w": normal(11, 8, 4)}
    report = compare(lambda p, x: distance(p["w"], x), policy="fp32")(
        w, normal(12, 16, 8)
    )
    assert len(report.verdict.wrong) == 1


def amplitude(x):
    top = jnp.sin(x) - x * jnp.cos(x)  # here
    return 3.0 * top / (x * x * x)


def test_a_quotient_only_weighs_wrong_elements():
    x = np.geomspace(1e-4, 5, 64).astype(np.float32)
    assert_named("cancellation", amplitude, None, [x], policy="fp32")


def masked(x, hidden):
    x = jnp.where(x > 0, x.astype(F16), jnp.asarray(-1e9, F16))  # here
    best = x.max(-1, keepdims=True)
    weights = jnp.exp((x - best).astype(F32))
    return jnp.where(hidden[:, None], 0.0, weights / weights.sum(-1, keepdims=True))


def test_a_constant_beyond_half_in_a_cached_function_of_jax():
    x = np.abs(normal(13, 4, 8))
    x[1] = -1
    report = compare(masked, policy="fp32")(x, np.zeros(4, bool))
    fault = report.faults[0]
    assert (fault.kind, fault.record.source) == ("overflow", marked_line(masked))


def decayed(gates, x):
    """A state that is wholly forgotten between chunks leaves a right result."""

    def step(state, chunk):
        gate, x = chunk
        return jnp.exp(gate) * state + x, state

    return jax.lax.scan(step, jnp.zeros(4), (gates, x))


def test_a_state_that_is_wholly_forgotten_is_no_fault():
    gates = np.full((5, 4), -120, np.float32)
    assert compare(decayed, policy="fp32")(gates, normal(14, 5, 4)).faults == ()


# ---- Matmuls that only pick numbers, or whose scale fits only a mask's constant.


def picked(ids, times):
    chosen = jax.nn.one_hot(ids, times.size) @ times  # here
    return jnp.exp(chosen[:, None] - chosen[None, :])


def taken(ids, times):
    chosen = jnp.take(times, ids)
    return jnp.exp(chosen[:, None] - chosen[None, :])


def test_a_matmul_that_picks_numbers():
    arguments = [np.arange(9, dtype=np.int32), 3000 + np.sort(normal(6, 20))]
    assert_named("coarse", picked, taken, arguments, policy="bf16")


def masked_by_a_large_number(x, weights, mask):
    x = jnp.where(mask[:, None], x, -1e9)  # here
    return weights @ x


def masked_by_zero(x, weights, mask):
    x = jnp.where(mask[:, None], x, 0.0)
    return weights @ x


def test_the_constant_of_a_mask_before_a_scaled_matmul():
    mask = np.arange(16) < 12
    arguments = [1 + normal(7, 16, 8) ** 2, np.where(mask, normal(8, 4, 16), 0), mask]
    arguments[1] = arguments[1].astype(np.float32)
    assert_named(
        "underflow", masked_by_a_large_number, masked_by_zero, arguments, policy="fp8"
    )


# ---- Large errors before small ones, and scales that are constants.


def weights_in_8_bits(keys, values, query):
    weights = jax.nn.softmax(keys @ query)
    low = weights.astype(jnp.float8_e4m3)  # here
    return low.astype(F32) @ values


def weights_times_4096(keys, values, query):
    weights = jax.nn.softmax(keys @ query)
    low = (weights * 4096).astype(jnp.float8_e4m3)
    return low.astype(F32) @ values / 4096


def test_a_large_error_comes_before_an_earlier_small_one():
    keys, values = 0.3 * normal(9, 2048, 16), normal(10, 2048, 8) + 0.5
    arguments = [keys, values, normal(11, 16)]
    named = weights_in_8_bits, weights_times_4096
    assert_named("underflow", *named, arguments, policy="bf16")


def cached(x, scale):
    def step(cache, given):
        n, row = given
        codes = jnp.clip(jnp.round(row / scale), -127, 127).astype(jnp.int8)
        cache = jax.lax.dynamic_update_slice(cache, codes[None], (n, 0))
        return cache, jnp.sum(cache.astype(F32) * scale, axis=0)

    rows = jnp.arange(len(x)), x
    return jax.lax.scan(step, jnp.zeros(x.shape, jnp.int8), rows)[1]


def constant_scale(x):
    scale = jnp.full(x.shape[-1], 1 / 127)  # here
    return cached(x, scale)


def scale_of_numbers(x):
    return cached(x, jnp.max(jnp.abs(x), axis=0) / 127)


def test_a_constant_scale_in_a_scan():
    arguments = [3 * normal(12, 12, 8)]
    named = constant_scale, scale_of_numbers
    assert_named("saturation", *named, arguments, policy="fp32")


# ---- Integer shifts.


def shifted_in_the_sum(x, taps):
    def step(total, tap):
        return total + ((x * tap) >> 15), None  # here

    total, _ = jax.lax.scan(step, jnp.zeros_like(x), taps)
    return total.astype(F32) / 64


def shifted_after_the_sum(x, taps):
    total, _ = jax.lax.scan(lambda t, tap: (t + x * tap, None), jnp.zeros_like(x), taps)
    return (total >> 15).astype(F32) / 64


def test_a_shift_that_drops_digits_of_a_sum():
    draw = np.random.default_rng(13)
    x, taps = draw.integers(-900, 900, 64), draw.integers(1, 60, 48)
    arguments = [x.astype(np.int32), taps.astype(np.int32)]
    named = shifted_in_the_sum, shifted_after_the_sum
    assert_named("integer", *named, arguments, policy="fp32")


def test_a_shift_that_unpacks_codes():
    def unpacked(codes, x):
        low, high = (codes << 4) >> 4, codes >> 4
        return jnp.stack([low, high], 1).reshape(-1, 8).astype(F32) @ x

    codes = np.random.default_rng(14).integers(-128, 128, (16, 8)).astype(np.int8)
    report = compare(unpacked, policy="fp32")(codes, normal(15, 8))
    assert report.faults == (), str(report)


# ---- Causes on the line before an op that cannot be written in another way.


def centred_after(x, w):
    z = x @ w  # here
    return z - jnp.mean(z, 0)


def centred_before(x, w):
    x = x - jnp.mean(x, 0)
    return x @ w


def test_the_cast_of_a_matmul_before_a_linear_op():
    x = 300 + normal(16, 40, 6)
    arguments = [x, normal(17, 6, 4)]
    assert_named("coarse", centred_after, centred_before, arguments, policy="bf16")


def angle_of_cosine(x, y):
    cosine = jnp.sum(x * y, -1)  # here
    return jnp.arccos(jnp.clip(cosine, -1, 1))


def angle_of_chord(x, y):
    chord = jnp.sqrt(jnp.sum((x - y) ** 2, -1))
    return 2 * jnp.arcsin(chord / 2)


def test_the_cosine_of_a_small_angle():
    x = normal(18, 64, 3).astype(np.float64)
    y = x + 1e-4 * normal(19, 64, 3)
    x, y = (v / np.linalg.norm(v, axis=-1, keepdims=True) for v in (x, y))
    arguments = [x.astype(np.float32), y.astype(np.float32)]
    report = compare(angle_of_cosine, policy="fp32")(*arguments)
    assert report.faults[0].record.source == marked_line(angle_of_cosine), str(report)
    assert [f.kind for f in report.faults] == ["coarse", "singular"]
    assert "by jnp.arctan2 of its sine and cosine" in report.faults[0].remedy


def guarded_in_half(m, v):
    root = jnp.sqrt(v).astype(F16)
    root = root + 1e-8  # here
    return m / root.astype(F32)


def guarded(m, v):
    return m / (jnp.sqrt(v) + 1e-8)


def test_the_line_of_an_epsilon_that_became_zero():
    v = np.where(np.arange(12) % 3 == 0, 0, normal(20, 12) ** 2).astype(np.float32)
    arguments = [np.sqrt(v), v]
    assert_named("singular", guarded_in_half, guarded, arguments, policy="fp32")


def differences_in_codes(x):
    step = 1.05 * jnp.max(jnp.abs(jnp.diff(x))) / 127

    def code(before, x):
        before = before + step * jnp.clip(jnp.round((x - before) / step), -127, 127)
        return before, before

    return jax.lax.scan(code, x[0], x)[1]


def test_small_differences_that_become_zero_now_and_then_are_no_fault():
    x = 0.2 * np.sin(np.arange(96) / 15) + 0.02 * normal(21, 96)
    x[40:] += 1.5 * np.exp(-np.arange(56) / 6)
    report = compare(differences_in_codes, policy="fp32")(x.astype(np.float32))
    assert report.faults == (), str(report)
