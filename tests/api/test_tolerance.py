"""`tolerance`: every legal run is inside, a term that is missing is outside."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from typer.testing import CliRunner

import neuronjax as nj
from neuronjax.cli import app
from neuronjax.errors import InvalidProgramError, UnimplementedError, UnsupportedError
from tests.arrays import normal

SIZE = 4096


def dot(a, b):
    return a @ b


def loss(p, x, y):
    hidden = jax.nn.gelu(x @ p["a"] + p["b"])
    return -jnp.mean((jax.nn.log_softmax(hidden @ p["c"]) * y).sum(-1))


def layer_norm(x, gain):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5) * gain


def attention(q, k, v):
    scores = jnp.where(jnp.tril(jnp.ones((16, 16), bool)), q @ k.T / 4.0, -jnp.inf)
    return jax.nn.softmax(scores) @ v


def recurrent(w, x):
    def step(state, row):
        state = jnp.tanh(state @ w + row)
        return state, state

    return lax.scan(step, jnp.zeros((4, 16)), x)


def embedded(table, rows):
    return jax.grad(lambda e: jnp.sum(jnp.tanh(e[rows]) ** 2))(table)


def chosen(x):
    warm = jnp.exp(x)
    return jnp.sort(warm), jnp.argsort(warm), lax.top_k(warm, 3), warm.argmax(-1)


def stepped(x):
    return jnp.floor(x * 3), x % 0.7, jnp.sign(jnp.sin(x)), (x * 5).astype(jnp.int32)


def running(x):
    return jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(jnp.sin(x)), jnp.prod(x, 1)


def windows(x):
    shape = ((1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    warm = jnp.exp(x)
    means = lax.reduce_window(warm, 0.0, lax.add, *shape)
    return means, lax.reduce_window(warm, -jnp.inf, lax.max, *shape)


def convolved(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME")


_LAYERS = {
    "a": normal(32, 64) / 6,
    "b": normal(64, seed=1),
    "c": normal(64, 10, seed=2) / 8,
}
PROGRAMS = {
    "loss": (
        jax.value_and_grad(loss),
        (_LAYERS, normal(16, 32, seed=3), np.eye(10, dtype=np.float32)[[1] * 16]),
    ),
    "layer norm": (layer_norm, (normal(8, 64), normal(64))),
    "attention": (attention, tuple(normal(16, 16, seed=n) for n in range(3))),
    "recurrent": (recurrent, (normal(16, 16) / 4, normal(12, 4, 16))),
    "embedded": (embedded, (normal(50, 8), np.arange(64) % 50)),
    "chosen": (chosen, (normal(4, 32),)),
    "stepped": (stepped, (normal(16, 8),)),
    "running": (running, (normal(16, 8),)),
    "windows": (windows, (normal(1, 8, 8, 3),)),
    "convolved": (convolved, (normal(2, 3, 8, 8), normal(4, 3, 3, 3))),
}
#: What is inside the bounds of one policy.
LEGAL = {
    "fp32": [
        nj.Policy(auto_cast="none", accumulation="sequential"),
        nj.Policy(auto_cast="none", accumulation="host"),
        nj.Policy(auto_cast="none", fp32_model="fp32_4pass"),
        nj.Policy(auto_cast="none", transcendentals="scalar_engine"),
    ],
    "bf16": ["bf16"],
    "fp8": ["fp8"],
}


@pytest.mark.slow_except(
    "layer norm-bf16",
    "embedded-fp8",
    "stepped-fp8",
    "windows-fp8",
)
@pytest.mark.parametrize("policy", LEGAL)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_legal_is_inside(name, policy):
    function, arguments = PROGRAMS[name]
    allowed = nj.tolerance(function, policy=policy, samples=0)(*arguments)
    for other in LEGAL[policy]:
        checked = allowed.check(nj.jit(function, policy=other)(*arguments))
        assert checked, f"{other}\n{checked}"


@pytest.mark.slow_cases("mxfp4")
@pytest.mark.parametrize("policy", ["mxfp8", "mxfp4"])
def test_blocks_are_inside(policy):
    function, arguments = PROGRAMS["attention"]
    options = dict(target="trn3", policy=policy)
    allowed = nj.tolerance(function, **options)(*arguments)
    assert allowed.allows(nj.jit(function, **options)(*arguments))
    assert np.isfinite(allowed.atol).all()


@pytest.mark.slow
def test_rounding_by_chance_and_bf16_psum_are_inside():
    function, arguments = PROGRAMS["layer norm"]
    chance = nj.Policy(auto_cast="all", auto_cast_type="bf16", rounding="stochastic")
    allowed = nj.tolerance(function, policy=chance)(*arguments)
    for seed in range(3):
        run = nj.jit(function, policy=chance).with_rounding_seed(seed)
        assert allowed.allows(run(*arguments))
    a, b = normal(8, 512), normal(512, 8, seed=1)
    narrow = dict(
        target="trn3",
        policy=nj.Policy(
            auto_cast="matmult", auto_cast_type="bf16", psum_dtype="bfloat16"
        ),
    )
    assert nj.tolerance(dot, **narrow)(a, b).allows(nj.jit(dot, **narrow)(a, b))


# -- what is outside -------------------------------------------------------------------


@pytest.mark.parametrize("order", ["sequential", "reversed", "pairs", "shuffled"])
def test_one_dropped_term_of_4096_is_outside_and_no_order_is(order):
    """By hand: BF16 inputs, products and sums in FP32 in an order of its own."""
    a = normal(SIZE, dtype=ml_dtypes.bfloat16)
    b = normal(SIZE, seed=1, dtype=ml_dtypes.bfloat16)
    terms = a.astype(np.float32) * b.astype(np.float32)
    whole = lambda x, y: jnp.vdot(x, y, preferred_element_type=jnp.float32)  # noqa: E731
    allowed = nj.tolerance(whole, policy="bf16")(a, b)
    ordered = {
        "sequential": terms,
        "reversed": terms[::-1],
        "pairs": terms.reshape(2, -1).T.reshape(-1),
        "shuffled": np.random.default_rng(2).permutation(terms),
    }[order]
    assert allowed.allows(np.cumsum(ordered, dtype=np.float32)[-1])
    dropped = [n for n in range(0, SIZE, 64) if abs(terms[n]) > allowed.atol]
    assert len(dropped) > 60
    for n in dropped:
        rest = np.delete(ordered, np.flatnonzero(ordered == terms[n])[0])
        assert not allowed.allows(np.cumsum(rest, dtype=np.float32)[-1])


def test_a_dropped_row_shows_in_bf16_results_too():
    a = normal(4, SIZE, dtype=ml_dtypes.bfloat16)
    b = normal(SIZE, 64, seed=1, dtype=ml_dtypes.bfloat16)
    allowed = nj.tolerance(dot, policy="bf16")(a, b)
    run = nj.jit(dot, policy="bf16")
    assert allowed.allows(run(a, b))
    b[777] = 0
    checked = allowed.check(run(a, b))
    assert not checked
    assert checked.worst.judged.refused > 128
    assert len(checked.worst.indices) == checked.worst.judged.refused
    assert (checked.worst.excess > 0).all()
    assert "elements outside" in str(checked)
    assert max(map(len, str(checked).splitlines())) <= 80


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_a_dropped_row_of_an_fp8_matmul_is_outside(target):
    """The operands are FP32: the casts are made, not bounded."""
    a, b = normal(4, 1024), normal(1024, 64, seed=1)
    options = dict(target=target, policy="fp8")
    allowed = nj.tolerance(dot, **options)(a, b)
    assert allowed.allows(nj.jit(dot, **options)(a, b))
    a[:, 600] = 0
    checked = allowed.check(nj.jit(dot, **options)(a, b))
    assert checked.worst.judged.refused > 200


# -- what is deep ----------------------------------------------------------------------


def deep(layers, x):
    """Residual blocks, normed, in the dtype of the arguments."""
    for up, down in layers:
        normed = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        x = x + jax.nn.gelu(normed @ up) @ down
    return x.astype(jnp.float32)


def blocks(count=4, width=16, dtype=np.float32):
    shapes = ((width, 4 * width), (4 * width, width))
    return [
        tuple(
            normal(*shape, seed=10 * n + m, dtype=dtype) / dtype(shape[0] ** 0.5)
            for m, shape in enumerate(shapes)
        )
        for n in range(count)
    ]


@pytest.mark.slow
def test_slopes_alone_know_nothing_of_a_deep_network():
    narrow = ml_dtypes.bfloat16
    arguments = blocks(6, dtype=narrow), normal(8, 16, dtype=narrow)
    wide = nj.tolerance(deep, samples=0)(*arguments)
    sharp = nj.tolerance(deep)(*arguments)
    assert np.isfinite(sharp.atol).all()
    assert np.isposinf(wide.atol).all()
    assert np.median(sharp.atol) < 0.3
    assert sharp.allows(nj.jit(deep)(*arguments))
    np.testing.assert_array_equal(wide.expected, sharp.expected)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "step"), [("fp32", 64), ("bf16", 16), ("fp8", 2)])
def test_deep_networks_are_inside_and_their_bugs_are_not(policy, step):
    """Of FP32 one row of 64 shows, of FP8 a half: so much do its roundings hide."""
    layers, x = blocks(), normal(8, 16)
    allowed = nj.tolerance(deep, policy=policy)(layers, x)
    variants = [policy, *(LEGAL[policy] if policy == "fp32" else [])]
    for other in variants:
        checked = allowed.check(nj.jit(deep, policy=other)(layers, x))
        assert checked, f"{other}\n{checked}"
    dropped = [(up.copy(), down.copy()) for up, down in layers]
    dropped[0][1][::step] = 0
    assert not allowed.allows(nj.jit(deep, policy=policy)(dropped, x))


def test_sampled_bounds_are_the_same_in_every_call():
    arguments = blocks(2), normal(4, 16)
    first, second = (
        nj.tolerance(deep, policy="bf16", samples=4)(*arguments) for _ in range(2)
    )
    np.testing.assert_array_equal(first.atol, second.atol)


@pytest.mark.slow_cases("recurrent")
@pytest.mark.parametrize("name", ["attention", "recurrent", "stepped"])
def test_sampled_bounds_hold_what_slopes_hold(name):
    """Samples for programs that would not need them."""
    function, arguments = PROGRAMS[name]
    allowed = nj.tolerance(function, policy="bf16", samples=32)(*arguments)
    checked = allowed.check(nj.jit(function, policy="bf16")(*arguments))
    assert checked, str(checked)


# -- the result ------------------------------------------------------------------------


def test_it_serves_numpy_and_names_the_worst():
    arguments = normal(8, 64), normal(64)
    allowed = nj.tolerance(layer_norm, policy="fp32")(*arguments)
    found = np.array(nj.jit(layer_norm, policy="fp32")(*arguments))
    np.testing.assert_allclose(found, allowed.expected, atol=allowed.atol, rtol=0)
    found[3, 5] += 1.0
    checked = allowed.check(found)
    assert not checked
    worst = checked.worst
    assert worst.index == (3, 5)
    assert worst.indices.tolist() == [[3, 5]]
    assert worst.excess == pytest.approx([1.0], rel=1e-2)
    assert worst.value == pytest.approx(worst.expected + 1.0, abs=1e-4)
    assert worst.path == "the result"
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(found, allowed.expected, atol=allowed.atol, rtol=0)


def test_outputs_keep_their_tree():
    function, arguments = PROGRAMS["loss"]
    allowed = nj.tolerance(function, policy="fp32")(*arguments)
    value, grads = allowed.expected
    assert value.dtype == np.float64
    assert set(grads) == {"a", "b", "c"}
    assert allowed.atol[1]["a"].shape == (32, 64)
    assert [o.path for o in allowed.outputs] == ["0", "1/a", "1/b", "1/c"]
    assert max(map(len, str(allowed).splitlines())) <= 80


def test_inf_and_nan_have_names():
    def function(x):
        return jnp.log(x), x * 1e30 * 1e30

    x = np.asarray([-1.0, 0.0, 1.0], np.float32)
    allowed = nj.tolerance(function, policy="fp32")(x)
    logs, large = allowed.outputs
    assert np.isnan(logs.expected[0])
    assert np.isneginf(logs.expected[1])
    assert np.isposinf(large.atol[[0, 2]]).all()  # may overflow: anything is legal
    good = np.asarray([np.nan, -np.inf, 0.0]), np.asarray([-np.inf, 0.0, np.inf])
    assert allowed.allows(good)
    bad = np.asarray([0.0, -np.inf, np.inf]), good[1]
    checked = allowed.check(bad)
    assert not checked
    assert checked.outputs[0].judged.non_finite == 2
    assert np.isposinf(checked.outputs[0].excess).all()


def test_integers_in_doubt_are_unknown():
    def function(x):
        return jnp.argmax(jnp.exp(x)), jnp.argmax(x)

    close, apart = nj.tolerance(function)(
        np.asarray([1.0, 1.0 + 2e-7], np.float32)
    ).atol
    assert np.isposinf(close)
    assert apart == 0


@pytest.mark.slow
def test_a_lowered_program_keeps_its_policy():
    a, b = normal(8, 16), normal(16, 8, seed=1)
    lowered = nj.jit(dot, policy="bf16", target="trn1").lower(a, b)
    allowed = nj.tolerance(lowered)(a, b)
    assert allowed.target == "trn1"
    assert allowed.allows(nj.jit(dot, policy="bf16")(a, b))
    assert not allowed.allows(nj.jit(dot, policy="fp32")(a, b))
    with pytest.raises(
        InvalidProgramError, match=r"give float32\[8,16\], float32\[16,8\]"
    ):
        nj.tolerance(lowered)(a)
    key = jax.random.key(0)
    drawing = nj.jit(lambda k: jax.random.uniform(k, (3,))).lower(key)
    assert not nj.tolerance(drawing)(key).atol.any()


def test_an_export_drops_what_it_does_not_read():
    def function(p, unused, x):
        return {"y": jnp.tanh(x @ p["w"])}

    arguments = {"w": normal(8, 8)}, normal(3), normal(4, 8)
    types = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arguments)
    saved = jax.export.export(jax.jit(function), platforms=["cpu"])(*types)
    program = nj.load(bytes(saved.serialize()))
    allowed = nj.tolerance(program)(*arguments)
    assert set(allowed.expected) == {"y"}
    assert allowed.allows(program.compile()(*arguments))
    with pytest.raises(InvalidProgramError, match="saved structure"):
        nj.tolerance(program)(*arguments[:2])


# -- errors ----------------------------------------------------------------------------


def test_an_op_without_a_rule_is_named_with_its_line():
    with pytest.raises(UnimplementedError) as caught:
        nj.tolerance(jnp.linalg.cholesky)(np.eye(4, dtype=np.float32))
    assert "cholesky" in str(caught.value)
    assert caught.value.remedy


def test_a_loop_that_nobody_can_count_is_refused():
    def function(x):
        return lax.while_loop(lambda v: jnp.exp(v) < 2.0, lambda v: v + 0.1, x)

    edge = np.float32(np.log(2.0))
    with pytest.raises(UnsupportedError, match="how often a loop runs") as caught:
        nj.tolerance(function)(edge)
    assert "test_tolerance.py" in (caught.value.location or "")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"functions": "exact"}, "no table"),
        ({"failure": 2.0}, "failure is"),
        ({"policy": "fp9"}, "fp9"),
        ({"target": "trn9"}, "trn9"),
    ],
)
def test_bad_options_are_named(options, what):
    with pytest.raises(InvalidProgramError, match=what):
        nj.tolerance(dot, **options)


def test_complex_numbers_are_refused():
    with pytest.raises(UnsupportedError, match="complex"):
        nj.tolerance(lambda x: jnp.real(x * 1j))(np.ones(3, np.float32))


def test_outputs_of_another_program_are_refused():
    allowed = nj.tolerance(dot)(normal(2, 3), normal(3, 4))
    with pytest.raises(InvalidProgramError, match="shape"):
        allowed.check(np.zeros((4, 2)))
    with pytest.raises(InvalidProgramError, match="2 outputs"):
        allowed.check((np.zeros((2, 4)), 1))


@pytest.mark.slow
def test_the_command_prints_the_table(tmp_path):
    a, b = normal(8, 16), normal(16, 8, seed=1)
    path = tmp_path / "model.mlir"
    path.write_text(nj.jit(dot).lower(a, b).as_text())
    run = CliRunner().invoke(app, ["tolerance", str(path), "--policy", "bf16"])
    assert run.exit_code == 0
    assert "policy bf16 (matmuls in BF16)" in run.output
    run = CliRunner().invoke(app, ["tolerance", str(path), "--json"])
    [output] = json.loads(run.output)["outputs"]
    assert output["shape"] == [8, 8]
    assert output["unknown"] == 0


def test_the_power_of_bounds_is_the_share_that_is_refused():
    """And where zeros are legal too, it decides nothing."""
    a, b = normal(16, 64, seed=1), normal(64, 16, seed=2)
    legal = nj.tolerance(dot, policy="fp32")(a, b)
    [output] = legal.outputs
    assert 0 < output.power < 1e-3
    assert not legal.check(output.expected * (1 + 1.5 * output.power))
    assert legal.check(output.expected * (1 + 0.5 * output.power))
    cancelled = nj.tolerance(lambda x: jnp.sum(x * 1e6) - jnp.sum(x * 1e6 + 0.001))
    vague = cancelled(normal(64, seed=3))
    assert vague.outputs[0].power >= 1
    assert "undecided" in str(vague.check(vague.expected))
