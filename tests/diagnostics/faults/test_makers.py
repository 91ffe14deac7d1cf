"""The op that makes an error comes before the one that amplifies it.

Each program is small and has one way to lose digits: whole numbers in floats, integers
beyond their type, a large sum of small numbers, an angle of many turns, a step that was
wrong before it was taken.
"""

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

# Each is (kind, policy, faulty, healthy, arguments); the faulty line says so.


def same_account(owners, account):
    owners, account = (x.astype(jnp.float32) for x in (owners, account))  # here
    return jnp.where(owners == account, 1.0, 0.0).sum()


def same_account_whole(owners, account):
    return jnp.where(owners == account, 1.0, 0.0).sum()


def packed_key(bucket, item):
    key = bucket.astype(jnp.float32) * 8388608.0 + item  # here
    return key - jnp.floor(key / 8388608.0) * 8388608.0


def two_keys(bucket, item):
    return item + 0.0 * bucket.astype(jnp.float32)


def elapsed(ticks):
    seconds = ticks.astype(jnp.float32) * jnp.float32(1e-3)  # here
    return jnp.diff(seconds)


def elapsed_whole(ticks):
    return jnp.diff(ticks).astype(jnp.float32) * jnp.float32(1e-3)


def rows_read(total, sizes):
    def add(count, size):
        count = count + size.astype(jnp.float32)  # here
        return count, None

    count, _ = jax.lax.scan(add, total.astype(jnp.float32), sizes)
    return count.astype(jnp.int32) - total


def rows_read_whole(total, sizes):
    return jax.lax.scan(lambda n, size: (n + size, None), total, sizes)[0] - total


def fixed_point(x):
    whole = jnp.round(x * 65536.0).astype(jnp.int32)  # here
    return whole.astype(jnp.float32) / 65536.0


def fixed_point_in_parts(x):
    low = jnp.round((x - jnp.floor(x)) * 65536.0).astype(jnp.int32)
    return jnp.floor(x) + low.astype(jnp.float32) / 65536.0


def short_index(rows):
    near = rows.astype(jnp.int16)  # here
    return near.astype(jnp.float32) * 0.5


def long_index(rows):
    return rows.astype(jnp.float32) * 0.5


def votes(choice):
    count = jnp.zeros(4, jnp.int8).at[choice].add(jnp.int8(1))  # here
    return count.astype(jnp.float32) / choice.size


def votes_in_words(choice):
    return jnp.zeros(4, jnp.int32).at[choice].add(1).astype(jnp.float32) / choice.size


def orders(n):
    ways = jnp.cumprod(n)  # here
    return jnp.log(jnp.abs(ways).astype(jnp.float32))


def orders_in_logarithms(n):
    return jnp.cumsum(jnp.log(n.astype(jnp.float32)))


def window_sums(x):
    ends = jnp.cumsum(x)  # here
    return ends[8:] - ends[:-8]


def window_sums_directly(x):
    return sum(x[i : i + x.size - 8] for i in range(1, 9))


def tone(samples):
    turns = 0.7310585 * samples.astype(jnp.float32)  # here
    return jnp.sin(2 * jnp.pi * (turns - jnp.floor(turns)))


def tone_of_few_turns(samples):
    return jnp.sin(2 * jnp.pi * 0.7310585 * (samples % 4).astype(jnp.float32))


def sorted_places(edges, x):
    near = edges.astype(jnp.bfloat16).astype(jnp.float32)  # here
    return jnp.searchsorted(near, x).astype(jnp.float32)


def sorted_places_in_fp32(edges, x):
    return jnp.searchsorted(edges, x).astype(jnp.float32)


def deep_sum(x, parts):
    def add(x, part):
        return x + (0.1 * jnp.tanh(part)).astype(jnp.bfloat16), None  # here

    out, _ = jax.lax.scan(add, x.astype(jnp.bfloat16), parts)
    return out.astype(jnp.float32) - x


def deep_sum_in_fp32(x, parts):
    def add(x, part):
        return x + 0.1 * jnp.tanh(part), None

    return jax.lax.scan(add, x, parts)[0] - x


def decayed(w, rate):
    rest = 1 - rate.astype(jnp.bfloat16).astype(jnp.float32)  # here
    return w - 0.1 * rest * w


def decayed_in_fp32(w, rate):
    return w - 0.1 * (1 - rate) * w


def squared_length(x):
    length = jnp.vdot(x, x)  # here
    return length * 1e24 * 1e24


def squared_length_in_units(x):
    x = x * 1e24
    return jnp.vdot(x, x)


def late_tone(sample, pitch):
    phase = sample.astype(jnp.float32) * (pitch / 48000.0)  # here
    return jnp.sin(2 * jnp.pi * (phase - jnp.floor(phase)))


def late_tone_of_seconds(sample, pitch):
    return late_tone(sample % 48000, pitch)


def short_average(gradients):
    def turn(m, g):
        m = (0.99 * m.astype(jnp.float32) + 0.01 * g).astype(jnp.float16)  # here
        return m, None

    start = jnp.zeros(gradients.shape[1:], jnp.float16)
    return jax.lax.scan(turn, start, gradients)[0].astype(jnp.float32)


def long_average(gradients):
    start = jnp.zeros(gradients.shape[1:])
    return jax.lax.scan(lambda m, g: (0.99 * m + 0.01 * g, None), start, gradients)[0]


NUMBERS = np.arange(2**24, 2**24 + 64, dtype=np.int32)
DAY = np.cumsum(np.arange(1, 65)).astype(np.int32) + 80_000_001

CASES = [
    ("integer", same_account, same_account_whole, [NUMBERS, NUMBERS[7]]),
    (
        "integer",
        packed_key,
        two_keys,
        [np.arange(90, 98, dtype=np.int32), np.arange(101, 109, dtype=np.float32)],
    ),
    ("integer", elapsed, elapsed_whole, [DAY]),
    (
        "absorption",
        rows_read,
        rows_read_whole,
        [np.int32(2**28), np.arange(1, 65, dtype=np.int32) % 7 + 1],
    ),
    (
        "integer",
        fixed_point,
        fixed_point_in_parts,
        [np.linspace(100, 70_000, 32, dtype=np.float32)],
    ),
    ("integer", short_index, long_index, [np.arange(0, 80_000, 999, dtype=np.int32)]),
    (
        "integer",
        votes,
        votes_in_words,
        [(np.arange(700) % 4).astype(np.int32)],
    ),
    (
        "integer",
        orders,
        orders_in_logarithms,
        [np.arange(1, 19, dtype=np.int32)],
    ),
    (
        "stagnation",
        window_sums,
        window_sums_directly,
        [np.abs(normal(20_000, seed=1)) + 3000 * (np.arange(20_000) < 9_000)],
    ),
    (
        "coarse",
        tone,
        tone_of_few_turns,
        [np.arange(8_000_000, 8_000_033, dtype=np.int32)],
    ),
    (
        "coarse",
        sorted_places,
        sorted_places_in_fp32,
        [np.linspace(200, 202, 33, dtype=np.float32), 200 + np.abs(normal(64))],
    ),
    (
        "absorption",
        deep_sum,
        deep_sum_in_fp32,
        [normal(64, scale=20.0), normal(12, 64, seed=1)],
    ),
    ("coarse", decayed, decayed_in_fp32, [normal(8), np.float32(0.9991)]),
    ("underflow", squared_length, squared_length_in_units, [normal(48, scale=1e-24)]),
    (
        "coarse",
        late_tone,
        late_tone_of_seconds,
        [np.arange(4_100_000, 4_100_064, dtype=np.int32), np.float32(3001)],
    ),
    ("underflow", short_average, long_average, [normal(8, 16, scale=1e-8)]),
]
NAMES = [case[1].__name__ for case in CASES]


@pytest.mark.slow_except("packed_key", "decayed", "late_tone")
@pytest.mark.parametrize(("kind", "faulty", "healthy", "arguments"), CASES, ids=NAMES)
def test_the_maker_comes_first_and_its_twin_is_left_alone(
    kind, faulty, healthy, arguments
):
    assert_named(kind, faulty, healthy, arguments, policy="fp32")


@pytest.mark.slow
def test_the_amplifier_comes_second():
    first, second, *_ = compare(elapsed, policy="fp32")(DAY).faults
    assert (first.role, first.record.short_op) == ("makes", "convert")
    assert (second.role, second.kind) == ("amplifies", "cancellation")
    assert first.shows is not None
    assert first.shows.number == second.record.number


def test_whole_numbers_that_fit_are_no_fault():
    def mean_of_counts(x):
        return x.astype(jnp.bfloat16).astype(jnp.float32).mean()

    assert compare(mean_of_counts)(np.arange(200, dtype=np.int32)).faults == ()


def test_off_by_one_is_a_tie_and_no_fault():
    def codes(x):
        return jnp.round(x * 40).astype(jnp.int32)

    assert compare(codes, policy="bf16")(normal(512)).faults == ()


def test_words_are_meant_to_wrap_around():
    def low_bytes(x):
        return (x.astype(jnp.uint32) * jnp.uint32(2654435769)).astype(jnp.int8)

    assert compare(low_bytes)(np.arange(-9, 99, dtype=np.int32)).faults == ()


@pytest.mark.slow
def test_random_numbers_are_no_fault():
    def draws(seed):
        keys = jax.random.split(jax.random.key(seed), 4)
        return (
            jax.random.normal(keys[0], (32,)),
            jax.random.randint(keys[1], (32,), 0, 10),
            jax.random.permutation(keys[2], 32),
            jax.random.bits(keys[3], (32,), jnp.uint8),
        )

    assert compare(draws, policy="bf16")(np.int32(7)).faults == ()


def test_an_overflow_in_a_cast_of_the_policy():
    def layer(x, w):
        return jax.nn.relu(x) @ w

    policy = Policy(auto_cast="matmult", auto_cast_type="fp8_e4m3", scaling="none")
    report = compare(layer, policy=policy)(normal(8, 16) * 300, normal(16, 4))
    fault, *_ = report.faults
    assert (fault.kind, fault.record.short_op) == ("overflow", "dot_general")
    assert "float8_e4m3 ends at 240" in fault.evidence


def test_nan_of_finite_numbers_is_told_from_inf():
    def share(part, whole):
        return part / whole

    zeros, ones = np.zeros(2, np.float32), np.ones(2, np.float32)
    assert compare(share)(zeros, zeros).faults[0].kind == "non-finite"
    assert compare(share)(ones, zeros).faults[0].kind == "singular"
    [both] = compare(share)(np.float32([0, 1, 1]), np.zeros(3, np.float32)).faults
    assert both.kind == "non-finite"
    assert "1 of 3 numbers are NaN and 2 are Inf, though" in both.evidence


def entropy_of_masked(x, mask):
    chance = jax.nn.softmax(jnp.where(mask, x, -jnp.inf))
    return -jnp.sum(chance * jnp.log(chance), axis=-1)  # here


def exponents_of_blocks(x):
    largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    exponent = jnp.floor(jnp.log2(largest))  # here
    return x / jnp.exp2(exponent)


def test_who_made_an_infinity_made_the_zero_that_came_of_it():
    """The logarithm of a block of zeros, and not the quotient that shows it."""
    report = compare(exponents_of_blocks)(normal(4, 8) * np.float32([[1], [0]] * 2))
    lines = [fault.record.source for fault in report.faults]
    assert lines[0] == marked_line(exponents_of_blocks), str(report)
    assert report.faults[0].kind == "singular"


def test_a_zero_of_minus_infinity_is_made_by_no_op_before_it():
    """The difference beside a maximum may round to zero, of which nothing comes."""
    x = normal(24, 6, scale=0.1) + np.float32(1e3)
    report = compare(entropy_of_masked, policy="fp32")(x, np.arange(6) > 1)
    assert report.faults[0].record.source == marked_line(entropy_of_masked)


def noise_of_rounded(u):
    low = u.astype(jnp.bfloat16)  # here
    return -jnp.log(-jnp.log(low.astype(jnp.float32)))


def noise_in_a_scan(u):
    low = u.astype(jnp.bfloat16)  # here
    return jax.lax.scan(lambda s, x: (s - jnp.log(-jnp.log(x)), x), 0 * u[0], low)[0]


def noise(u):
    return -jnp.log(-jnp.log(u))


@pytest.mark.parametrize("faulty", [noise_of_rounded, noise_in_a_scan])
def test_a_number_that_rounds_to_one_makes_the_zero_of_a_logarithm(faulty):
    u = np.linspace(0.01, 0.9995, 64, dtype=np.float32).reshape(16, 4)
    assert_named("coarse", faulty, noise, (u,), policy="fp32")


def squared(a, b):
    gram = a.T @ a  # here
    lower = jnp.linalg.cholesky(gram + 1e-9 * jnp.eye(len(gram)))
    first = jax.scipy.linalg.solve_triangular(lower, a.T @ b, lower=True)
    return jax.scipy.linalg.solve_triangular(lower.T, first, lower=False)


def test_normal_equations_square_the_condition_number():
    x = np.linspace(0.05, 1.0, 96)
    a = np.vander(x, 6, increasing=True).astype(np.float32)
    b = (a @ normal(6, 4) + 1e-3 * normal(96, 4)).astype(np.float32)
    assert_named("singular", squared, None, (a, b), policy="fp32")
    a8 = np.vander(x, 12, increasing=True).astype(np.float32)
    assert_named("singular", squared, None, (a8, b), policy="bf16")
    report = compare(squared, policy="fp32")(a, b)
    assert "by QR or jnp.linalg.lstsq" in report.faults[0].remedy
    devices = nj.make_mesh((2,), ("i",))
    spread = jax.shard_map(
        jax.vmap(squared), mesh=devices, in_specs=P("i"), out_specs=P("i")
    )
    both = compare(spread, policy="fp32")(np.stack([a, a]), np.stack([b, b]))
    assert both.faults[0].record.source == marked_line(squared)


def scaled_loss(g):
    return 1024.0 * (g * g).sum()


def clipped(g):
    half = jax.grad(scaled_loss)(g).astype(jnp.float16)
    norm = jnp.sqrt(jnp.sum(half * half))  # here
    return half.astype(jnp.float32) / norm.astype(jnp.float32)


def clipped_in_fp32(g):
    wide = jax.grad(scaled_loss)(g)
    return wide / jnp.sqrt(jnp.sum(wide * wide))


def test_the_norm_of_scaled_gradients_is_no_fault_of_the_scale():
    """The gradients fit float16, only their squares do not."""
    arguments = (normal(64),)
    assert_named("overflow", clipped, clipped_in_fp32, arguments, policy="fp32")


def unscaled(q, k, v):
    weights = jax.nn.softmax(q @ k.T / 4, axis=-1)
    low = weights.astype(jnp.float8_e4m3fn)  # here
    return low.astype(jnp.float32) @ v


def scaled_first(q, k, v):
    weights = jax.nn.softmax(q @ k.T / 4, axis=-1)
    up = 448.0 / weights.max(axis=-1, keepdims=True)
    return ((weights * up).astype(jnp.float8_e4m3fn).astype(jnp.float32) @ v) / up


def test_a_cast_that_loses_most_comes_before_a_function_that_amplifies_a_little():
    q, k, v = normal(16, 16), 0.8 * normal(2048, 16), 0.5 * normal(2048, 8) + 1
    options = {"policy": "fp8", "target": "trn3"}
    assert_named("underflow", unscaled, scaled_first, (q, k, v), **options)


def solved(a, b):
    gram = a.T @ a  # here
    return jnp.linalg.solve(gram, a.T @ b)


def test_normal_equations_are_blamed_through_lu():
    """JAX writes the factorization as loops on the line of `solve`."""
    a = np.stack([np.linspace(0, 1, 96) ** n for n in range(7)], 1).astype(np.float32)
    assert_named("singular", solved, None, (a, normal(96, 3)), policy="fp32")


def driven(x, narrow):
    def turn(carry, _):
        x, speed, time = carry
        force = 0.8 * jnp.cos(2 * time.astype(x.dtype)) - 0.3 * speed - x
        speed += 0.005 * force
        x += 0.005 * speed
        time = time + jnp.asarray(0.005, time.dtype)  # here
        return (x, speed, time), None

    start = x, jnp.zeros_like(x), jnp.zeros((), narrow)
    return jax.lax.scan(turn, start, None, length=1200)[0][:2]


def clock_in_bf16(x):
    return driven(x, jnp.bfloat16)


def clock_in_fp32(x):
    return driven(x, jnp.float32)


@pytest.mark.slow
def test_a_clock_that_stops_is_blamed_for_the_states_that_it_drives():
    """In each turn, the state's error is much larger than that of its change."""
    x = normal(16)
    report = compare(clock_in_bf16, policy="fp32")(x)
    first = report.faults[0]
    assert (first.kind, first.record.source) == ("stagnation", marked_line(driven))
    assert not compare(clock_in_fp32, policy="fp32")(x).faults


def locked_filter(readings, variance):
    def turn(carry, reading):
        estimate, variance = carry
        gain = variance / (variance + 1.0)
        estimate += gain * (reading - estimate)
        variance = (1.0 - gain) * variance  # here
        return (estimate, variance), None

    return jax.lax.scan(turn, (jnp.zeros_like(variance), variance), readings)[0]


def open_filter(readings, variance):
    def turn(carry, reading):
        estimate, variance = carry
        gain = variance / (variance + 1.0)
        estimate += gain * (reading - estimate)
        return (estimate, gain), None

    return jax.lax.scan(turn, (jnp.zeros_like(variance), variance), readings)[0]


def test_a_variance_that_is_whole_in_one_turn_is_no_count():
    arguments = normal(40, 16), np.full(16, 1e9, np.float32)
    assert_named("cancellation", locked_filter, open_filter, arguments, policy="fp32")


def scores_of_shifted_keys(q, k, v):
    scores = q @ k.T  # here
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights @ v / weights.sum(axis=-1, keepdims=True)


def scores_without_the_shift(q, k, v):
    k = k - k.mean(axis=0)
    weights = jax.nn.softmax(q @ k.T, axis=-1)
    return weights @ v


def test_a_shift_of_all_scores_costs_the_digits_of_an_fp8_matmul():
    """Three ops enlarge the error: a difference, an exponential and a quotient."""
    k = normal(128, 32, seed=1) + 30 * normal(1, 32, seed=2)
    arguments = 0.2 * normal(64, 32), k.astype(np.float32), normal(128, 16, seed=3)
    both = scores_of_shifted_keys, scores_without_the_shift
    report = compare(both[0], policy="fp8")(*arguments)
    assert marked_line(both[0]) in [f.record.source for f in report.faults[:2]]
    assert not compare(both[1], policy="fp8")(*arguments).faults


def rounded_table(rates, noise):
    kept = jnp.cumprod(1 - rates).astype(jnp.bfloat16)  # here
    rest = 1 - kept
    ratio = (kept / rest).astype(jnp.float32)
    return jnp.log1p(ratio) * noise


def exact_table(rates, noise):
    log = jnp.cumsum(jnp.log1p(-rates))
    return jnp.log1p(jnp.exp(log) / -jnp.expm1(log)) * noise


def test_the_zeros_of_a_difference_come_from_the_cast_of_its_operands():
    """The difference rounds too, but only its other results."""
    arguments = np.geomspace(1e-3, 0.3, 64).astype(np.float32), normal(64)
    assert_named("coarse", rounded_table, exact_table, arguments, policy="fp32")
