"""What is left to chance is no fault: signs, ties and sums that should be zero."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from neuronjax.api.compare import compare
from neuronjax.api.jit import jit
from neuronjax.diagnostics.faults.draws import DRAWS, with_draws
from neuronjax.diagnostics.faults.perturbation import perturbed
from neuronjax.diagnostics.faults.shares import Seen, share_of
from neuronjax.diagnostics.op_records import MOVING
from tests.arrays import normal

ADAM = optax.adam(1e-3)


def step_of(loss):
    """Return a step of Adam."""

    def step(params, state, *batch):
        updates, state = ADAM.update(jax.grad(loss)(params, *batch), state)
        return optax.apply_updates(params, updates), state

    return step


def test_every_draw_moves_otherwise_by_at_most_a_roundoff():
    x = normal(64).astype(np.float64)
    draws = [perturbed(x, 2.0**-9, draw) for draw in range(DRAWS)]
    for draw in draws:
        assert np.all(np.abs(draw - x) <= 2.0**-9 * np.abs(x))
    assert len({draw.tobytes() for draw in draws}) == DRAWS


def test_results_in_doubt_have_the_error_of_all_draws():
    reference = np.ones(4)
    seen = Seen(np.dtype("float32"), reference, np.full(4, 1.5, "f"), (reference,))
    off = [reference + n / 10 for n in range(DRAWS)]

    def draw(number):
        return [seen._replace(perturbed=(off[number],))] * 2

    first, second = with_draws([seen, seen], [1], draw)
    assert first.perturbed == seen.perturbed
    assert len(second.perturbed) == DRAWS
    expected = np.sqrt(np.mean(np.square([n / 10 for n in range(DRAWS)])))
    assert share_of(second, 2.0**-24).data_error == pytest.approx(expected)


def attention_loss(p, x, y):
    scores = (x @ p["q"]) @ (x @ p["k"] + p["bias"]).T / 4
    return jnp.mean((jax.nn.softmax(scores) @ (x @ p["v"]) - y) ** 2)


@pytest.mark.slow_cases("fp32")
@pytest.mark.parametrize("policy", ["fp32", "bf16"])
def test_the_bias_of_keys_has_no_gradient_at_any_step(policy):
    """Its gradient is rounding, of which Adam makes steps."""
    params = {k: normal(16, 16, seed=n, scale=0.25) for n, k in enumerate("qkv")}
    params["bias"] = np.zeros(16, np.float32)
    step, state = step_of(attention_loss), ADAM.init(params)
    for seed in (10, 20, 30):
        batch = normal(32, 16, seed=seed), normal(32, 16, seed=seed + 1)
        report = compare(step, policy=policy, explain=False)(params, state, *batch)
        assert report.faults == (), str(report)
        params, state = jit(step, policy=policy)(params, state, *batch)


def test_steps_of_rounding_are_no_fault_of_a_state_without_room_for_them():
    """A normalized step is large for FP32's rounding, and tiny for float64's."""
    params = {k: normal(16, 16, seed=n, scale=0.25) for n, k in enumerate("qkv")}
    params["bias"] = normal(16, seed=4)

    def step(params, *batch):
        grads = jax.grad(attention_loss)(params, *batch)
        step_of_one = lambda w, g: w - 0.01 * g / jnp.sqrt(g * g + 1e-16)  # noqa: E731
        return jax.tree.map(step_of_one, params, grads)

    batch = normal(32, 16, seed=10), normal(32, 16, seed=11)
    report = compare(step, policy="fp32", explain=False)(params, *batch)
    assert report.faults == (), str(report)


def mlp_loss(p, x, y):
    return jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) @ p["v"] - y) ** 2)


@pytest.mark.slow_except("0")
@pytest.mark.parametrize("seed", [0, 4, 5])
def test_a_sign_that_flips_in_adams_first_step_is_no_fault(seed):
    """One of 256 leaves that begin at zero goes the other way."""
    keys = jax.random.split(jax.random.key(seed), 4)
    params = {
        "w": jax.random.normal(keys[0], (32, 256)) / 6,
        "b": jnp.zeros(256),
        "v": jax.random.normal(keys[1], (256, 4)) / 16,
    }
    batch = jax.random.normal(keys[2], (64, 32)), jax.random.normal(keys[3], (64, 4))
    asked = compare(step_of(mlp_loss), policy="bf16", explain=False)
    report = asked(params, ADAM.init(params), *batch)
    assert report.faults == (), str(report)


def test_a_first_step_that_is_wrong_is_told():
    """A gradient that vanishes in FP16 leaves parameters at zero."""

    def loss(p, x):
        small = (x @ p["w"]).astype(jnp.float16) * jnp.float16(1e-4)
        return jnp.sum((small * jnp.float16(1e-4)).astype(jnp.float32))

    params, x = {"w": jnp.zeros((8, 4))}, normal(16, 8)
    step = step_of(loss)
    report = compare(step, policy="fp32", explain=False)(params, ADAM.init(params), x)
    assert report.faults


def scale_of(amax, scale):
    """As Flax does for FP8."""
    found = (448.0 / amax) / 2.0
    found = jnp.where(amax > 0.0, found, scale)
    return jnp.where(jnp.isfinite(amax), found, scale)


def test_an_inf_that_a_choice_leaves_out_is_no_fault():
    report = compare(scale_of, policy="bf16")(jnp.zeros(4), jnp.ones(4))
    assert report.faults == (), str(report)


def test_an_inf_of_which_zeros_are_made_is_a_fault():
    def scaled(amax, x):
        return x / (448.0 / amax)

    report = compare(scaled, policy="bf16")(jnp.zeros(4), jnp.ones(4))
    assert [fault.kind for fault in report.faults] == ["singular"]


def bucket(distance):
    """As T5 does with relative positions."""
    large = jnp.log(distance.astype(jnp.float32) / 8) / np.log(16.0) * 8
    return 8 + large.astype(jnp.int32)


def test_floats_beside_a_whole_number_may_become_either():
    """The bucket of 16 and 32 is a whole number but for FP32's rounding."""
    table = normal(32, 4)

    def embedded(distance):
        return jnp.asarray(table)[bucket(distance)]

    distance = np.array([8, 16, 32, 64, 100], np.int32)
    report = compare(embedded, policy="fp32")(distance)
    assert report.faults == (), str(report)


def test_zeros_of_a_softmax_are_not_at_fault():
    """Logits of hundreds in BF16 are, whose exponential amplifies their rounding."""
    width, heads, tokens = 64, 4, 64
    params = {k: normal(width, width, seed=n) for n, k in enumerate("qkvo")}

    def loss(p, x, y):
        q, k, v = ((x @ p[c]).reshape(tokens, heads, -1) for c in "qkv")
        scores = jnp.einsum("ihd,jhd->hij", q, k)
        mixed = jnp.einsum("hij,jhd->ihd", jax.nn.softmax(scores), v)
        return jnp.mean((mixed.reshape(tokens, width) @ p["o"] - y) ** 2)

    batch = normal(tokens, width, seed=8), normal(tokens, width, seed=9)
    report = compare(jax.grad(loss), policy="bf16", explain=False)(params, *batch)
    assert report.faults
    assert {fault.kind for fault in report.faults} <= {"coarse", "cancellation"}


def test_what_moves_numbers_amplifies_no_error():
    """A slice drops the large numbers, beside which the error was small."""

    def spectrum(x):
        turns = jnp.arange(64.0)[:, None] * jnp.arange(64.0) * np.float32(np.pi / 64)
        return ((x + 1e6) @ jnp.cos(turns))[:, 1:] * 2

    report = compare(spectrum, policy="fp32", explain=False)(normal(8, 64))
    assert report.faults
    assert not {fault.record.op for fault in report.faults} & MOVING


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 6])
def test_few_elements_behind_ordinary_roundings_to_8_bits_are_chance(seed):
    """A scale has six elements, whose errors another draw of the same roundings makes
    elsewhere; no op on their way costs what 8 bits have."""

    def squares(layers, x):
        def loss(layers):
            h = x
            for w, scale in layers:
                h = h @ w
                h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5) * scale
                h = jnp.maximum(h, 0)
            return jnp.sum(h * h * x)

        return jax.tree.map(jnp.square, jax.grad(loss)(layers))

    keys = jax.random.split(jax.random.key(seed), 8)
    layers = [(jax.random.normal(k, (6, 6)), jnp.ones(6)) for k in keys[:4]]
    x = jax.random.normal(keys[7], (4, 6))
    assert compare(squares, policy="fp8")(layers, x).faults == ()


def gradients_of_the_best(heads, x, y):
    def loss(heads):
        losses = jnp.stack([jnp.mean((x @ w - y) ** 2) for w in heads])
        return losses[jnp.argmin(losses)]

    return jax.grad(loss)(heads)


def test_a_choice_of_nearly_equal_heads_excuses_gradients_that_should_be_zero():
    """FP8 chooses the other head, and so do some draws."""
    w = normal(32, 8, seed=102)
    heads = [w, w + 3e-3 * normal(32, 8, seed=202)]
    x = normal(64, 32, seed=2)
    y = x @ w + normal(64, 8, seed=302)
    found = jit(gradients_of_the_best, policy="fp8")(heads, x, y)
    exact = gradients_of_the_best(heads, x, y)
    assert any(e.any() != f.any() for e, f in zip(exact, found, strict=True))
    assert not compare(gradients_of_the_best, policy="fp8")(heads, x, y).faults


def surprise(x, labels):
    logits = x @ (24.7 * jnp.eye(8))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def test_a_loss_below_the_roundoff_of_its_terms_is_left_to_chance():
    """FP32 makes 0 of a loss of 1e-10, and so do perturbed data."""
    labels = np.arange(8)
    x = np.eye(8, dtype=np.float32)[labels] + 0.02 * normal(8, 8)
    loss = lambda x: surprise(x, labels).mean()  # noqa: E731
    assert float(jax.jit(loss)(x)) == 0
    assert not compare(loss, policy="mxfp8", target="trn3")(x).faults
