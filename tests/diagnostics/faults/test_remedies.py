"""A remedy is tried on the op at fault before it is printed; a claim is measured."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from neuronjax import Policy, compare
from neuronjax.diagnostics.faults.naming import IN_FP32, KINDS
from neuronjax.diagnostics.faults.remedies import UNSCALED
from neuronjax.diagnostics.faults.trials import fitted
from tests.arrays import normal

BF16 = jnp.bfloat16


def first(function, *args, policy="fp32", **options):
    return compare(function, policy=policy, **options)(*args).faults[0]


def of_rows(x):
    scale = jnp.abs(x).max() / 127
    return jnp.round(x / scale).astype(jnp.int8).astype(jnp.float32) * scale


def of_eight_bits(x):
    low = jnp.clip(100 * x, -240.0, 240.0).astype(jnp.float8_e4m3)
    return low.astype(jnp.float32) / 100


def rounded_before(x):
    return jnp.cos(x.astype(BF16).astype(jnp.float32))


def stepped(w, g):
    return (w.astype(jnp.float32) - 1e-5 * g).astype(BF16)


def added(w, g):
    return w - BF16(1e-5) * g


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        (
            of_rows,
            (np.float32([[1.0], [3000.0]]) * normal(2, 64),),
            "every row a scale",
        ),
        (of_eight_bits, (5 * normal(16, 16),), "just fits float8_e4m3, which"),
        (rounded_before, (1000 * normal(64),), "in FP32, which leaves an error of"),
        (stepped, (normal(64).astype(BF16), normal(64)), "the state in FP32"),
        (added, (normal(64).astype(BF16), normal(64).astype(BF16)), "stochastically"),
        (
            lambda x: jnp.exp(x.astype(jnp.float16)),
            (np.float32([1.0, 12.0]),),
            "keep the result in FP32, which leaves an error of",
        ),
        (
            lambda x: jnp.sum(jnp.exp(x.astype(jnp.float16) - 12)),
            (np.float32([-9.0, -8.0, -7.0]),),
            "in FP32 or BF16, which leaves no number that became zero",
        ),
    ],
    ids=["row", "scale", "digits", "state", "sum", "range", "zeros"],
)
def test_what_helps_is_named_with_what_it_leaves(function, arguments, words):
    assert words in first(function, *arguments).remedy


def test_what_does_not_help_is_said_not_to():
    """The operands differ by less than FP32 holds."""

    def difference(x):
        low = x.astype(BF16).astype(jnp.float32)
        return (low + 1e-9 * x) - low

    remedy = first(difference, normal(64)).remedy
    assert "FP32" not in remedy or "alone would still leave" in remedy


def test_without_a_trial_there_is_no_claim():
    fault = first(rounded_before, 1000 * normal(64), explain=False)
    assert fault.remedy == KINDS["coarse"]


def test_code_in_fp32_is_not_told_to_be_kept_in_it():
    x = np.float32([1e4, 1e4 + 1e-2, 1e4 + 2e-2])
    fault = first(lambda x: jnp.tan(x * x) + 1, x)
    assert "FP32" not in fault.remedy


@pytest.mark.parametrize("kind", sorted(IN_FP32))
def test_advice_for_fp32_does_not_speak_of_it(kind):
    assert "FP32" not in IN_FP32[kind]


def test_scales_of_numbers_and_of_rows():
    x = np.float64([[1.0, -2.0, 3.0], [1000.0, 2000.0, 127000.0]])
    whole, rows, columns = fitted(x, np.dtype(np.int8))
    assert whole.factor == 1e-3
    assert whole.lost == 0.5
    assert rows.lost == 0
    assert rows.axes == (1,)
    assert columns.axes == (0,)


def test_numbers_that_vanish_in_fp32_too_are_no_remedy():
    """Their norm is next to nothing, so that an error in L2 would not tell."""

    def tails(x, w):
        z = x @ w
        return jnp.log(0.5 * (1 - jax.lax.erf(z)))

    z = np.linspace(0, 6, 64, dtype=np.float32)[:, None] * np.ones(16, np.float32)
    fault = first(tails, z, np.full((16, 4), 1 / 16, np.float32), policy="bf16")
    assert fault.kind == "cancellation"
    assert "FP32 alone would still leave" in fault.remedy


def test_a_rounding_to_integers_is_not_told_to_be_kept_in_fp32():
    """Squares over many powers of ten, of which no linear scale is right."""

    def codes(v):
        return jnp.round(v / v.max() * 255).astype(jnp.uint8).astype(jnp.float32)

    v = np.exp(8 * normal(256)).astype(np.float32)
    assert first(codes, v).remedy == UNSCALED


def test_a_host_is_not_called_for_a_trial():
    heard = []

    def told(x):
        io_callback(lambda x: heard.append(1), None, x)
        return jnp.exp(x.astype(jnp.float16))

    policy = Policy(callbacks="host")
    fault = first(told, np.float32([1, 12]), policy=policy)
    assert fault.remedy == KINDS["overflow"]
    calls = len(heard)
    first(told, np.float32([1, 12]), policy=policy, explain=False)
    assert len(heard) == 2 * calls


@pytest.mark.parametrize("offset", [300, 10000])
def test_trials_and_draws_do_not_show_values_to_the_host_again(offset):
    """Draws are made of a result that is a little wrong, trials of every fault."""
    seen, x = [], offset + normal(64, 64)

    def variance(x):
        found = jnp.mean(x * x) - jnp.mean(x) ** 2
        jax.debug.callback(seen.append, found)
        return found

    for explain in (True, False):
        seen.clear()
        report = compare(variance, policy="fp32", explain=explain)(x)
        assert report.verdict is not None
        [wrong] = report.verdict.wrong
        assert (wrong.relative_l2 < 0.35) == (offset == 300)
        assert len(seen) == 5  # one for every lane of the first walk


def loss_of_rounded(x):
    low = (x.astype(BF16).astype(jnp.float32) - 1.0).astype(BF16)
    return jnp.log(low).astype(jnp.float32)


def loss_of_overflow(x):
    total = jnp.exp(x.astype(jnp.float16)).astype(jnp.float32)
    return jnp.log((1.0 / total).astype(BF16)).astype(jnp.float32)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (loss_of_overflow, np.float32([1.0, 12.0, 3.0])),
        (jax.jit(jax.vmap(loss_of_overflow)), np.float32([[1.0, 12.0], [2.0, 3.0]])),
        (loss_of_rounded, np.float32([1.001, 1.5, 2.0])),
    ],
)
def test_an_op_that_is_right_on_exact_operands_needs_no_other_format(function, x):
    """Its operand was made wrong by an earlier op; FP32 would not change the result."""
    faults = compare(function, policy="fp32")(x).faults
    (log,) = (f for f in faults if f.record.op.endswith("log"))
    assert "with the reference's operands, no number is Inf or NaN" in log.evidence
    assert "FP32" not in log.remedy
    assert log.remedy
