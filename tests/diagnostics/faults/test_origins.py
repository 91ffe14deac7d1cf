"""Who made an error that shows elsewhere: behind a mask, in one of several operands or
differences, in a turn of a loop, in the cast or the partial sums of a contraction.
"""

import jax
import jax.export
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


def positions(x, start):
    places = (start + jnp.arange(len(x))).astype(jnp.bfloat16)  # here
    angles = places.astype(jnp.float32)[:, None] * 0.3 ** jnp.arange(x.shape[1])
    scores = jnp.cos(angles) @ (x * jnp.sin(angles)).T
    causal = jnp.tril(jnp.ones(scores.shape, bool))
    return jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ x


def positions_in_fp32(x, start):
    places = (start + jnp.arange(len(x))).astype(jnp.float32)
    angles = places[:, None] * 0.3 ** jnp.arange(x.shape[1])
    scores = jnp.cos(angles) @ (x * jnp.sin(angles)).T
    causal = jnp.tril(jnp.ones(scores.shape, bool))
    return jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ x


def ages(stamps, now):
    seconds = stamps.astype(jnp.float32)  # here
    age = now.astype(jnp.float32) - seconds
    return jnp.exp(-age / 300)


def ages_of_integers(stamps, now):
    return jnp.exp(-(now - stamps).astype(jnp.float32) / 300)


def area(x, y):
    cross = x * jnp.roll(y, -1, axis=1) - jnp.roll(x, -1, axis=1) * y  # here
    return jnp.abs(jnp.sum(cross, axis=1))


def area_about_a_corner(x, y):
    x, y = x - x[:, :1], y - y[:, :1]
    cross = x * jnp.roll(y, -1, axis=1) - jnp.roll(x, -1, axis=1) * y
    return jnp.abs(jnp.sum(cross, axis=1))


def corners():
    turn = np.linspace(0, 2 * np.pi, 6, endpoint=False)
    middle = 4e6 + 1e5 * normal(12, 2, seed=3)
    x, y = middle[:, :1] + 20 * np.cos(turn), middle[:, 1:] + 20 * np.sin(turn)
    return [np.round(2 * v).astype(np.float32) / 2 for v in (x, y)]


def distances(x, y):
    both = (x * x).sum(-1)[:, None] + (y * y).sum(-1)
    return jnp.sqrt(jnp.maximum(both - 2 * x @ y.T, 0))  # here


def distances_of_differences(x, y):
    gap = x[:, None] - y
    return jnp.sqrt((gap * gap).sum(-1))


def running(batches):
    def step(mean, x):
        gap = (x - mean.astype(jnp.float32)).astype(jnp.bfloat16)
        mean = mean + (0.01 * gap).astype(jnp.bfloat16)  # here
        return mean, None

    zeros = jnp.zeros(batches.shape[1:], jnp.bfloat16)
    return jax.lax.scan(step, zeros, batches)[0].astype(jnp.float32)


def running_in_fp32(batches):
    def step(mean, x):
        return mean + 0.01 * (x - mean), None

    zeros = jnp.zeros(batches.shape[1:], jnp.float32)
    return jax.lax.scan(step, zeros, batches)[0]


def balanced(cost, a, b):
    kernel = jnp.exp(-cost)  # here

    def step(v, _):
        u = a / (kernel @ v)
        return b / (kernel.T @ u), None

    return jax.lax.scan(step, jnp.ones_like(b), None, length=8)[0]


def balanced_in_logarithms(cost, a, b):
    def step(v, _):
        u = jnp.log(a) - jax.nn.logsumexp(v - cost, axis=1)
        return jnp.log(b) - jax.nn.logsumexp(u[:, None] - cost, axis=0), None

    v, _ = jax.lax.scan(step, jnp.zeros_like(b), None, length=8)
    return v


def residual(merged, x):
    out = x @ merged  # here
    return out - x


def residual_apart(merged, x):
    return x @ (merged - jnp.eye(len(merged)))


def outlier(w, x):
    return jax.nn.tanh(x @ w)  # here


def outlier_smoothed(w, x):
    largest = jnp.abs(x).max(0)
    return jax.nn.tanh((x / largest) @ (w * largest[:, None]))


def partial_sums(w, x):
    return x @ w / 2048  # here


OUTLIER = np.where(np.arange(32) == 5, np.float32(2e5), np.float32(0.1))
PARTIAL = Policy(auto_cast="matmult", auto_cast_type="bf16", psum_dtype="bfloat16")

CASES = [
    ("integer", "bf16", positions, positions_in_fp32, [normal(64, 8), np.int32(1203)]),
    (
        "integer",
        "fp32",
        ages,
        ages_of_integers,
        [
            np.int32(1_712_345_000) - 7 * np.arange(40, dtype=np.int32),
            np.int32(1_712_345_678),
        ],
    ),
    ("cancellation", "fp32", area, area_about_a_corner, corners()),
    # FP32 operands of a matmul are exact, so that nothing excuses what cancels.
    (
        "cancellation",
        "fp32",
        distances,
        distances_of_differences,
        [normal(20, 3) + 1000, normal(30, 3, seed=1) + 1000],
    ),
    (
        "stagnation",
        "fp32",
        running,
        running_in_fp32,
        [1 + normal(300, 16, seed=4, scale=0.1)],
    ),
    (
        "underflow",
        "fp32",
        balanced,
        balanced_in_logarithms,
        [
            np.square(normal(12, 1, seed=5) - normal(12, seed=6)) * np.float32(60),
            np.full(12, 1 / 12, np.float32),
            np.full(12, 1 / 12, np.float32),
        ],
    ),
    (
        "underflow",
        "mxfp4",
        residual,
        residual_apart,
        [
            np.eye(64, dtype=np.float32) + normal(64, 64, seed=7, scale=0.012),
            normal(24, 64, seed=8),
        ],
    ),
    (
        "underflow",
        "fp8",
        outlier,
        outlier_smoothed,
        [
            normal(32, 24, seed=9, scale=0.3) / OUTLIER[:, None],
            normal(16, 32, seed=10) * OUTLIER,
        ],
    ),
    (
        "stagnation",
        PARTIAL,
        partial_sums,
        None,
        [
            normal(32768, 8, seed=11, scale=0.1) + np.float32(0.1),
            np.abs(normal(6, 32768, seed=12)),
        ],
    ),
]


@pytest.mark.slow_cases(
    "balanced",
    "distances",
    "positions",
    "running",
    "outlier",
    "residual",
    "area",
    "partial_sums",
)
@pytest.mark.parametrize(
    ("kind", "policy", "faulty", "healthy", "arguments"),
    CASES,
    ids=[case[2].__name__ for case in CASES],
)
def test_the_origin_comes_first_and_its_twin_is_left_alone(
    kind, policy, faulty, healthy, arguments
):
    target = "trn3" if policy == "mxfp4" or policy is PARTIAL else "trn2"
    options = {"target": target, "policy": policy}
    assert_named(kind, faulty, healthy, arguments, **options)


def test_both_operands_and_both_differences_are_named():
    names = {case[2].__name__: case for case in CASES}
    for name, kinds in [
        ("ages", ["integer", "integer", "cancellation"]),
        ("area", ["cancellation", "cancellation"]),
    ]:
        _, policy, faulty, _, arguments = names[name]
        report = compare(faulty, policy=policy)(*arguments)
        assert [f.kind for f in report.faults] == kinds
        assert len({f.record.source for f in report.faults}) == 2


@pytest.mark.slow
def test_an_op_that_amplifies_explains_where_a_run_diverges():
    def spread(x, w):
        h = jax.nn.gelu(x @ w) + 300
        return (h * h).mean(-1) - h.mean(-1) ** 2  # here

    arguments = [normal(16, 32), normal(32, 32, seed=1, scale=0.2)]
    first = compare(spread, policy="fp32", tolerance=1e-3)(*arguments).first_divergence
    assert first is not None
    assert first.record.source == marked_line(spread)
    assert first.causes == (first.record,)
    assert not first.verified


def tank(level, depth):
    def turn(state, _):
        height, flow = state
        flow = flow.at[1:-1].add(-0.2 * jnp.diff(height))
        height = height - 0.2 * jnp.diff(flow)
        return (height, flow), height[20]

    start = (level, jnp.zeros(len(level) + 1))
    (height, _), heights = jax.lax.scan(turn, start, None, length=200)
    return height - depth, heights - depth


def waves_above_the_ground(wave, depth):
    level = depth + wave  # here
    return tank(level, depth)


def waves_above_the_water(wave, depth):
    return tank(wave, 0.0)


def test_an_offset_of_a_state_comes_before_the_sums_that_it_makes_coarse():
    wave = 1e-3 * np.exp(-(((np.arange(64) - 30) / 5) ** 2))
    both = waves_above_the_ground, waves_above_the_water
    arguments = (wave.astype(np.float32), np.float32(4000))
    assert_named("absorption", *both, arguments, policy="fp32")


def tide(hours):
    turns = hours / 12.42
    return jnp.cos(2 * jnp.pi * (turns - jnp.floor(turns)))


def time_in_hours(hours, minutes):
    time = hours.astype(jnp.float32) + minutes / 60  # here
    return tide(time - 4_000_000)


def time_after_the_first_hour(hours, minutes):
    return tide((hours - 4_000_000).astype(jnp.float32) + minutes / 60)


def test_a_time_that_loses_its_minutes_comes_before_the_difference_of_times():
    rng = np.random.default_rng(3)
    hours = 4_000_000 + rng.integers(2_000, size=128).astype(np.int32)
    minutes = (60 * rng.random(128)).astype(np.float32)
    both = time_in_hours, time_after_the_first_hour
    assert_named("absorption", *both, (hours, minutes), policy="fp32")


def pull_by_the_cube(offsets, masses):
    distance = jnp.sqrt(jnp.sum(offsets * offsets, axis=-1))
    cube = distance * distance * distance  # here
    return (masses / cube)[:, None] * offsets


def pull_by_the_square(offsets, masses):
    distance = jnp.sqrt(jnp.sum(offsets * offsets, axis=-1))
    pull = masses / (distance * distance)
    return pull[:, None] * (offsets / distance[:, None])


def test_a_divisor_that_overflows_comes_before_the_zeros_that_it_makes():
    offsets = normal(32, 3) * np.geomspace(1e10, 1e13, 32)[:, None]
    arguments = offsets.astype(np.float32), np.full(32, 1e30, np.float32)
    both = pull_by_the_cube, pull_by_the_square
    assert_named("overflow", *both, arguments, policy="fp32")


def running_total(start, step):
    def turn(total, _):
        return total + step, None  # here

    return jax.lax.scan(turn, start, None, length=80)[0]


def test_a_running_sum_of_equal_numbers_is_no_offset_of_itself():
    start, step = jnp.full(32, 256, jnp.bfloat16), jnp.full(32, 0.5, jnp.bfloat16)
    assert_named("stagnation", running_total, None, (start, step), policy="fp32")


def test_a_divisor_that_overflows_is_blamed_on_a_mesh_and_in_a_loaded_program(tmp_path):
    offsets = normal(32, 3) * np.geomspace(1e10, 1e13, 32)[:, None]
    arguments = offsets.astype(np.float32), np.full(32, 1e30, np.float32)
    mesh = nj.make_mesh((2,), ("i",))
    spread = jax.shard_map(
        jax.vmap(pull_by_the_cube), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    )
    several = [np.stack([x, x]) for x in arguments]
    exported = jax.export.export(jax.jit(pull_by_the_cube), platforms=["cpu"])
    path = tmp_path / "pull.jaxexport"
    path.write_bytes(exported(*arguments).serialize())
    loaded = nj.load(path, target="trn2", policy="fp32")
    for program, given in ((spread, several), (loaded, arguments)):
        first = compare(program, policy="fp32")(*given).faults[0]
        assert first.kind == "overflow"
        assert first.record.source == marked_line(pull_by_the_cube)
