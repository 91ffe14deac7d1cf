"""What quantizers destroy, in several ways of writing one, and healthy ones beside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from neuronjax.api.compare import compare
from neuronjax.policy import Policy
from tests.arrays import normal
from tests.diagnostics.faults.marked import assert_named, marked_line

X = normal(64, 128)
E4M3 = jnp.float8_e4m3fn


def amax(x, axis=None):
    return jnp.abs(x).max(axis, keepdims=axis is not None)


def fp8(x, scale):
    low = jnp.clip(x / scale, -448, 448).astype(E4M3)
    return low.astype(jnp.float32) * scale


def in_blocks(x, share):
    blocks = x.reshape(-1, 32)
    return fp8(blocks, amax(blocks, -1) * share / 448).reshape(x.shape)


def powers_of_two(x, rounds):
    blocks = x.reshape(-1, 32)
    return fp8(blocks, jnp.exp2(rounds(jnp.log2(amax(blocks, -1) / 448))))


def of_floor(x):
    """As OCP MX 1.0 has it: the largest may be clipped by an eighth of itself."""
    blocks = x.reshape(-1, 32)
    return fp8(blocks, jnp.exp2(jnp.floor(jnp.log2(amax(blocks, -1))) - 8))


def int8(x, largest):
    step = largest / 127
    codes = jnp.clip(jnp.round(x / step), -127, 127).astype(jnp.int8)
    return codes.astype(jnp.float32) * step


def bounded_first(x, largest):
    step = largest / 127
    return jnp.round(jnp.minimum(jnp.maximum(x / step, -127), 127)) * step


def fake(x, largest, top=127):
    step = largest / top
    codes = jnp.clip(jnp.round(x / step), -top, top)
    return x + jax.lax.stop_gradient(codes * step - x)


def ternary(x):
    size = jnp.abs(x).mean()
    return jnp.clip(jnp.round(x / size), -1, 1) * size


def bounded_before_scale(x, largest):
    """Numbers of the hundreds, bounded by the range of the format and then scaled."""
    scale = 100 * largest / 448
    low = (jnp.clip(100 * x, -448, 448) / scale).astype(E4M3)
    return low.astype(jnp.float32) * scale


def two(x, share):
    """The first of two quantizers, both of which clip in one function of JAX."""
    return fp8(x, amax(x) * share / 448) + fp8(x * x, amax(x * x) / 448)


def saturating(x, share):
    scale = amax(x, -1) * share / 448
    return (x / scale).astype(E4M3).astype(jnp.float32) * scale


def cast_to_int8(x, largest):
    step = largest / 127
    return jnp.round(x / step).astype(jnp.int8).astype(jnp.float32) * step


def chosen(x, largest):
    """A bound that is written as a choice."""
    y = x * (448 / largest)
    y = jnp.where(jnp.abs(y) > 448, 448 * jnp.sign(y), y)
    return y.astype(E4M3).astype(jnp.float32) * (largest / 448)


def chosen_one_by_one(x, largest):
    """Two choices, that share a function of JAX, on either side of a rounding."""
    y = jnp.round(x * (127 / largest))
    y = jnp.where(y > 127, 127.0, y)
    return jnp.where(y < -127, -127.0, y) * (largest / 127)


def scales_twice(x, codes):
    """Blocks whose scales are made codes of 8 bits again, after codes of them."""
    blocks = x.reshape(-1, 32) * 10.0 ** jnp.linspace(-3.5, 0, x.size // 32)[:, None]
    largest = amax(blocks, -1)
    small, whole = codes(largest / largest.max()), jnp.round(blocks / largest * 127)
    return (whole.astype(jnp.int8).astype(jnp.float32) / 127) * (small * largest.max())


def by_255(x):
    return jnp.round(x * 255).astype(jnp.uint8).astype(jnp.float32) / 255


def by_logarithm(x):
    return jnp.exp2(jnp.round(jnp.log2(x) * 8).astype(jnp.int8).astype(jnp.float32) / 8)


def clipped_gradient(x):
    g = jnp.clip(x, -0.1, 0.1)
    return fp8(g, amax(g) / 448)


def sampled(x):
    """Pixels by computed places, those outside at the edge: no quantizer."""
    at = 8 * x
    left = jnp.clip(jnp.floor(at), 0, 15)
    table = jnp.sin(jnp.arange(17.0))
    share = jnp.clip(at - left, 0, 1)
    here, there = table[left.astype(int)], table[left.astype(int) + 1]
    return (1 - share) * here + share * there


def samples(x, largest):
    """Sound in 16 bits."""
    codes = jnp.clip(jnp.round(x / largest * 32767), -32768, 32767).astype(jnp.int16)
    return codes.astype(jnp.float32) / 32767 * largest


def with_zero_point(x, sign):
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    step = (high - low) / 15
    zero = jnp.round(sign * low / step)
    codes = jnp.clip(jnp.round(x / step) + zero, 0, 15).astype(jnp.int8)
    return (codes.astype(jnp.float32) - zero) * step


def bounded_by_its_range(x, largest):
    """Numbers bounded by the range that they are quantized over."""
    bounded = jnp.where(x > largest, largest, jnp.where(x < -largest, -largest, x))
    return jnp.round(bounded / (largest / 127)) * (largest / 127)


SATURATE = Policy(auto_cast="none", overflow="saturate")


def of_percentile(x):
    """The program cuts off what is above the 97th percentile, on purpose."""
    return int8(x, jnp.percentile(jnp.abs(x), 97.0))


def searched(x):
    """Most candidates clip; a comparison of their errors discards these."""
    bounds = amax(x) * jnp.linspace(0.1, 1.0, 10)
    errors = jax.vmap(lambda bound: jnp.mean((fake(x, bound) - x) ** 2))(bounds)
    return fake(x, bounds[jnp.argmin(errors)])


def stochastically_rounded(x):
    """Small numbers become zero most times, and keep their mean."""
    noise = jax.random.uniform(jax.random.key(0), x.shape)
    size = jnp.maximum(amax(x, -1), 1e-20)
    step = jnp.exp2(jnp.floor(jnp.log2(size))) / 4
    return jnp.floor(0.05 * x / step + noise) * step / 0.05


DESTROYS = {
    "blocks": lambda x: in_blocks(x, 0.75),
    "powers to nearest": lambda x: powers_of_two(x, jnp.round),
    "powers down": lambda x: powers_of_two(x, jnp.floor),
    "int8": lambda x: int8(x, amax(x) / 2),
    "int8 of many": lambda x: int8(x, jnp.percentile(jnp.abs(x), 95)),
    "bounds before rounding": lambda x: bounded_first(x, amax(x) / 2),
    "fake": lambda x: fake(x, amax(x) / 3),
    "fake int4": lambda x: fake(x, amax(x) / 5, 7),
    "bounds before scale": lambda x: bounded_before_scale(2 * x, 2 * amax(x)),
    "one of two": lambda x: two(x, 0.25),
    "saturating": lambda x: saturating(x, 0.75),
    "cast to int8": lambda x: cast_to_int8(x, amax(x) / 2),
    "chosen": lambda x: chosen(x, amax(x) / 4),
    "chosen one by one": lambda x: chosen_one_by_one(x, amax(x) / 3),
    "int16": lambda x: samples(x, 1.0),
    "zero point": lambda x: with_zero_point(x, 1),
    "range": lambda x: bounded_by_its_range(x, 2 * jnp.std(x)),
}

HEALTHY = {
    "blocks": lambda x: in_blocks(x, 1),
    "a margin": lambda x: in_blocks(x, 0.97),
    "tensor": lambda x: fp8(x, amax(x) / 448),
    "powers up": lambda x: powers_of_two(x, jnp.ceil),
    "OCP": of_floor,
    "int8 of rows": lambda x: int8(x, amax(x, -1)),
    "int8 of columns": lambda x: int8(x, amax(x, 0)),
    "int8 but for a few": lambda x: int8(x, jnp.percentile(jnp.abs(x), 99.9)),
    "fake": lambda x: fake(x, amax(x)),
    "fake int4": lambda x: fake(x, 2.5 * jnp.std(x), 7),
    "ternary": ternary,
    "hard tanh": lambda x: jnp.clip(x, -1, 1).astype(E4M3).astype(jnp.float32),
    "relu6": lambda x: int8(jnp.clip(3 * x, 0, 6), 6.0),
    "clipped gradient": clipped_gradient,
    "bounds before scale": lambda x: bounded_before_scale(x, amax(x)),
    "two": lambda x: two(x, 1),
    "sampled": sampled,
    "saturating": lambda x: saturating(x, 1),
    "cast to int8": lambda x: cast_to_int8(x, amax(x)),
    "chosen": lambda x: chosen(x, amax(x)),
    "chosen one by one": lambda x: chosen_one_by_one(x, amax(x)),
    "masked": lambda x: fp8(jnp.where(x > 1, -1e3, x), 1e3 / 448),
    "guarded": lambda x: fp8(x, jnp.where(amax(x, -1) == 0, 1.0, amax(x, -1)) / 448),
    "scales by logarithm": lambda x: scales_twice(x, by_logarithm),
    "int16": lambda x: samples(x, amax(x)),
    "zero point": lambda x: with_zero_point(x, -1),
    "range": lambda x: bounded_by_its_range(x, amax(x)),
    "percentile of heavy tails": lambda x: of_percentile(x**5),
    "searched": searched,
    "stochastic rounding": stochastically_rounded,
}


# Each scale does not fit; its line says so, and not the line of the bound or cast.


def scale_of_the_mean(x):
    step = jnp.abs(x).mean(-1, keepdims=True) / 127  # here
    codes = jnp.clip(jnp.round(x / step), -127, 127).astype(jnp.int8)
    return codes.astype(jnp.float32) * step


def scale_of_the_smallest_channel(x):
    largest = jnp.abs(x * jnp.linspace(0.2, 2, x.shape[1])).max(0)
    least = jnp.min(largest)  # here
    step = least / 127
    codes = jnp.clip(jnp.round(x / step), -127, 127)
    return codes * step


def exponent_without_headroom(x):
    largest = jnp.abs(x).max(-1, keepdims=True)
    exponent = jnp.floor(jnp.log2(largest)) - 10  # here
    scale = jnp.exp2(exponent)
    return jnp.clip(x / scale, -448, 448).astype(E4M3).astype(jnp.float32) * scale


def scale_beyond_int8(x):
    step = jnp.abs(x).max(-1, keepdims=True) / 160  # here
    codes = jnp.round(x / step).astype(jnp.int8)
    return codes.astype(jnp.float32) * step


def zero_point_without_minus(x):
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    step = (high - low) / 15
    zero = jnp.round(low / step)  # here
    codes = jnp.clip(jnp.round(x / step) + zero, 0, 15).astype(jnp.int8)
    return (codes.astype(jnp.float32) - zero) * step


def scale_of_the_first_in_a_loop(x):
    """A cache in FP8 that keeps the scale of its first row."""

    def step(scale, row):
        n, scale = scale
        scale = jnp.where(n == 0, jnp.abs(row).max() / 448, scale)  # here
        return (n + 1, scale), (row / scale).astype(E4M3).astype(jnp.float32) * scale

    return jax.lax.scan(step, (0, jnp.float32(1)), x)[1]


SCALES = {
    scale_of_the_mean: X,
    scale_of_the_smallest_channel: X,
    exponent_without_headroom: X,
    scale_beyond_int8: X,
    zero_point_without_minus: X,
    scale_of_the_first_in_a_loop: X[:12] * (1 + np.arange(12, dtype="f")[:, None]),
}


@pytest.mark.slow_except("scale_of_the_mean", "exponent_without_headroom")
@pytest.mark.parametrize("program", SCALES, ids=lambda program: program.__name__)
def test_a_scale_that_does_not_fit_comes_before_the_cast(program):
    found = compare(program, target="trn3", policy="bf16")(SCALES[program])
    [first, *_] = found.faults
    assert first.record.source == marked_line(program), str(found)
    words = "with this scale, the largest numbers (up to"
    assert first.evidence.startswith(words), str(found)


def policy_of(name):
    return SATURATE if name == "saturating" else "bf16"


@pytest.mark.slow_except(
    "blocks", "powers to nearest", "fake", "one of two", "chosen one by one"
)
@pytest.mark.parametrize("name", DESTROYS)
def test_what_costs_a_bit_is_a_fault(name):
    found = compare(DESTROYS[name], target="trn3", policy=policy_of(name))(X)
    assert {fault.kind for fault in found.faults} == {"saturation"}, str(found)


@pytest.mark.slow_except(
    "OCP", "sampled", "int8 but for a few", "hard tanh", "a margin", "two"
)
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_as_good_as_its_format_is_none(name):
    found = compare(HEALTHY[name], target="trn3", policy=policy_of(name))(X)
    assert found.faults == (), str(found)


@pytest.mark.parametrize(
    ("codes", "kinds"),
    [(jnp.round, ["underflow", "coarse"]), (jnp.ceil, ["coarse", "underflow"])],
)
def test_codes_of_one_outlier_say_nothing_of_the_others(codes, kinds):
    """No bound cuts anything off. The scale comes first if it makes the others zero,
    and after their codes if these are all the same."""

    def quantized(x):
        step = amax(x) / 127
        return jnp.clip(codes(x / step), -127, 127) * step

    found = compare(quantized, policy="bf16")(jnp.abs(X).at[0, 0].set(3000.0))
    assert [fault.kind for fault in found.faults] == kinds, str(found)


def test_codes_of_small_scales_are_zero_for_their_whole_block():
    """A quarter of the codes is nothing, which of other codes would be no fault."""
    found = compare(lambda x: scales_twice(x, by_255), policy="bf16")(X)
    assert [fault.kind for fault in found.faults] == ["coarse"], str(found)


def test_what_one_device_hardly_has_is_judged_by_all():
    """The gradient of one device is small beside the range that all of them share."""
    mesh = nj.make_mesh((4,), ("x",))

    def step(x):
        size = jax.lax.pmax(jnp.abs(x).max(), "x") / 31
        codes = jnp.clip(jnp.round(x / size), -31, 31).astype(jnp.int8)
        return jax.lax.psum(codes, "x").astype(jnp.float32) * size

    shared = jax.shard_map(step, mesh=mesh, in_specs=P("x"), out_specs=P())
    x = normal(4, 64) * np.array([[0.01], [1], [2], [3]], "f")
    found = compare(shared, target="trn2.48xlarge", policy="bf16")(x)
    assert found.faults == (), str(found)


def rounded_fixed_point(x, digits):
    codes = jnp.round(jnp.clip(x, -1, 1) * 2.0**digits).astype(jnp.int32)
    return (jnp.sum(codes, 0).astype(jnp.float32) * 2.0**-digits) / len(x)


def to_decimals(x, digits):
    return jnp.round(x, digits // 3)


def in_a_scan(f):
    return lambda x: jax.lax.scan(lambda _, x: (None, f(x)), None, x[None])[1]


@pytest.mark.parametrize("fixed", [rounded_fixed_point, to_decimals])
@pytest.mark.parametrize("around", [lambda f: f, jax.jit, in_a_scan])
def test_fixed_point_numbers_that_become_zero_are_a_fault(fixed, around):
    """With enough digits, the same sum is no fault."""
    x = 1e-4 * X
    coarse = compare(around(lambda x: fixed(x, 3)), policy="fp32")(x)
    assert [f.kind for f in coarse.faults] == ["coarse"], str(coarse)
    fine = compare(around(lambda x: fixed(x, 24)), policy="fp32")(x)
    assert fine.faults == (), str(fine)


def test_two_calls_of_one_quantizer_have_their_own_scales():
    """JAX calls one function for the clips of both; only the first scale is wrong."""

    def quantized(x, scale):
        return jnp.clip(jnp.round(x / scale), -127, 127).astype(jnp.int8)

    def cached(k, v):
        of_keys = jnp.abs(k).max() / 127  # here
        of_values = jnp.abs(v).max(1, keepdims=True) / 127
        keys = quantized(k, of_keys).astype(jnp.float32) * of_keys
        return keys, quantized(v, of_values).astype(jnp.float32) * of_values

    k = X * np.where(np.arange(128) == 3, np.float32(2000), np.float32(1))
    found = compare(cached, policy="bf16")(k, X)
    assert {f.record.source for f in found.faults[:1]} == {marked_line(cached)}


# -- companding, tables, and clips that cost little ------------------------------------


def compressed(y):
    return jnp.sign(y) * jnp.log1p(255 * jnp.abs(y)) / np.log(256)


def expanded(codes):
    return jnp.sign(codes) * jnp.expm1(jnp.abs(codes) * np.log(256)) / 255


def mu_law(x):
    y = jnp.clip(x, -1, 1)  # here
    return expanded(jnp.round(compressed(y) * 2047) / 2047)


def mu_law_of_peak(x):
    peak = jnp.max(jnp.abs(x))
    y = jnp.clip(x / peak, -1, 1)
    return expanded(jnp.round(compressed(y) * 2047) / 2047) * peak


def test_a_clip_before_companding():
    assert_named("saturation", mu_law, mu_law_of_peak, [2 * normal(512, seed=40)])


def of_table(x):
    """Look up GELU by codes of 8 bits; each entry serves several numbers."""
    scale = jnp.max(jnp.abs(x)) / 127
    entries = jax.nn.gelu(jnp.arange(-128, 128).astype(jnp.float32) * scale)
    of_entries = jnp.max(jnp.abs(entries)) / 127
    table = jnp.round(entries / of_entries).astype(jnp.int8)
    codes = jnp.round(x / scale).astype(jnp.int32) + 128
    return table[codes].astype(jnp.float32) * of_entries


def with_old_scale(x):
    """Quantize to 8 bits with a scale that cuts off one number by an eighth."""
    scale = 0.88 * jnp.max(jnp.abs(x)) / 127
    return jnp.clip(jnp.round(x / scale), -127, 127).astype(jnp.int8) * scale


@pytest.mark.parametrize("function", [of_table, with_old_scale])
def test_quantizers_that_lose_little(function):
    report = compare(function)(normal(32, 40, seed=41))
    assert report.faults == (), str(report)


def open_loop(x):
    def turn(carry, row):
        before, total = carry
        code = (256 * (row - before)).astype(jnp.float8_e4m3fn)  # here
        total = total + code.astype(jnp.float32) / 256
        return (row, total), total

    return jax.lax.scan(turn, (x[0], x[0]), x[1:])[1]


def closed_loop(x):
    def turn(total, row):
        code = (256 * (row - total)).astype(jnp.float8_e4m3fn)
        total = total + code.astype(jnp.float32) / 256
        return total, total

    return jax.lax.scan(turn, x[0], x[1:])[1]


def open_loop_by_cumsum(x):
    codes = jnp.diff(x, axis=0).astype(jnp.float8_e4m3fn)  # here
    return x[0] + jnp.cumsum(codes.astype(jnp.float32), axis=0)


@pytest.mark.parametrize("coded", [open_loop, open_loop_by_cumsum])
def test_codes_of_differences_whose_errors_add_up_are_at_fault(coded):
    """Each code is as exact as FP8 allows, and so is the sum."""
    x = 0.484 * np.arange(128.0)[:, None] + 1e-4 * normal(128, 8)
    x = (x / 256).astype(np.float32) if coded is open_loop else x.astype(np.float32)
    options = {"policy": "bf16", "target": "trn3"}
    assert_named("coarse", coded, closed_loop, (x,), **options)


def test_codes_in_open_loop_are_at_fault_under_vmap_on_a_mesh():
    """The devices run the sum often, but each has only the terms of its own loop."""
    x = (0.484 * np.arange(128.0)[:, None] + 1e-4 * normal(128, 8)) / 256
    options = {"policy": "bf16", "target": "trn3"}
    spread = jax.shard_map(
        jax.vmap(open_loop),
        mesh=nj.make_mesh((2,), ("i",)),
        in_specs=P("i"),
        out_specs=P("i"),
    )
    both = np.stack([x, x]).astype(np.float32)
    found = compare(spread, **options)(both).faults
    assert [f.record.source for f in found] == [marked_line(open_loop)]
    assert not compare(spread, **options)(both[:, :40]).faults
