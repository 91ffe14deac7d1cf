"""Small programs with one fault, as a user asks about them, and their healthy twins.

The collection in `benchmarks/faults` counts how many are found; these are what each
rule of the search is for.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from neuronjax.api.compare import compare
from neuronjax.policy import Policy
from tests.arrays import normal
from tests.diagnostics.faults.marked import assert_named

LONG = 512


# Each is (kind, policy, faulty, healthy, arguments); the faulty line says so.


def loss_of_logits(x):
    e = jnp.exp(x.astype(jnp.float16))  # here
    return jnp.log(e.sum(-1)).mean()


def loss_of_shifted(x):
    return jax.nn.logsumexp(x.astype(jnp.float16).astype(jnp.float32), -1).mean()


def likelihood(x):
    p = jnp.prod(jnp.exp(-0.5 * x * x), -1)  # here
    return jnp.log(p)


def log_likelihood(x):
    return -0.5 * (x * x).sum(-1)


def lost_step(w, g):
    return w - (1e-4 * g).astype(w.dtype)  # here


def taken_step(w, g):
    return w.astype(jnp.float32) - 1e-4 * g.astype(jnp.float32)


def running_sum(x):
    def add(total, value):
        total = total + value.astype(jnp.bfloat16)  # here
        return total, None

    return jax.lax.scan(add, jnp.bfloat16(0), x)[0].astype(jnp.float32)


def running_sum_in_fp32(x):
    def add(total, value):
        return total + value.astype(jnp.bfloat16).astype(jnp.float32), None

    return jax.lax.scan(add, jnp.float32(0), x)[0]


def variance(x):
    return (x * x).mean(-1) - x.mean(-1) ** 2  # here


def centred_variance(x):
    return jnp.square(x - x.mean(-1, keepdims=True)).mean(-1)


def log_of_nothing(x):
    return jnp.log(x - x.max()).sum()  # here


def log_of_something(x):
    return jnp.log(1 + x.max() - x).sum()


def gradient_at_zero(x):
    def loss(x):
        size = jnp.sqrt((x * x).sum(-1))  # here
        return size.sum()

    return jax.grad(loss)(x)


def guarded_gradient(x):
    def loss(x):
        square = (x * x).sum(-1)
        inside = jnp.where(square > 0, square, 1.0)
        return jnp.where(square > 0, jnp.sqrt(inside), 0.0).sum()

    return jax.grad(loss)(x)


def pixels_apart(a, b):
    return jnp.abs(a - b).astype(jnp.float32).mean()  # here


def pixels_apart_in_floats(a, b):
    return jnp.abs(a.astype(jnp.float32) - b.astype(jnp.float32)).mean()


def rotary(positions, x):
    angle = positions.astype(jnp.bfloat16)  # here
    return x * jnp.cos(angle.astype(jnp.float32) * 0.3)


def rotary_in_fp32(positions, x):
    return x * jnp.cos(positions.astype(jnp.float32) * 0.3)


def quantized(x, scale):
    codes = jnp.clip(x * scale, -240.0, 240.0)  # here
    return codes.astype(jnp.float8_e4m3).astype(jnp.float32) / scale


def quantized_by_its_own_scale(x, scale):
    return quantized(x, 240.0 / jnp.abs(x).max())


def unit_vectors(x):
    square = (x * x).sum(-1, keepdims=True)  # here
    return x * jax.lax.rsqrt(jnp.maximum(square, 1e-36))


def unit_vectors_scaled(x):
    x = x / jnp.abs(x).max(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True))


CASES = [
    ("overflow", "bf16", loss_of_logits, loss_of_shifted, [normal(4, 8) + 12]),
    ("underflow", "bf16", likelihood, log_likelihood, [normal(4, LONG)]),
    (
        "absorption",
        "bf16",
        lost_step,
        taken_step,
        [np.ones(8, jnp.bfloat16), normal(8).astype(jnp.bfloat16)],
    ),
    (
        "stagnation",
        "bf16",
        running_sum,
        running_sum_in_fp32,
        [np.full(LONG, 0.3, np.float32)],
    ),
    ("cancellation", "fp32", variance, centred_variance, [normal(4, LONG) + 1000]),
    (
        "non-finite",
        "bf16",
        log_of_nothing,
        log_of_something,
        [np.arange(1, 9, dtype=np.float32)],
    ),
    (
        "singular",
        "bf16",
        gradient_at_zero,
        guarded_gradient,
        [np.stack([np.ones(4), np.zeros(4)]).astype(np.float32)],
    ),
    (
        "integer",
        "bf16",
        pixels_apart,
        pixels_apart_in_floats,
        [np.uint8([10, 200, 30]), np.uint8([20, 190, 40])],
    ),
    (
        "integer",
        "bf16",
        rotary,
        rotary_in_fp32,
        [np.arange(1000, 1064, dtype=np.int32), normal(64)],
    ),
    (
        "saturation",
        "bf16",
        quantized,
        quantized_by_its_own_scale,
        [normal(64), np.float32(1e3)],
    ),
    (
        "underflow",
        "fp32",
        unit_vectors,
        unit_vectors_scaled,
        [normal(6, 3, scale=1e-20)],
    ),
]
NAMES = [case[2].__name__ for case in CASES]


@pytest.mark.slow_except("likelihood")
@pytest.mark.parametrize(
    ("kind", "policy", "faulty", "healthy", "arguments"), CASES, ids=NAMES
)
def test_the_line_comes_first_and_its_twin_is_left_alone(
    kind, policy, faulty, healthy, arguments
):
    assert_named(kind, faulty, healthy, arguments, policy=policy)


# -- what is no fault ------------------------------------------------------------------


@pytest.mark.slow_cases("fp32")
@pytest.mark.parametrize("policy", ["fp32", "bf16"])
def test_a_gradient_that_is_zero_is_noise_in_float64_too(policy):
    """The bias of a softmax; its computed gradient is all rounding."""
    x, w = normal(8, 16), normal(16, 4, seed=1)

    def loss(bias):
        return (jax.nn.softmax(x @ w + bias, -1) ** 2).sum()

    report = compare(jax.grad(loss), policy=policy)(np.float32(0.5))
    assert report.ops[-1].accumulation.relative_l2 > 1
    assert report.faults == ()
    assert "nothing wrong" in str(report)


@pytest.mark.slow_cases("fp8-0.02", "mxfp8-0.02", "tf32-0.0001")
@pytest.mark.parametrize(
    ("policy", "error"),
    [("tf32", 1e-4), ("fp8", 0.02), ("mxfp8", 0.02), ("mxfp4", 0.02)],
)
def test_formats_of_few_bits_are_judged_by_theirs(policy, error):
    def layer(x, w):
        return jax.nn.gelu(x @ w) @ w.T

    arguments = normal(8, 64), normal(64, 128, seed=1, scale=0.1)
    report = compare(layer, policy=policy, target="trn3")(*arguments)
    assert report.ops[-1].accumulation.relative_l2 > error
    assert report.faults == ()


def test_an_ill_conditioned_problem_is_not_the_programs_fault():
    """Rounding its data changes the result as much."""

    def difference(x, y):
        return x - y

    x = 1 + normal(64, scale=1e-2)
    y = (x * (1 + normal(64, seed=1, scale=1e-3))).astype(jnp.bfloat16)
    report = compare(difference, policy="bf16")(x.astype(jnp.bfloat16), y)
    assert report.faults == ()


@pytest.mark.slow
def loss_of_rounded_logits(x, labels):
    logits = (60 + x).astype(jnp.bfloat16).astype(jnp.float32)  # here
    gold = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
    return jax.nn.logsumexp(logits, -1) - gold


def loss_of_exact_logits(x, labels):
    logits = 60 + x
    gold = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
    return jax.nn.logsumexp(logits, -1) - gold


def test_one_rounding_is_excused_less_than_many():
    """The error is 2.6 roundoffs of BF16, which a network of many layers may have."""
    arguments = 2 * normal(64, 50), np.arange(64, dtype=np.int32) % 50
    pair = loss_of_rounded_logits, loss_of_exact_logits
    assert_named("coarse", *pair, arguments, policy="fp32")


def test_the_difference_of_close_numbers_may_be_small_by_chance():
    """A convergence test subtracts iterates, which are close when it ends."""

    def fixed_point(p, reward):
        def update(v):
            return reward + 0.97 * p @ v

        def body(state):
            return state[1], update(state[1])

        def moves(state):
            return jnp.abs(state[1] - state[0]).max() > 1e-3

        zero = jnp.zeros_like(reward)
        old, new = jax.lax.while_loop(moves, body, (zero, update(zero)))
        return new, jnp.abs(new - old).max()

    p = jax.nn.softmax(3 * normal(10, 10))
    report = compare(fixed_point, policy="fp32")(p, 1 + jnp.abs(normal(10)))
    assert report.faults == (), str(report)
    assert report.verdict.wrong == (), str(report)


def test_masks_that_absorb_in_a_loop_are_no_running_sum():
    """Impossible states of a forward algorithm have -1e9 for a log probability."""

    def add(a, b):
        top = jnp.maximum(a, b)
        return top + jnp.log(jnp.exp(a - top) + jnp.exp(b - top))

    never, start = -1e9, jnp.full(17, -1e9).at[:2].set(-2.0)
    odd = jnp.arange(17) % 2 == 1

    def forward(logp):
        def step(alpha, now):
            moved = jnp.concatenate([jnp.full(1, never), alpha[:-1]])
            skipped = jnp.concatenate([jnp.full(2, never), alpha[:-2]])
            alpha = add(alpha, add(moved, jnp.where(odd, skipped, never)))
            return alpha + now, None

        return jax.nn.logsumexp(jax.lax.scan(step, start, logp)[0][-2:])

    logp = jax.nn.log_softmax(normal(40, 17))
    report = compare(forward, policy="fp32")(logp)
    assert report.faults == (), str(report)


def test_a_choice_may_leave_out_what_wrapped():
    """Park and Miller's generator, after Schrage."""

    def draw(state):
        q, r = 2147483647 // 48271, 2147483647 % 48271
        state = 48271 * (state % q) - r * (state // q)
        return jnp.where(state < 0, state + 2147483647, state)

    assert compare(draw)(np.arange(1, 10**9, 10**8, dtype=np.int32)).faults == ()


def test_an_argument_that_is_handed_through_is_nobodys_fault():
    x = np.float32([1, np.inf])
    assert compare(lambda x: x)(x).faults == ()


# -- who is at fault -------------------------------------------------------------------


@pytest.mark.slow
def test_who_made_the_zeros_comes_before_who_divides_by_them():
    def normalized(x):
        p = jnp.exp(x.astype(jnp.float16))
        return p / p.sum(-1, keepdims=True)

    report = compare(normalized, policy="bf16")(np.float32([[-40, -41], [0, 1]]))
    first, *_ = report.faults
    assert (first.kind, first.record.short_op) == ("underflow", "exponential")
    assert first.shows is not None
    assert first.shows.short_op == "divide"


@pytest.mark.slow
def test_the_scale_comes_before_the_cast_that_it_spoils():
    def branch(x):
        scale = jnp.clip(240.0 / jnp.abs(x).max(), 1 / 16, 16.0)
        return (x * scale).astype(jnp.float8_e4m3).astype(jnp.float32) / scale

    report = compare(branch, policy="bf16")(normal(64, scale=1e-5))
    assert [f.kind for f in report.faults[:2]] == ["saturation", "underflow"]
    assert report.faults[0].record.short_op == "minimum"


@pytest.mark.slow
def test_a_small_factor_of_a_recurrence():
    """The state is farther off than its factor, which made it so."""

    def decays(x, decay):
        keep = decay.astype(jnp.bfloat16).astype(jnp.float32)

        def step(state, x):
            return keep * state + x, None

        return jax.lax.scan(step, jnp.zeros(4), x)[0]

    report = compare(decays, policy="fp32")(
        np.ones((400, 4), np.float32), np.float32([0.9990, 0.9991, 0.9992, 0.9993])
    )
    first, *_ = report.faults
    assert (first.kind, first.record.short_op) == ("coarse", "convert")


@pytest.mark.slow
def test_iterations_and_results_are_named():
    def step(x):
        return {"total": running_sum(x), "mean": x.mean()}

    report = compare(step, policy="bf16")(np.full(LONG, 0.3, np.float32))
    assert report.verdict is not None
    [wrong] = report.verdict.wrong
    assert wrong.name == "total"
    fault = report.faults[0]
    assert fault.outputs == ("total",)
    assert len(fault.iteration) == 1
    assert "since iteration" in str(report)


# -- the page --------------------------------------------------------------------------


def test_a_page_says_what_where_why_and_what_to_try():
    report = compare(likelihood, policy="bf16")(normal(4, LONG))
    text = str(report)
    assert max(map(len, text.splitlines())) <= 80
    assert "the result is wrong" in text
    assert "test_faults.py:" in text
    assert "> p = jnp.prod(jnp.exp(-0.5 * x * x), -1)  # here" in text
    assert "try: " in text
    found = json.loads(json.dumps(report.to_json_dict()))["verdict"]
    assert found["faults"][0]["kind"] == "underflow"
    assert found["wrong"][0]["how"] == "nonfinite"


def two_layers(params, x):
    """Two lines at fault."""
    h = jax.nn.relu(x @ params["encoder"]["kernel"])
    e = jnp.exp((h @ params["decoder"]["kernel"]).astype(jnp.float16))
    return jnp.log(e.sum(-1)).mean()


def of_two_layers():
    kernels = {"encoder": normal(8, 16), "decoder": normal(16, 4, scale=4, seed=1)}
    params = {name: {"kernel": kernel} for name, kernel in kernels.items()}
    return compare(two_layers, policy="bf16")(params, normal(32, 8, seed=2))


@pytest.mark.slow
def test_a_fault_is_in_a_part_of_the_parameters_where_there_are_no_modules():
    report = of_two_layers()
    assert report.faults[0].parameter == "params/decoder/kernel"
    assert report.faults[0].as_dict()["parameter"] == "params/decoder/kernel"
    assert "exponential in decoder" in str(report)


def test_a_module_is_named_rather_than_its_parameter():
    def scoped(params, x):
        with jax.named_scope("head"):
            return jnp.exp((x @ params["w"]).astype(jnp.float16))

    text = str(
        compare(scoped, policy="bf16")({"w": normal(8, 4, scale=9)}, normal(4, 8))
    )
    assert "exponential in head" in text
    assert "near params" not in text


@pytest.mark.slow
def test_a_report_ends_with_the_lines_and_the_picture_shows_the_same():
    report = of_two_layers()
    assert len(report.faults) == 2
    fault = report.faults[0]
    assert dict(fault) == fault.as_dict()  # a row of a data frame
    assert repr(fault).startswith(f"<neuronjax.Fault {fault.kind} at test_faults.py:")
    assert "2 ops at fault" in str(report.faults)
    assert "<table" in report.faults._repr_html_()
    *_, title, first, second = str(report).rstrip().splitlines()
    assert title == "change first:"
    assert ': e = jnp.exp((h @ params["decoder"]["kernel"])' in first
    assert second.endswith(": return jnp.log(e.sum(-1)).mean()")
    labels = [t.get_text() for t in report.plot().legends[0].get_texts()]
    marks = [label for label in labels if label[0].isdigit()]
    assert [mark.partition(".")[0] for mark in marks] == ["1", "2"]


def test_what_no_result_tells_is_said_to_be_so():
    report = compare(pixels_apart, policy="bf16")(np.uint8([1]), np.uint8([2]))
    assert report.verdict is not None
    assert report.verdict.wrong == ()
    assert "no result is too far from float64, but" in str(report)


@pytest.mark.slow
def test_a_picture_marks_the_faults_even_if_nothing_is_finite(tmp_path):
    def function(x):
        return jax.nn.relu(jnp.cumsum(x)) * 2

    report = compare(function, policy="bf16")(np.full(64, 3e4, np.float16))
    fault, *_ = report.faults
    assert (fault.kind, fault.record.short_op) == ("overflow", "reduce_window")
    figure = report.plot()
    figure.savefig(tmp_path / "errors.png")
    labels = [t.get_text() for t in figure.legends[0].get_texts()]
    assert any(label.startswith("1. overflow: op ") for label in labels)


def test_an_exponential_of_halves_overflows_in_a_sum():
    def function(x):
        return jnp.exp(x.astype(jnp.float16) * 6).sum()

    fault, *_ = compare(function, policy="bf16")(np.float32([0.1, 1, 2])).faults
    assert (fault.kind, fault.record.short_op) == ("overflow", "exponential")


@pytest.mark.slow
def test_nan_on_both_sides_is_found():
    report = compare(log_of_nothing, policy="bf16")(np.arange(1, 9, dtype=np.float32))
    assert report.ops[-1].accumulation.nonfinite_reference == 1
    assert report.faults[0].record.short_op == "log"


def test_a_weak_step_is_lost():
    ones = np.ones(8, jnp.bfloat16)
    report = compare(lambda w, g: w - 1e-4 * g, policy="bf16")(ones, ones)
    fault, *_ = report.faults
    assert (fault.kind, fault.record.short_op) == ("absorption", "subtract")
    assert report.verdict is not None
    assert report.verdict.wrong[0].how == "lost"


@pytest.mark.slow
def test_two_policies_are_not_judged():
    report = compare(variance, policy="bf16", reference="fp32")(normal(2, 8))
    assert report.verdict is None
    assert report.tolerance == 0.1


@pytest.mark.slow
def test_a_tolerance_asks_for_the_first_divergence_too():
    report = compare(loss_of_logits, policy="bf16", tolerance=0.1)(normal(4, 8) + 12)
    assert report.first_divergence is not None
    assert report.first_divergence.record.number == report.faults[0].record.number
    assert "first divergence (relative L2 above 0.1)" in str(report)


def test_stochastic_rounding_is_no_fault():
    policy = Policy(auto_cast="matmult", rounding="stochastic")
    report = compare(lambda x, w: jnp.tanh(x @ w) @ w, policy=policy)(
        normal(8, 32), normal(32, 32, seed=1, scale=0.2)
    )
    assert report.faults == ()


def sent(x):
    io_callback(lambda x: None, None, x * 1e6)
    return x.sum()


def test_nothing_is_right_that_is_not_judged():
    policy = Policy(callbacks="host")
    report = str(compare(sent, policy=policy)(normal(8)))
    assert "not judged: the arguments of io_callback, test_faults.py:" in report
    assert "nothing wrong" not in report
    assert "nothing was judged" in str(
        compare(lambda x: None, policy=policy)(normal(8))
    )
