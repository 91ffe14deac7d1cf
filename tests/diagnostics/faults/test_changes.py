"""Faults whose first line is the op that a programmer would change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.api.compare import compare
from tests.arrays import normal
from tests.diagnostics.faults.marked import assert_named, marked_line


def turns(quaternions):
    angles = 2 * jnp.arccos(jnp.clip(quaternions[:, 0], -1, 1))  # here
    axes = quaternions[:, 1:]
    return angles[:, None] * axes / jnp.linalg.norm(axes, axis=-1, keepdims=True)


def turns_by_arctan(quaternions):
    axes = quaternions[:, 1:]
    sines = jnp.linalg.norm(axes, axis=-1, keepdims=True)
    return 2 * jnp.arctan2(sines, quaternions[:, :1]) * axes / sines


def of_rotations(function):
    """Normalise quaternions, whose parts are all read, before `function`."""

    def rotated(raw):
        return function(raw / jnp.linalg.norm(raw, axis=-1, keepdims=True))

    return rotated


@pytest.mark.parametrize("wrap", [lambda f: f, jax.vmap, jax.jit])
def test_an_angle_is_at_fault_if_its_cosine_has_other_uses(wrap):
    raw = np.concatenate([np.ones((64, 1)), 3e-4 * normal(64, 3, seed=20)], -1)
    arguments = [raw.astype(np.float32)]
    if wrap is jax.vmap:
        arguments = [arguments[0][None]]
    report = compare(wrap(of_rotations(turns)))(*arguments)
    assert report.faults[0].record.source == marked_line(turns), str(report)
    assert "arctan2" in report.faults[0].remedy
    report = compare(wrap(of_rotations(turns_by_arctan)))(*arguments)
    assert report.faults == (), str(report)


def late_samples(start, pitch):
    n = start + jnp.arange(64, dtype=jnp.int32)
    cycles = n.astype(jnp.float32) * (pitch.astype(jnp.float32) / 48000)  # here
    return jnp.sin(2 * jnp.pi * (cycles % 1.0))


def late_samples_in_integers(start, pitch):
    n = start + jnp.arange(64, dtype=jnp.int32)
    cycles = ((n % 48000) * pitch % 48000).astype(jnp.float32) / 48000
    return jnp.sin(2 * jnp.pi * (cycles % 1.0))


def test_large_numbers_before_a_remainder():
    arguments = [np.int32(1_000_333_777), np.int32(331)]
    assert_named("coarse", late_samples, late_samples_in_integers, arguments)


def boxes(total):
    total = jnp.pad(total, ((1, 0), (1, 0)))
    inner = total[3:, 3:] - total[3:, :-3] - total[:-3, 3:] + total[:-3, :-3]
    return inner / 9 - jnp.mean(inner) / 9


def blurred(image):
    total = jnp.cumsum(jnp.cumsum(image, 0), 1)  # here
    return boxes(total)


def blurred_around_mean(image):
    total = jnp.cumsum(jnp.cumsum(image - jnp.mean(image), 0), 1)
    return boxes(total)


def test_windows_of_an_integral_image():
    image = (3000 + 0.6 * normal(96, 96, seed=21)).astype(np.float32)
    assert_named("stagnation", blurred, blurred_around_mean, [image])


def tile_rows(ids, columns, biases):
    rows = jnp.floor(ids.astype(jnp.float32) * (1.0 / columns))  # here
    return biases[rows.astype(jnp.int32)]


def tile_rows_in_integers(ids, columns, biases):
    return biases[ids // columns]


def test_a_floor_that_many_whole_numbers_miss_is_no_chance():
    arguments = [
        61 * np.arange(1, 97, dtype=np.int32),
        np.int32(61),
        normal(97, seed=22),
    ]
    assert_named("coarse", tile_rows, tile_rows_in_integers, arguments)


def weighted(gaps, values):
    def step(carry, event):
        time, total, squares = carry
        time = time + event[0]
        weight = jnp.exp(0.04 * time)  # here
        total, squares = total + weight, squares + weight * event[1] * event[1]
        return (time, total, squares), squares / total

    zero = jnp.float32(0)
    return jax.lax.scan(step, (zero, zero, zero), (gaps, values))[1]


def weighted_from_now(gaps, values):
    def step(carry, event):
        total, squares = carry
        factor = jnp.exp(-0.04 * event[0])
        total = factor * total + 1
        squares = factor * squares + event[1] * event[1]
        return (total, squares), squares / total

    zero = jnp.float32(0)
    return jax.lax.scan(step, (zero, zero), (gaps, values))[1]


def test_a_weight_that_overflows_after_its_product():
    gaps = np.full(300, 9, np.float32)
    values = (3 + np.abs(normal(300, seed=23))).astype(np.float32)
    assert_named("overflow", weighted, weighted_from_now, [gaps, values])


def phases(antenna, pixels):
    paths = jnp.sqrt(jnp.sum((pixels[:, None] - antenna) ** 2, -1))
    ranges = jnp.sqrt(jnp.sum(antenna**2, -1))
    apart = paths - ranges  # here
    return jnp.cos(1461.0 * apart)


def phases_by_products(antenna, pixels):
    paths = jnp.sqrt(jnp.sum((pixels[:, None] - antenna) ** 2, -1))
    ranges = jnp.sqrt(jnp.sum(antenna**2, -1))
    products = jnp.sum(pixels**2, -1)[:, None] - 2 * pixels @ antenna.T
    return jnp.cos(1461.0 * products / (paths + ranges))


def test_the_difference_before_a_phase():
    antenna = np.float32([5200, 0, 3100]) + 20 * normal(32, 3, seed=24)
    arguments = [antenna.astype(np.float32), normal(40, 3, seed=25)]
    assert_named("cancellation", phases, phases_by_products, arguments)


def projected_as_one(x, weights, adapter):
    both = x @ jnp.concatenate([weights, adapter], 1)  # here
    side = both[:, weights.shape[1] :]
    return side / jnp.sqrt(jnp.mean(side**2, -1, keepdims=True) + 1e-16)


def projected_apart(x, weights, adapter):
    side = x @ adapter
    return side / jnp.sqrt(jnp.mean(side**2, -1, keepdims=True) + 1e-16) + 0 * x[0, 0]


def test_a_slice_of_a_matmul_that_one_scale_makes_zero():
    small = (2e-6 * normal(64, 8, seed=28)).astype(np.float32)
    arguments = [normal(32, 64, seed=26), normal(64, 96, seed=27), small]
    assert_named(
        "underflow", projected_as_one, projected_apart, arguments, policy="fp8"
    )


def log_power(frames, basis):
    spectrum = frames.astype(jnp.float16) @ basis.astype(jnp.float16)
    power = spectrum * spectrum  # here
    return jnp.log(power.astype(jnp.float32) + 1e-12)


def log_power_in_fp32(frames, basis):
    spectrum = frames.astype(jnp.float16) @ basis.astype(jnp.float16)
    power = spectrum.astype(jnp.float32) ** 2
    return jnp.log(power + 1e-12)


def test_zeros_come_before_a_rounding_that_loses_few_elements():
    basis = np.where(np.arange(32) < 3, 1.0, 1e-4) * normal(64, 32, seed=30) / 8
    arguments = [normal(40, 64, seed=29), basis.astype(np.float32)]
    report = compare(log_power)(*arguments)
    assert report.faults[0].kind == "underflow", str(report)
    assert report.faults[0].record.source == marked_line(log_power)


def banks(frames, basis, weights):
    parts = frames.astype(jnp.float16)
    real, imaginary = (parts @ b.astype(jnp.float16) for b in basis)
    power = real**2 + imaginary**2
    return jnp.log(power.astype(jnp.float32) @ weights + 1e-12)


def test_no_logarithm_of_1_plus_x_is_advised_far_from_1():
    decay = np.where(np.arange(32) < 3, 1.0, 1e-4) / 8
    basis = (decay * normal(2, 64, 32, seed=31)).astype(np.float32)
    weights = np.abs(normal(32, 8, seed=32))
    weights[:3] = weights[:3] * (np.arange(8) == 0)
    report = compare(banks)(normal(40, 64, seed=33), basis, weights)
    assert report.verdict is not None
    assert report.verdict.wrong
    assert "log1p(x)" not in str(report)
    assert "distance of these numbers from 1" not in str(report)
