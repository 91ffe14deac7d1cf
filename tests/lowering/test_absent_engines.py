"""A chip that lacks engines: what others execute, and what is refused by name.

The chip is inf1, whose NeuronCore-v1 has no GpSimdE, whose TensorE takes BF16, FP16 and
INT8, and which has no CC-cores.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from neuronjax.errors import IntegersInFP32Warning, UnsupportedError
from neuronjax.hardware import INSTANCES
from neuronjax.nki.targets import chosen_target

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.standard_normal((16, 24)), jnp.float32)
BYTES = jnp.asarray(RNG.integers(-128, 128, (16, 24)), jnp.int8)
INSTANCES_OF_INF1 = [n for n, i in INSTANCES.items() if i.chip.name == "inf1"]


def layer(x):
    """Matmuls, a table-free function, a softmax and a mask."""
    hidden = jax.nn.gelu(x @ x.T) @ x
    masked = jnp.where(jnp.arange(hidden.shape[-1]) < 20, hidden, -jnp.inf)
    return jax.nn.softmax(masked) + jnp.cumsum(x, axis=-1)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["bf16", "fp16"])
def test_values_are_those_of_a_chip_with_all_engines(policy):
    ours, theirs = (nj.jit(layer, target=t, policy=policy) for t in ("inf1", "trn1"))
    np.testing.assert_array_equal(ours(X), theirs(X))


@pytest.mark.slow
def test_no_instruction_is_on_an_engine_that_is_not_there():
    compiled = nj.jit(layer, target="inf1", policy="bf16").lower(X).compile()
    engines = {i.engine for i in compiled.instructions}
    assert engines == {"tensor", "vector", "scalar", "sync", "dma"}


@pytest.mark.parametrize("target", ["inf1", *INSTANCES_OF_INF1])
def test_a_profile_has_times_of_the_engines_that_are_there(target):
    profile = nj.profile(layer, target=target, policy="bf16")(X)
    assert 0 < profile.total_seconds < 1e-2
    assert not profile.timeline.busy_seconds("gpsimd")
    assert "inf1" in str(profile)
    assert "(a projection), LNC 1, policy bf16" in str(profile)
    assert "none ran on this chip" in str(profile)


@pytest.mark.slow
def test_op_by_op_and_grad():
    step = nj.jit(layer, target="inf1", policy="bf16")
    with jax.disable_jit():
        np.testing.assert_array_equal(
            step(X), nj.jit(layer, target="inf1", policy="bf16")(X)
        )
    loss = nj.jit(lambda x: jnp.sum(layer(x) ** 2), target="inf1", policy="bf16")
    assert np.isfinite(jax.grad(loss)(X)).all()


@pytest.mark.slow
def test_compare():
    assert "inf1" in str(nj.compare(layer, target="inf1", policy="bf16")(X))
    assert "inf1" in str(nj.compare(integer_dot, target="inf1")(BYTES, BYTES.T))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("fp32", "float32 does not exist on inf1"),
        ("tf32", "tfloat32 does not exist on inf1"),
        ("fp8", "float8_e4m3 does not exist on inf1"),
        ("mxfp8", "inf1 has no microscaling"),
        ("mxfp4", "inf1 has no microscaling"),
        (
            nj.Policy(auto_cast="matmult", rounding="stochastic"),
            "inf1 has no stochastic rounding",
        ),
        (
            nj.Policy(auto_cast="matmult", sparsity="4:16"),
            "inf1 has no structured sparsity",
        ),
        (
            nj.Policy(auto_cast="matmult", psum_dtype="bfloat16"),
            "PSUM of inf1 adds in float32 only",
        ),
    ],
    ids=str,
)
def test_policies_that_are_refused(policy, message):
    with pytest.raises(UnsupportedError, match=message) as error:
        nj.jit(lambda x, w: x @ w, target="inf1", policy=policy)(X, X.T)
    assert "test_absent_engines.py" in str(error.value)
    assert "inf1" not in str(error.value).partition("a target that")[2]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (jnp.sort, "stablehlo.sort: inf1 has no GpSimdE"),
        (lambda x: x[jnp.argsort(x[0, :4])], "inf1 has no GpSimdE"),
        (lambda x: jnp.argmax(x), "inf1 has no GpSimdE"),
        (lambda x: x**1.5, "stablehlo.power: inf1 has no GpSimdE"),
        (jnp.fft.rfft, "fft: inf1 has no GpSimdE"),
        (lambda x: jax.lax.scan(lambda c, r: (c + r, c), x[0], x)[0], "control flow"),
        (lambda x: jax.lax.cond(x[0, 0] > 0, jnp.exp, jnp.abs, x), "control flow"),
    ],
)
def test_ops_that_are_refused_by_name(function, message):
    with pytest.raises(UnsupportedError, match=message) as error:
        nj.jit(function, target="inf1", policy="bf16")(X)
    assert "trn1, inf2, trn2, trn3, trn4" in str(error.value)


@pytest.mark.slow
def test_the_remedies_of_control_flow():
    def looped(x):
        return jax.lax.scan(lambda c, r: (c + r, c), x[0], x, unroll=True)[0]

    def branched(x):
        return jnp.where(x[0, 0] > 0, jnp.exp(x), jnp.abs(x))

    for function in (looped, branched):
        assert np.isfinite(nj.jit(function, target="inf1", policy="bf16")(X)).all()


@pytest.mark.slow
def test_collectives_are_refused_and_devices_are_not():
    mesh = nj.make_mesh((16,), ("dp",))

    def on_all(body):
        mapped = jax.shard_map(body, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))
        return nj.jit(mapped, target="inf1.24xlarge")(X)

    rows = on_all(lambda x: x * 2 + jax.lax.axis_index("dp"))
    np.testing.assert_array_equal(rows, X * 2 + jnp.arange(16.0)[:, None])
    with pytest.raises(UnsupportedError, match=r"all_reduce: inf1.* has no CC-cores"):
        on_all(lambda x: jax.lax.psum(x, "dp"))


def test_training_over_chips_is_refused_and_serving_is_not():
    def step(w, x):
        return w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

    w = jnp.ones((24, 8))
    options = dict(policy="bf16", steps=10)
    with pytest.raises(UnsupportedError, match=r"inf1\S* has no CC-cores"):
        nj.estimate(step, instance="inf1.24xlarge", **options)(w, X)
    served = nj.estimate(lambda x: layer(x), instance="inf1.24xlarge", **options)(X)
    assert "inf1.24xlarge (a projection)" in str(served)


@pytest.mark.parametrize("target", ["inf1", "trn2"])
def test_tf32_is_recommended_where_the_array_takes_it(target):
    w = jnp.zeros((2048, 2048))
    profile = nj.profile(lambda x, w: x @ w, target=target, policy="bf16")(w, w)
    assert ("policy='tf32'" in str(profile)) == (target == "trn2")


def test_kernels_are_refused():
    with pytest.raises(UnsupportedError, match="no kernel in NKI runs on inf1"):
        chosen_target("inf1")


# -- integers --------------------------------------------------------------------------


def integer_dot(a, b):
    return jax.lax.dot(a, b, preferred_element_type=jnp.int32)


def test_int8_is_multiplied_as_it_is():
    step = nj.jit(integer_dot, target="inf1")
    exact = np.asarray(BYTES, np.int32) @ np.asarray(BYTES.T, np.int32)
    np.testing.assert_array_equal(step(BYTES, BYTES.T), exact)
    (matmul,) = step.lower(BYTES, BYTES.T).compile().instructions
    assert (matmul.engine, matmul.passes) == ("tensor", 1)
    assert {v.type.dtype.name for v in matmul.operands} == {"int8"}


@pytest.mark.slow
def test_sums_of_int8_are_fp32():
    """1,040 products of 127 x 127 are below 2^24; 1,199 are an odd number beyond it."""
    found = {}
    for length in (1040, 1199):
        row = jnp.full((1, length), 127, jnp.int8)
        column = jnp.tile(row.T, (1, 2))
        found[length] = int(nj.jit(integer_dot, target="inf1")(row, column)[0, 0])
    assert found[1040] == 1040 * 127**2 < 2**24
    assert found[1199] != 1199 * 127**2
    assert found[1199] == pytest.approx(1199 * 127**2, rel=2**-20)


def test_int8_is_multiplied_at_twice_the_rate():
    a, b = jnp.zeros((2048, 2048), jnp.int8), jnp.zeros((2048, 2048), jnp.bfloat16)
    int8 = nj.profile(integer_dot, target="inf1")(a, a)
    bf16 = nj.profile(lambda a, b: a @ b, target="inf1")(b, b)
    ratio = bf16.timeline.busy_seconds("tensor") / int8.timeline.busy_seconds("tensor")
    assert 1.8 < ratio < 2.2


def test_wide_integers_are_multiplied_by_no_engine():
    wide = BYTES.astype(jnp.int32)
    with pytest.raises(UnsupportedError, match="float32 does not exist on inf1"):
        nj.jit(integer_dot, target="inf1")(wide, wide.T)


@pytest.mark.slow
def test_wide_integers_go_through_fp32_with_a_warning():
    numbers = jnp.asarray([2**24 + 1, 3], jnp.int32)
    step = nj.jit(lambda n: n + 2, target="inf1")
    with pytest.warns(IntegersInFP32Warning, match="exactly only up to 2\\^24"):
        found = step(numbers)
    np.testing.assert_array_equal(found, [2**24 + 2, 5])
    exact = nj.jit(
        lambda n: n + 2, target="inf1", policy=nj.Policy(integer_path="exact")
    )
    np.testing.assert_array_equal(exact(numbers), numbers + 2)


@pytest.mark.slow
def test_random_numbers_are_refused_until_integers_are_exact():
    """FP32 would make other numbers of the generator's, without a word."""

    def draw(key):
        return jax.random.normal(key, (4,))

    key = jax.random.key(0)
    with pytest.raises(nj.UnsupportedError, match="random numbers") as error:
        nj.jit(draw, target="inf1", policy="bf16")(key)
    assert "integer_path=exact" in str(error.value.remedy)
    exact = nj.jit(draw, target="inf1", policy="bf16,integer_path=exact")
    np.testing.assert_allclose(exact(key), draw(key), rtol=1e-6)
