"""Whole programs with complex64: movement, regions, contractions, transformations.

What they compute is compared with JAX's own complex128 on the same inputs, movement bit
by bit, and contractions with the four real ones they consist of. What functions and
arithmetic compute is the business of `test_complex`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from tests.conformance.bits import assert_same, same_both_ways
from tests.conformance.test_complex import GRID, parts


def random(seed: int, *shape: int) -> np.ndarray:
    return parts(*np.random.default_rng(seed).normal(size=(2, *shape)))


def wide(tree: Any) -> Any:
    """The leaves in complex128 and float64."""

    def widened(x: Any) -> np.ndarray:
        x = np.asarray(x)
        wide = np.complex128 if np.iscomplexobj(x) else np.float64
        return x if x.dtype.kind in "iu" else x.astype(wide)

    return jax.tree.map(widened, tree)


def close(got: Any, exact: Any, tolerance: float = 1e-5) -> None:
    """Every leaf, relative to its largest element."""
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(exact), strict=True):
        g, e = wide(np.asarray(g)), wide(np.asarray(e))
        assert g.shape == e.shape
        assert np.iscomplexobj(g) == np.iscomplexobj(e)
        scale = np.max(abs(e), initial=1e-30)
        assert np.max(abs(g - e), initial=0) <= tolerance * scale


def natively(function: Callable[..., Any], *args: Any) -> Any:
    """By JAX, in complex128."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(function)(*wide(args)))


def moved(z, w, i):
    row = lax.dynamic_slice(z, (i, 0), (1, 3))
    return dict(
        broadcast=jnp.broadcast_to(z, (2, 4, 3)),
        reshaped=z.reshape(2, 6),
        transposed=z.T,
        sliced=z[1:4:2, ::-1],
        padded=lax.pad(z, jnp.complex64(1 - 2j), ((1, 2, 1), (0, -1, 0))),
        joined=jnp.concatenate([z, w], 1),
        row=row,
        updated=lax.dynamic_update_slice(w, row, (i, 0)),
        gathered=jnp.take(z, jnp.array([3, 0, 0, 2]), 0),
        assigned=z.at[jnp.array([1, 3])].set(w[:2]),
        chosen=jnp.where(w.real > 0, z, w),
        selected=lax.select(i > 0, z, w),
        made=lax.complex(z.imag, w.real),
        rolled=jnp.roll(z, 1, 0),
        kept=lax.optimization_barrier((z, i))[0],
        equal=z == z.at[0, 0].set(2j),
        unequal=z != w,
        real=z.real,
        imag=w.imag,
        conjugate=jnp.conj(z),
        turned=-z,
    )


@pytest.mark.slow
def test_movement_changes_no_bit():
    args = random(10, 4, 3), random(11, 4, 3), np.int32(2)
    assert_same(nj.jit(moved)(*args), jax.jit(moved)(*args))


@pytest.mark.slow
def test_conversions():
    def program(x, n, z):
        return dict(
            from_float=x.astype(jnp.complex64),
            from_integer=n.astype(jnp.complex64),
            from_bfloat16=x.astype(jnp.bfloat16).astype(jnp.complex64),
            to_float=z.real.astype(jnp.float32),
            again=z.astype(jnp.complex64),
            from_boolean=(x > 0).astype(jnp.complex64),
            same_bits=lax.bitcast_convert_type(z, jnp.complex64),
        )

    args = np.float32([1.5, -0.0, 3]), np.int32([1, -2, 3]), random(12, 3)
    got = same_both_ways(nj.jit(program), *args)
    assert_same(got, jax.jit(program)(*args))


@pytest.mark.slow
def test_iota():
    def program():
        return lax.iota(jnp.float32, 4).astype(jnp.complex64) + lax.broadcasted_iota(
            jnp.complex64, (2, 4), 1
        )

    expected = np.broadcast_to(2 * np.arange(4), (2, 4)).astype(np.complex64)
    assert_same(same_both_ways(nj.jit(program)), expected)


@pytest.mark.slow
def test_constants_keep_their_bits():
    odd = np.array([0x7FA00001, 0x80000000, 0x00000001, 0xFF800000], np.uint32)
    numbers = parts(odd.view(np.float32), odd[::-1].view(np.float32))
    same = np.full((2, 3), parts(np.float32(-0.0), np.float32(2.5)))
    long = parts(np.arange(300.0), -np.arange(300.0))

    def program(x):
        found = [jnp.asarray(c) for c in (numbers, same, long)]
        return [
            lax.bitcast_convert_type(p(c), jnp.uint32)
            for c in found
            for p in (lax.real, lax.imag)
        ], x

    got, _ = same_both_ways(nj.jit(program), np.float32(1))
    expected = [
        np.ascontiguousarray(p).view(np.uint32)
        for c in (numbers, same, long)
        for p in (c.real, c.imag)
    ]
    quiet = np.uint32(1 << 22)  # NaNs are quiet on some way through the host
    for g, e in zip(got, expected, strict=True):
        nan = (e & 0x7FFFFFFF) > 0x7F800000
        assert_same(
            np.where(nan, np.asarray(g) | quiet, g), np.where(nan, e | quiet, e)
        )


def test_numbers_pass_unchanged():
    z = GRID[~np.isnan(GRID)].reshape(6, 6)
    got = same_both_ways(nj.jit(lambda z: z), z)
    assert_same(got, z)
    got = np.asarray(nj.jit(lambda z: z)(parts([np.nan, -0.0], [-0.0, np.nan])))
    assert np.isnan(got.real[0])
    assert np.signbit(got.imag[0])
    assert np.signbit(got.real[1])
    assert np.isnan(got.imag[1])


def reduced(z):
    return dict(
        windows=lax.reduce_window(
            z, z.dtype.type(1j), lax.add, (2, 2), (1, 2), "VALID"
        ),
        sum=z.sum(),
        rows=z.sum(1),
        mean=z.mean(0),
        product=z.prod(1),
        largest=z.max(0),
        least=z.min(0),
        running=jnp.cumsum(z, 0),
        products=jnp.cumprod(z, 0),
        ordered=jnp.sort(z, 0),
        order=jnp.argsort(z[:, 0]),
        norm=jnp.linalg.norm(z),
        any=jnp.any(z),
    )


@pytest.mark.slow
def test_reductions_and_sorting():
    z = random(14, 7, 5)
    z[3] = z[2].real + 1j * z[1].imag  # equal real parts
    got = nj.jit(reduced)(z)
    close(got, natively(reduced, z))
    assert_same(np.asarray(got["ordered"]), np.sort(z, 0))


@pytest.mark.slow
def test_a_sum_is_two_sums():
    z = random(15, 3, 1030)
    total = np.asarray(nj.jit(lambda z: z.sum(1))(z))
    for part in (np.real, np.imag):
        assert_same(part(total).copy(), nj.jit(lambda x: x.sum(1))(part(z).copy()))


def scattered(z, w):
    rows = jnp.array([0, 2, 0])
    return dict(
        added=z.at[rows].add(w),
        multiplied=z.at[rows].multiply(w),
        divided=z.at[rows].divide(w),
    )


@pytest.mark.slow
def test_scatter():
    args = random(16, 4, 2), random(17, 3, 2)
    got = nj.jit(scattered)(*args)
    close(got, natively(scattered, *args))


# ---- Contractions.


def four(product: Callable[..., Any]) -> Callable[..., Any]:
    """The same contraction of four real arrays."""

    def program(a, b, c, d):
        return product(a, c) - product(b, d), product(a, d) + product(b, c)

    return program


def attention(z, w):
    return jnp.einsum("bik,bkj->bij", z, w)


def convolution(z, w):
    return lax.conv_general_dilated(z, w, (1, 2), "SAME")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("product", "shapes", "policy"),
    [
        (jnp.matmul, ((5, 200), (200, 4)), "fp32"),
        (attention, ((2, 3, 130), (2, 130, 4)), "fp8"),
        (convolution, ((2, 3, 6, 6), (4, 3, 3, 3)), "bf16"),
    ],
    ids=["matmul", "einsum", "convolution"],
)
def test_contractions_are_four_real_ones(product, shapes, policy):
    z, w = random(18, *shapes[0]), random(19, *shapes[1])
    got = np.asarray(nj.jit(product, policy=policy)(z, w))
    real = (part.copy() for x in (z, w) for part in (x.real, x.imag))
    re, im = nj.jit(four(product), policy=policy)(*real)
    assert_same(got.real.copy(), re)
    assert_same(got.imag.copy(), im)
    tolerance = {"fp32": 1e-5, "bf16": 1e-2, "fp8": 0.1}[policy]
    close(got, natively(product, z, w), tolerance)


@pytest.mark.slow
def test_complex_numbers_beside_a_bfloat16_matmul():
    def program(z, x, w):
        y = x @ w
        turned = z * jnp.exp(1j * y.astype(jnp.float32))
        return turned, y

    rng = np.random.default_rng(20)
    x, w = (rng.normal(size=(4, 4)).astype(jnp.bfloat16) for _ in range(2))
    z = random(21, 4, 4)
    got = nj.jit(program, policy="bf16")(z, x, w)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    close(got[1], exact, 1e-2)
    close(got[0], z * np.exp(1j * np.asarray(got[1]).astype(np.float64)), 1e-5)


@pytest.mark.slow
def test_rules_find_complex_parameters():
    def program(params, x):
        return x @ params["layer"]["kernel"]

    params, x = {"layer": {"kernel": random(22, 64, 3)}}, random(23, 2, 64)
    plain, cast = (
        np.asarray(nj.jit(program, policy=p)(params, x)) for p in ("fp32", "bf16")
    )
    for pattern in ("layer/kernel", "layer/kernel.real$"):
        rule = nj.Rule(param=pattern, auto_cast="matmult", auto_cast_type="bf16")
        policy = nj.Policy(auto_cast="none", rules=(rule,))
        got = np.asarray(nj.jit(program, policy=policy)(params, x))
        if pattern == "layer/kernel":
            assert_same(got, cast)
        else:
            assert not np.array_equal(got, cast)
            assert not np.array_equal(got, plain)
    rule = nj.Rule(param="no such", auto_cast="none")
    with pytest.raises(nj.InvalidProgramError, match=r"kernel\.imag"):
        nj.jit(program, policy=nj.Policy(rules=(rule,)))(params, x)


# ---- Control flow, pytrees and transformations.


def controlled(z, n):
    def step(carry, x):
        total, count = carry
        total = jax.jit(lambda a, b: a * b + 1j)(total, x)
        return (total, count + 1), total.real

    scanned = lax.scan(step, (z[0], n), z)
    looped = lax.while_loop(lambda c: jnp.abs(c) < 10, lambda c: c * (1 + 1j), z[1])
    chosen = lax.cond(n > 1, lambda w: w * 2, lambda w: jnp.conj(w) * z[2], z[0])
    switched = lax.switch(n, [lambda: z[0], lambda: z[1] + z[2], lambda: z[3]])
    return scanned, looped, chosen, switched


@pytest.mark.slow
def test_control_flow_with_complex_carries():
    program, z = nj.jit(controlled), random(24, 6)
    for n in (np.int32(0), np.int32(2)):
        close(program(z, n), natively(controlled, z, n))


def test_calls_and_composites():
    @jax.jit
    def inner(z, x):
        return z * x, jnp.abs(z)

    rotate = lax.composite(lambda z: z * 1j, name="user.rotate")

    def program(z, x):
        a, b = inner(z, x)
        c, d = inner(a, b)
        return rotate(c), d

    args = random(25, 5), np.float32([1, 2, 3, 4, 5])
    got = nj.jit(program)(*args)
    close(got, natively(program, *args))


@pytest.mark.slow
def test_pytrees_and_mixed_arguments():
    def program(state, scale, *, shift):
        return {
            "state": jax.tree.map(lambda z: z * scale + shift, state),
            "steps": jnp.int32(3),
            "none": (),
            "modulus": jnp.abs(state["a"]),
        }

    state = {"a": random(26, 3), "b": [random(27, 2, 2), np.float32([1, 2])]}
    call = nj.jit(program)
    args, kwargs = (state, np.float32(2)), {"shift": np.complex64(1j)}
    got = call(*args, **kwargs)
    assert got["steps"] == 3
    close(got["state"]["a"], state["a"] * 2 + 1j)
    close(got["state"]["b"][1], np.array([2 + 1j, 4 + 1j]))
    assert_same(jax.jit(call)(*args, **kwargs), got)
    compiled = call.lower(*args, **kwargs).compile()
    assert_same(compiled(*args, **kwargs), got)


def loss(params, z):
    hidden = jnp.square(z @ params["w"] + params["b"])
    return jnp.sum(jnp.abs(hidden) ** 2) + jnp.real(jnp.sum(hidden * params["s"]))


def loss_arguments():
    params = {"w": random(28, 3, 4), "b": random(29, 4), "s": np.float32([1, 2, 3, 4])}
    return params, random(30, 2, 3)


@pytest.mark.slow
def test_gradients_of_a_loss():
    params, z = loss_arguments()
    got = jax.grad(nj.jit(loss), argnums=(0, 1))(params, z)
    close(got, natively(jax.grad(loss, argnums=(0, 1)), params, z), 1e-4)


@pytest.mark.slow
def test_gradients_of_integers_are_float0():
    def program(z, n):
        return jnp.sum(jnp.abs(z * n))

    got = jax.grad(nj.jit(program), argnums=(0, 1), allow_int=True)(
        random(31, 3), np.int32(2)
    )
    assert got[0].dtype == np.complex64
    assert got[1].dtype == jax.dtypes.float0


def holomorphic(z):
    return jnp.exp(z) / (z + 2)


@pytest.mark.slow
def test_holomorphic_gradients():
    z = np.complex64(0.3 - 0.7j)
    exact = natively(jax.grad(holomorphic, holomorphic=True), z)
    close(jax.grad(nj.jit(holomorphic), holomorphic=True)(z), exact)


@pytest.mark.slow
def test_holomorphic_gradients_of_gradients():
    def twice(f):
        return jax.grad(jax.grad(f, holomorphic=True), holomorphic=True)

    z = np.complex64(0.3 - 0.7j)
    close(twice(nj.jit(holomorphic))(z), natively(twice(holomorphic), z))


@pytest.mark.slow
def test_a_loss_scale_leaves_the_parts_apart():
    def energy(z):
        return jnp.sum(jnp.real(z * jnp.conj(z)))

    z = random(31, 3)
    scaled = nj.jit(energy, policy=nj.Policy(loss_scale=1024.0))
    assert_same(jax.grad(scaled)(z), jax.grad(nj.jit(energy))(z))


@pytest.mark.slow
def test_cotangents_are_cast_as_gradients():
    def program(w, x):
        return jnp.sum(jnp.abs(x @ w))

    args = random(32, 8, 4), random(33, 3, 8)
    forward, pull = jax.vjp(nj.jit(program, policy="fp8"), *args)
    close(forward, natively(program, *args), 0.1)
    got = pull(jnp.float32(1))
    exact = natively(jax.grad(program, argnums=(0, 1)), *args)
    close(got, exact, 0.3)
    assert not np.allclose(got[0], exact[0], 1e-3)


@pytest.mark.slow
def test_vmap():
    def program(z, w):
        return jnp.square(z) @ w, z.real.sum()

    z, w = random(34, 5, 3), random(35, 3, 3)
    got = jax.vmap(nj.jit(program), in_axes=(0, None))(z, w)
    close(got, natively(jax.vmap(program, in_axes=(0, None)), z, w))
    one = nj.jit(program)(z[2], w)
    assert_same(jax.tree.map(lambda x: x[2], got), one)


@pytest.mark.slow
def test_vmap_of_grad():
    params, z = loss_arguments()
    vmapped = lambda f: jax.vmap(jax.grad(f), in_axes=(None, 0))  # noqa: E731
    exact = natively(vmapped(loss), params, z[:, None])
    close(vmapped(nj.jit(loss))(params, z[:, None]), exact, 1e-4)


OP_BY_OP = {
    "moved": (moved, (random(10, 4, 3), random(11, 4, 3), np.int32(2))),
    "reduced": (reduced, (random(14, 7, 5),)),
    "scattered": (scattered, (random(16, 4, 2), random(17, 3, 2))),
    "attention": (attention, (random(18, 2, 3, 130), random(19, 2, 130, 4))),
    "convolution": (convolution, (random(18, 2, 3, 6, 6), random(19, 4, 3, 3, 3))),
    "controlled": (controlled, (random(24, 6), np.int32(1))),
    "loss": (jax.grad(loss, argnums=(0, 1)), loss_arguments()),
}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fp32", "bf16"])
@pytest.mark.parametrize("name", OP_BY_OP)
def test_compiled_is_op_by_op(name, policy):
    function, args = OP_BY_OP[name]
    emulated = nj.jit(function, policy=policy)
    got = same_both_ways(emulated, *args)
    assert_same(jax.jit(emulated)(*args), got)


# ---- What is shown, and what is refused.


def test_the_original_program_is_shown_and_its_lines_are_kept():
    z = random(36, 3)
    lowered = nj.jit(lambda z: jnp.sqrt(z) * 2).lower(z)
    assert "complex<f32>" in lowered.as_text()
    types = {b.type.dtype for i in lowered.instructions for b in i.results}
    assert np.dtype(np.complex64) not in types
    assert lowered.program.entry.body.arguments[0].type.dtype == np.complex64
    sources = {i.location.source for i in lowered.instructions}
    assert all(__file__ in source for source in sources), sources


def test_programs_without_complex_numbers_are_not_touched():
    real = nj.jit(lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x))
    assert not real.lower(np.ones(3, np.float32)).program.holds_complex()

    def inside(x):
        return lax.cond(x.sum() > 0, lambda x: lax.complex(x, x).imag, jnp.cos, x)

    assert nj.jit(inside).lower(np.ones(3, np.float32)).program.holds_complex()


@pytest.mark.parametrize("sdk", ["2.31", "2.31.1", "2.20"])
def test_earlier_compilers_have_no_complex_numbers(sdk):
    def program(x):
        return lax.complex(x, x).imag

    with pytest.raises(nj.UnsupportedError, match=r"SDK .* has no complex64") as caught:
        nj.jit(program, policy=nj.Policy(sdk=sdk))(np.ones(3, np.float32))
    assert caught.value.op == "stablehlo.complex"
    assert __file__ in (caught.value.location or "")
    assert "2.32" in (caught.value.remedy or "")
    with pytest.raises(nj.UnsupportedError, match="no complex64"):
        nj.jit(lambda z: z, policy=nj.Policy(sdk=sdk))(random(37, 2))


def test_double_precision_is_refused():
    with jax.enable_x64(True):
        with pytest.raises(nj.UnsupportedError, match=r"complex128.*\n.*complex64"):
            nj.jit(lambda z: z)(np.complex128(1j))

        def program(x):
            return lax.complex(x, x).astype(jnp.complex128).real.astype(jnp.float32)

        with pytest.raises(nj.UnsupportedError, match="complex128") as caught:
            nj.jit(program)(np.ones(3, np.float32))
    assert "complex64" in (caught.value.remedy or "")
