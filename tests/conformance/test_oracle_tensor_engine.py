"""TensorE's microscaled and sparse datapaths and its BF16 PSUM, bit for bit."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.ir.instruction_set import (
    DotDimensions,
    NcMatmul,
    NcMatmulMx,
    NcMatmulSparse,
    NcTranspose,
    Sparsify,
)
from tests.conformance import bits, instructions
from tests.oracles import (
    contraction,
    floats,
    microscaling,
    sparsity,
    tensor_engine as oracle,
)

ELEMENTS = {
    "mxfp8_e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8_e5m2": ml_dtypes.float8_e5m2,
    "mxfp4_e2m1": ml_dtypes.float4_e2m1fn,
}
DTYPES = {"fp32": np.float32, "bf16": ml_dtypes.bfloat16}
slow = pytest.mark.slow
K_LAST = DotDimensions((0,), (0,), (2,), (2,))
K_FIRST = DotDimensions((0,), (0,), (1,), (1,))


def same(got, want, what) -> None:
    """Bits, whatever NaNs they have."""
    floats.same_bits(np.asarray(got).astype(np.float32), want, what)


# ---- Microscaling.


def matmul_mx(lhs, rhs, *, psum="fp32", k_first=False):
    """The instruction on the oracle's operands, [M, K] and [N, K]."""
    arrays = [
        side.codes.view(ELEMENTS[side.format]) if part == 0 else side.scales
        for part in (0, 1)
        for side in (lhs, rhs)
    ]
    arrays[2:] = [scales.view(ml_dtypes.float8_e8m0fnu) for scales in arrays[2:]]
    if k_first:
        arrays = [a.T for a in arrays]
    shape = (lhs.codes.shape[0], rhs.codes.shape[0])
    [out] = instructions.run(
        NcMatmulMx,
        [a[None] for a in arrays],
        ((1, *shape), DTYPES[psum]),
        engine="tensor",
        dimensions=K_FIRST if k_first else K_LAST,
    )
    return out[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", oracle.BLOCK_KINDS)
def test_mx_quads(kind):
    formats = [("mxfp8_e4m3", "mxfp8_e4m3"), ("mxfp8_e5m2", "mxfp4_e2m1")]
    for seed, pair in enumerate(formats):
        blocks = oracle.adversarial_blocks(kind, (5, 9, 600), seed, formats=pair)
        got = matmul_mx(*blocks, k_first=bool(seed))
        same(got, oracle.matmul_mx(*blocks), f"{kind} {pair}")


@pytest.mark.slow
@pytest.mark.parametrize("k", oracle.RAGGED[::2])
def test_mx_ragged_tiles(k):
    blocks = oracle.adversarial_blocks("cancelling", (3, 17, k), k)
    same(matmul_mx(*blocks), oracle.matmul_mx(*blocks), f"K {k}")


@pytest.mark.slow
def test_mx_millions_of_products():
    blocks = oracle.adversarial_blocks("normal", (64, 96, 1100), 5)
    same(matmul_mx(*blocks), oracle.matmul_mx(*blocks), "64 x 96 x 1100")


@pytest.mark.slow
def test_mx_into_a_bf16_psum():
    for kind in ("normal", "cancelling", "nan"):
        blocks = oracle.adversarial_blocks(kind, (4, 6, 1300), 1)
        want = oracle.matmul_mx(*blocks, psum="bf16")
        same(matmul_mx(*blocks, psum="bf16"), want, kind)


def params(w: np.ndarray) -> dict[str, jax.Array]:
    return {"kernel": jnp.asarray(w)}


def layer(params, x):
    return x @ params["kernel"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["consecutive", "interleaved"])
@pytest.mark.parametrize("name", ["mxfp8", "mxfp4"])
@pytest.mark.parametrize("rule", ["neuron", pytest.param("ocp_floor", marks=slow)])
def test_mx_policies(name, layout, rule):
    """Activations through BF16; MXFP4 weights as a checkpoint holds them, from FP32."""
    policy = dataclasses.replace(
        nj.Policy.preset(name), mx_layout=layout, mx_scale_rule=rule
    )
    step = nj.jit(layer, target="trn3", policy=policy)
    x, w = oracle.adversarial("normal", (6, 10, 700), 2)
    lhs = oracle.quantize(
        x.astype(ml_dtypes.bfloat16), "mxfp8_e4m3", rule=rule, layout=layout
    )
    if name == "mxfp4":
        rhs = oracle.quantize(w, "mxfp4_e2m1", rule="ocp_floor", layout=layout)
    else:
        narrow = w.astype(ml_dtypes.bfloat16)
        rhs = oracle.quantize(narrow, "mxfp8_e4m3", rule=rule, layout=layout)
    out = bits.same_both_ways(step, params(w.T), jnp.asarray(x))
    same(out, oracle.matmul_mx(lhs, rhs), f"{name} {layout} {rule}")


@pytest.mark.slow
def test_scaled_matmul_is_one_instruction():
    """`jax.nn.scaled_matmul`, [B, M, K] and [B, N, K], alone and in a program."""
    lhs, rhs = oracle.adversarial_blocks("cancelling", (5, 7, 288), 3)
    element = ml_dtypes.float8_e4m3fn
    arrays = [
        jnp.asarray(a)[None]
        for a in (
            lhs.codes.view(element),
            rhs.codes.view(element),
            lhs.scales.view(ml_dtypes.float8_e8m0fnu),
            rhs.scales.view(ml_dtypes.float8_e8m0fnu),
        )
    ]
    step = nj.jit(lambda *a: (jax.nn.scaled_matmul(*a), 2.0), target="trn3")
    out, _ = bits.same_both_ways(step, *arrays)
    same(out[0], oracle.matmul_mx(lhs, rhs), "scaled_matmul")
    names = [i.name for i in step.lower(*arrays).instructions]
    assert names.count("nc_matmul_mx") == 1
    with pytest.raises(
        nj.UnsupportedError, match="float8_e4m3fn does not exist on trn2"
    ):
        nj.jit(lambda *a: jax.nn.scaled_matmul(*a), target="trn2")(*arrays)


@pytest.mark.slow
def test_scaled_dot_general_and_its_gradient():
    """JAX quantizes on its own; the chip multiplies, forward and backward."""
    config = jax.nn.get_scaled_dot_general_config("mxfp8")
    numbers = (((2,), (2,)), ((0,), (0,)))

    def loss(x, y):
        out = jax.nn.scaled_dot_general(x, y, numbers, configs=[config] * 3)
        return jnp.square(out.astype(jnp.float32)).sum(), out

    x, y = (
        jnp.asarray(a[None], jnp.bfloat16)
        for a in oracle.adversarial("normal", (32, 64, 96), 4)
    )
    gradient = jax.value_and_grad(loss, (0, 1), has_aux=True)
    step = nj.jit(gradient, target="trn3", policy="fp32")
    (_, out), grads = bits.same_both_ways(step, x, y)
    names = [i.name for i in step.lower(x, y).instructions]
    assert names.count("nc_matmul_mx") == 3
    exact = jnp.einsum("bmk,bnk->bmn", *(a.astype(jnp.float32) for a in (x, y)))
    close = bits.relative_errors((out.astype(jnp.float32),), (exact,))
    assert max(close.values()) < 0.05
    assert all(jnp.isfinite(g.astype(jnp.float32)).all() for g in grads)


# ---- Structured sparsity.


def compressed(w, name):
    """Values and tags of [M, K] along K by the instruction, checked."""
    n, m = map(int, name.split(":"))
    values, tags = sparsity.sparsify(w, n, m)
    shape = (1, *values.shape)
    got = instructions.run(
        Sparsify,
        [w[None]],
        (shape, w.dtype),
        (shape, np.uint8),
        engine="offline",
        axis=2,
        pattern=name,
    )
    np.testing.assert_array_equal(got[0][0], values)
    np.testing.assert_array_equal(got[1][0], tags)
    return values, tags


def matmul_sparse(values, tags, moving, name, *, psum="fp32", stationary="lhs"):
    shape = (1, values.shape[0], moving.shape[0])
    if stationary == "rhs":
        shape = (1, shape[2], shape[1])
    [out] = instructions.run(
        NcMatmulSparse,
        [values[None], tags[None], moving[None]],
        (shape, DTYPES[psum]),
        engine="tensor",
        dimensions=K_LAST,
        stationary=stationary,
        pattern=name,
    )
    return out[0] if stationary == "lhs" else out[0].T


PATTERNS = ("4:16", "4:12", "4:8", "2:8", "2:4", "1:4", "1:2")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [p if p in ("4:16", "1:2") else pytest.param(p, marks=slow) for p in PATTERNS],
)
def test_sparse_patterns(name):
    n, m = map(int, name.split(":"))
    shape = (6, 9, 600)
    w, x = (
        floats.round_to(a, "bf16") for a in oracle.adversarial("cancelling", shape, m)
    )
    values, tags = compressed(w, name)
    want = oracle.matmul_sparse(values, tags, x, n, m)
    side = "rhs" if n == 2 else "lhs"
    same(matmul_sparse(values, tags, x, name, stationary=side), want, f"{name} {side}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", oracle.KINDS)
def test_sparse_special_values(kind):
    """Inf and NaN of moving rows that no tag selects take no part."""
    w, x = (
        floats.round_to(a, "bf16") for a in oracle.adversarial(kind, (6, 9, 700), 1)
    )
    values, tags = compressed(w, "4:16")
    psum = "bf16" if kind == "inf" else "fp32"
    want = oracle.matmul_sparse(values, tags, x, 4, 16, psum=psum)
    same(matmul_sparse(values, tags, x, "4:16", psum=psum), want, f"{kind} {psum}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "type_", ["bf16", *(pytest.param(t, marks=slow) for t in ("fp16", "tf32"))]
)
def test_sparse_policy(type_):
    policy = nj.Policy(auto_cast="matmult", auto_cast_type=type_, sparsity="4:16")
    step = nj.jit(layer, target="trn2", policy=policy)
    x, w = oracle.adversarial("normal", (6, 10, 700), 2)
    narrow_x, narrow_w = (floats.round_to(a, type_) for a in (x, w))
    values, tags = sparsity.sparsify(narrow_w, 4, 16)
    want = oracle.matmul_sparse(values, tags, narrow_x, 4, 16).T
    same(bits.same_both_ways(step, params(w.T), jnp.asarray(x)), want, type_)


def test_what_is_taken_for_a_weight():
    """An argument inside a pytree, or the one that a rule names."""

    def program(params, x, y):
        return params["kernel"].T @ x, x.T @ y

    x = jnp.ones((32, 4))
    arguments = ({"kernel": jnp.ones((32, 8))}, x, x)
    fields = dict(auto_cast="matmult", sparsity="4:16")

    def stationary(policy, *args):
        lowered = nj.jit(program, target="trn2", policy=policy).lower(*args)
        found = (i for i in lowered.instructions if i.name.startswith("nc_matmul"))
        return [getattr(i, "stationary", "dense") for i in found]

    assert stationary(nj.Policy(**fields), *arguments) == ["lhs", "rhs"]
    rule = nj.Rule(param="^x$", sparsity="4:16")
    by_name = nj.Policy(auto_cast="matmult", rules=(rule,))
    assert stationary(by_name, *arguments) == ["rhs", "lhs"]


@pytest.mark.slow
def test_gradients_of_sparse_layers_are_dense():
    policy = nj.Policy(auto_cast="matmult", sparsity="4:16")
    x, w = (jnp.asarray(a) for a in oracle.adversarial("normal", (6, 10, 64), 2))
    loss = lambda p, x: jnp.square(layer(p, x)).sum()  # noqa: E731
    step = nj.jit(jax.grad(loss, (0, 1)), target="trn2", policy=policy)
    bits.same_both_ways(step, params(w.T), x)
    names = [i.name for i in step.lower(params(w.T), x).instructions]
    assert names.count("nc_matmul_sparse") == 1
    assert names.count("nc_matmul") == 2


def test_chips_and_formats_without_a_sparse_matmul():
    x, w = (jnp.asarray(a) for a in oracle.adversarial("normal", (6, 10, 64), 2))
    cases = [
        ("trn1", "bf16", nj.UnsupportedError, "trn1 has no structured sparsity"),
        ("trn3", "fp8", nj.UnsupportedError, "FP8 operands on trn3"),
        ("trn2", None, nj.InvalidProgramError, "FP32 operands"),
    ]
    for target, type_, error, message in cases:
        cast = dict(auto_cast="matmult", auto_cast_type=type_) if type_ else {}
        policy = nj.Policy(sparsity="2:4", **cast)
        with pytest.raises(error, match=message):
            nj.jit(layer, target=target, policy=policy)(params(w.T), x)


# ---- PSUM in BF16.


def matmul(lhs, rhs, *, rounding="rne", **fields):
    """[M, K] and [N, K] of a format into a BF16 PSUM."""
    [out] = instructions.run(
        NcMatmul,
        [lhs[None], rhs[None]],
        ((1, lhs.shape[0], rhs.shape[0]), ml_dtypes.bfloat16),
        engine="tensor",
        dimensions=K_LAST,
        rounding=rounding,
        ordinal=1,
        **fields,
    )
    return out[0]


@pytest.mark.slow_cases("normal", "cancelling")
@pytest.mark.parametrize("kind", oracle.KINDS)
def test_bf16_psum(kind):
    x, w = (
        floats.round_to(a, "bf16") for a in oracle.adversarial(kind, (5, 9, 600), 3)
    )
    narrow = [a.astype(ml_dtypes.bfloat16) for a in (x, w)]
    array = contraction.Array(lhs="bf16", rhs="bf16", psum="bf16")
    want = contraction.dot_general(x, w, (((1,), (1,)), ((), ())), array)
    same(matmul(*narrow), want, kind)


@pytest.mark.slow
def test_bf16_psum_in_double_row_mode():
    x, w = (
        floats.round_to(a, "e4m3") for a in oracle.adversarial("normal", (5, 9, 700), 3)
    )
    narrow = [a.astype(ml_dtypes.float8_e4m3) for a in (x, w)]
    array = contraction.Array(lhs="e4m3", rhs="e4m3", double_row=True, psum="bf16")
    want = contraction.dot_general(x, w, (((1,), (1,)), ((), ())), array)
    same(matmul(*narrow, k_tile=256, rows_per_cell=2), want, "double row")


@pytest.mark.slow
def test_stochastic_bf16_psum_is_unbiased():
    """Each sum rounds to a neighbour, on average to itself."""
    rows, k = 4096, 256
    x = np.full((rows, k), 1.0, ml_dtypes.bfloat16)
    w = np.zeros((1, k), ml_dtypes.bfloat16)
    w[0, 0], w[0, 130] = 256, 0.5  # 256.5: a quarter of the way from 256 to 258
    out = matmul(x, w, rounding="stochastic").astype(np.float64)[:, 0]
    assert set(out) == {256.0, 258.0}
    share = (out == 258).mean()
    assert abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / rows)


@pytest.mark.slow
def test_stochastic_bf16_psum_of_a_policy():
    policy = nj.Policy(
        auto_cast="matmult", psum_dtype="bfloat16", rounding="stochastic", seed=3
    )
    step = nj.jit(layer, target="trn3", policy=policy).with_rounding_seed(5)
    x, w = oracle.adversarial("normal", (6, 10, 700), 2)
    out = bits.same_both_ways(step, params(w.T), jnp.asarray(x))
    np.testing.assert_allclose(out, x @ w.T, rtol=0.2, atol=1)


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["rne", "stochastic"])
def test_a_step_of_two_layers_into_bf16_psum(rounding):
    """Forward and backward: PSUM's roundings meet what comes before and after."""
    policy = nj.Policy(
        auto_cast="matmult", psum_dtype="bfloat16", rounding=rounding, seed=3
    )
    rng = np.random.default_rng(1)
    shapes = ((6, 300), (300, 160), (160, 8))
    x, w1, w2 = (rng.standard_normal(s, np.float32) for s in shapes)

    def loss(params, x):
        hidden = jnp.tanh(x @ params["w1"] / 16)  # K of 300: three tiles
        return jnp.mean((hidden @ params["w2"] - 1) ** 2)

    step = nj.jit(jax.value_and_grad(loss), target="trn3", policy=policy)
    step = step.with_rounding_seed(5)
    bits.same_both_ways(step, {"w1": w1, "w2": w2}, jnp.asarray(x))


def test_other_chips_have_no_bf16_psum():
    policy = nj.Policy(auto_cast="matmult", psum_dtype="bfloat16")
    with pytest.raises(nj.UnsupportedError, match="PSUM of trn2 adds in float32 only"):
        nj.jit(layer, target="trn2", policy=policy)(params(np.eye(4)), jnp.eye(4))


# ---- Transposes.


@pytest.mark.slow_except("float32")
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3"])
def test_the_exact_transpose_moves_bits(name):
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    word = np.dtype(f"uint{8 * dtype.itemsize}")
    codes = np.random.default_rng(0).integers(0, 1 << 8, (2, 5, 7 * dtype.itemsize))
    x = codes.astype(np.uint8).view(word).view(dtype)
    result = dtype if dtype.itemsize > 1 else np.dtype(np.uint16)
    shape = (2, x.shape[2], 5)
    [out] = instructions.run(NcTranspose, [x], (shape, result), engine="tensor")
    moved = x.view(word).swapaxes(1, 2)
    np.testing.assert_array_equal(out.view(f"u{result.itemsize}"), moved)


@pytest.mark.slow
def test_the_transpose_of_the_first_array_is_a_matmul():
    """Finite numbers come through; a NaN and an Inf spoil their row."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    fields = dict(engine="tensor", exact=False)
    [out] = instructions.run(NcTranspose, [x], ((4, 3), np.float32), **fields)
    np.testing.assert_array_equal(out, x.T)
    x[1, 2] = np.inf
    [out] = instructions.run(NcTranspose, [x], ((4, 3), np.float32), **fields)
    assert np.isnan(out[2, [0, 2]]).all()
    assert np.isinf(out[2, 1])
    np.testing.assert_array_equal(np.delete(out, 2, 0), np.delete(x.T, 2, 0))


def test_mx_scale_rules_are_the_oracles():
    """Rules by name, so that a policy's words mean the same on both sides."""
    from neuronjax.policy.values import LEGAL

    assert set(LEGAL["mx_scale_rule"]) == set(microscaling.RULES)


def test_sparse_microscaling_is_refused_and_not_dense():
    policy = nj.Policy(auto_cast="matmult", auto_cast_type="mxfp8", sparsity="4:16")
    step = nj.jit(layer, target="trn3", policy=policy)
    x, w = jnp.ones((8, 64)), jnp.ones((64, 16))
    with pytest.raises(nj.UnsupportedError, match="microscaling blocks"):
        step.lower(params(w), x)
