"""Contractions that are no matmul: values, engines and prices of products."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from tests.oracles import reduction


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def engines(function: Callable[..., Any], *args: Any, **options: Any) -> set[str]:
    """Return the names of the instructions of a function."""
    instructions = nj.jit(function, **options).lower(*args).compile().instructions
    return {type(i).__name__ for i in instructions}


# ---- Without contraction.

#: A dot without contraction, the shapes of its operands, and the product that it is.
PRODUCTS: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Any]]] = {
    "ab,ab->ab": (((6, 40), (6, 40)), lambda a, b: a * b),
    "i,j->ij": (((40,), (12,)), lambda a, b: a[:, None] * b[None, :]),
    "bt,k->btk": (((2, 9), (16,)), lambda a, b: a[:, :, None] * b),
    "abc,ac->cab": (
        ((3, 4, 5), (3, 5)),
        lambda a, b: jnp.transpose(a * b[:, None], (2, 0, 1)),
    ),
    "ij,jk->ik": (((7, 1), (1, 9)), lambda a, b: a * b),
    "bij,bjk->bik": (((4, 7, 1), (4, 1, 3)), lambda a, b: a * b),
    "hls,hls->lsh": (
        ((2, 5, 6), (2, 5, 6)),
        lambda a, b: jnp.transpose(a * b, (1, 2, 0)),
    ),
}


@pytest.mark.slow_except(
    "ab,ab->ab-bf16",
    "i,j->ij-tf32",
    "ij,jk->ik-fp8",
    "hls,hls->lsh-tf32",
)
@pytest.mark.parametrize("policy", ["fp32", "bf16", "fp8", "tf32"])
@pytest.mark.parametrize("text", PRODUCTS)
def test_a_dot_without_contraction_is_the_product(text: str, policy: str) -> None:
    """Its bits are those of `a * b`, whatever the policy casts for matmuls."""
    shapes, product = PRODUCTS[text]
    a, b = (normal(i, *shape) for i, shape in enumerate(shapes))
    dot = lambda a, b: jnp.einsum(text, a, b)  # noqa: E731
    assert (nj.jit(dot, policy=policy)(a, b) == np.asarray(product(a, b))).all()
    assert "NcMatmul" not in engines(dot, a, b, policy=policy)


@pytest.mark.slow_except("wider-float16", "wider-float8_e4m3", "wider-bool")
@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float8_e4m3", "int8", "bool"]
)
@pytest.mark.parametrize("wanted", [None, "wider"])
def test_a_product_is_rounded_once(dtype: str, wanted: str | None) -> None:
    """The product of narrow operands is exact in FP32, or in the result's dtype."""
    numbers = np.arange(-9, 9).reshape(3, 6)
    a, b = jnp.asarray(numbers, dtype), jnp.asarray(numbers[::-1] * 7 % 11, dtype)
    is_float = jnp.issubdtype(dtype, jnp.floating)
    preferred: Any = wanted and ("float32" if is_float else "int32")
    if dtype == "bool" and wanted:
        pytest.skip("XLA has no dot of booleans with integers")
    numbers_of: Any = (((), ()), ((0, 1), (0, 1)))
    dot = lambda a, b: lax.dot_general(  # noqa: E731
        a, b, numbers_of, preferred_element_type=preferred
    )
    exact = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    found = nj.jit(dot)(a, b)
    assert found.dtype == (preferred or dtype)
    assert (found == jnp.asarray(exact, found.dtype)).all()


def test_positions_are_not_cast() -> None:
    """Rotary angles by `einsum`: BF16 does not hold 257, and FP8 not 17."""
    positions = jnp.array([[250, 257, 1023, 4097], [0, 3, 2**20 + 1, 2**22 + 3]])
    frequencies = jnp.array([1.0, 0.5, 2.0**-20])

    def angles(positions: jax.Array, frequencies: jax.Array) -> jax.Array:
        return jnp.einsum("BT,k->BTk", positions.astype(jnp.float32), frequencies)

    exact = np.asarray(positions)[..., None] * np.asarray(frequencies, np.float64)
    for policy, target in (("bf16", "trn2"), ("fp8", "trn2"), ("mxfp8", "trn3")):
        found = nj.jit(angles, policy=policy, target=target)(positions, frequencies)
        assert (np.asarray(found, np.float64) == exact).all(), policy


def _grad(f: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda x, w: jnp.tanh(f(x, w)).sum(), argnums=(0, 1))


def _scan(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, w: lax.scan(lambda c, row: (f(c, row[0]) + row, row), x, x[None])


def _shard_map(f: Callable[..., Any]) -> Callable[..., Any]:
    options: Any = dict(in_specs=(P("d"), P()), out_specs=P("d"))
    return jax.shard_map(f, mesh=nj.make_mesh((4,), ("d",)), **options)


@pytest.mark.slow_cases("_grad", "_shard_map", "_scan")
@pytest.mark.parametrize(
    "around", [_grad, lambda f: jax.vmap(f, (0, None)), _scan, _shard_map]
)
def test_inside_of_other_programs(around: Callable[..., Any]) -> None:
    """The bits are those of the product, compiled and op by op."""
    x, w = normal(0, 8, 16), normal(1, 16)
    einsum = lambda x, w: jnp.einsum("...i,i->...i", x, w)  # noqa: E731
    emulated = nj.jit(around(einsum), policy="bf16")
    expected = nj.jit(around(lambda x, w: x * w), policy="bf16")(x, w)
    with jax.disable_jit():
        by_op = emulated(x, w)
    for found in (emulated(x, w), by_op):
        assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), found, expected))


# ---- Vectors, and tiny matmuls.


@pytest.mark.slow_cases("bxk,bky->bxy-shapes3", "abc,abc->ab-shapes0", "i,i->-shapes1")
@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("abc,abc->ab", ((2, 3, 700), (2, 3, 700))),
        ("i,i->", ((1300,), (1300,))),
        ("ij,ij->", ((30, 40), (30, 40))),
        ("bxk,bky->bxy", ((3, 1, 50), (3, 50, 1))),
    ],
)
def test_a_dot_of_vectors_is_the_sum_of_products(text: str, shapes: Any) -> None:
    """FP32 products, folded in tiles of 512 as VectorE folds, against an oracle."""
    a, b = (normal(i, *shape) for i, shape in enumerate(shapes))
    dot = lambda a, b: jnp.einsum(text, a, b)  # noqa: E731
    found = nj.jit(dot, policy="bf16")(a, b)
    k = a.size // max(1, found.size)
    terms = (a.reshape(-1, k) * b.reshape(-1, k)).astype(np.float32)
    expected = reduction.reduce(terms, (1,))
    assert (np.asarray(found).ravel() == expected.ravel()).all()
    with jax.disable_jit():
        assert (nj.jit(dot, policy="bf16")(a, b) == found).all()


def _ends(dtype: str) -> tuple[int, int]:
    return np.iinfo(dtype).min, np.iinfo(dtype).max


@pytest.mark.slow_cases("int32", "bool")
@pytest.mark.parametrize("dtype", ["int32", "int8", "bool"])
def test_integers_and_booleans(dtype: str) -> None:
    """Sums wrap around, or saturate through FP32; booleans are OR of ANDs."""
    a, b = (np.random.default_rng(n).integers(-128, 128, (5, 33)) for n in (0, 1))
    a, b = a.astype(dtype), b.astype(dtype)
    dot = lambda a, b: lax.dot_general(a, b, (((1,), (1,)), ((0,), (0,))))  # noqa: E731
    wide = (a.astype(np.int64) * b.astype(np.int64)).sum(1)
    clipped = np.clip(wide, *((0, 1) if dtype == "bool" else _ends(dtype)))
    for path, expected in (
        ("exact", wide > 0 if dtype == "bool" else wide),
        ("fp32", clipped),
    ):
        found = nj.jit(dot, policy=f"integer_path={path}")(a, b)
        assert (found == expected.astype(dtype)).all(), path


@pytest.mark.slow
def test_a_large_batch_of_tiny_matmuls_is_vectors() -> None:
    """Many 3 x 3 matrices: TensorE would load its array for each of them."""
    a, b = normal(0, 200, 3, 3), normal(1, 200, 3, 3)
    assert "NcMatmul" not in engines(jnp.matmul, a, b, policy="bf16")
    assert "NcMatmul" in engines(jnp.matmul, a[:20], b[:20], policy="bf16")
    exact = a.astype(np.float64) @ b.astype(np.float64)
    found = nj.jit(jnp.matmul, policy="bf16")(a, b)
    np.testing.assert_allclose(found, exact, atol=1e-6)


@pytest.mark.parametrize(
    ("einsum", "product", "shapes"),
    [
        ("hls,hls->hls", lambda a, b: a * b, ((24, 256, 256),) * 2),
        ("ab,cd->abcd", lambda a, b: a[..., None, None] * b, ((64, 64), (64, 64))),
        ("abch,abch->abc", lambda a, b: (a * b).sum(-1), ((2, 128, 64, 64),) * 2),
        (
            "bij,bjk->bik",
            lambda a, b: (a[..., None] * b[:, None]).sum(2),
            ((65536, 4, 4),) * 2,
        ),
    ],
)
def test_a_product_has_the_price_of_the_product(
    einsum: str, product: Callable[..., Any], shapes: Any
) -> None:
    """Prices differed by factors of 8 to 600."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    dot = nj.profile(lambda a, b: jnp.einsum(einsum, a, b), policy="bf16")(*args)
    same = nj.profile(product, policy="bf16")(*args)
    assert dot.total_seconds == pytest.approx(same.total_seconds, rel=0.05)


def test_check_counts_products_as_elements() -> None:
    """A tile of VectorE has 65,536 of them; as matmuls of 1 x 1 they were too many."""
    shape = jax.ShapeDtypeStruct((24, 1024, 1024), jnp.float32)
    report = nj.check(lambda a, b: jnp.einsum("hls,hls->hls", a, b))(shape, shape)
    assert not report.findings


# ---- What jaxlib makes of such dots.


@pytest.mark.slow_cases(
    "i,i->-shapes4-False",
    "hls,hls->hls-shapes0-False",
    "abc,abc->ab-shapes3-False",
)
@pytest.mark.parametrize(
    ("text", "shapes", "is_dot"),
    [
        ("hls,hls->hls", ((8, 16, 16), (8, 16, 16)), False),
        ("t,k->tk", ((8,), (8,)), False),
        ("ij,jk->ik", ((16, 1), (1, 32)), False),
        ("abc,abc->ab", ((8, 16, 16), (8, 16, 16)), False),
        ("i,i->", ((1024,), (1024,)), False),
        ("ij,j->i", ((64, 1024), (1024,)), True),
    ],
)
def test_what_the_algebraic_simplifier_makes(
    text: str, shapes: Any, is_dot: bool
) -> None:
    """The rule follows XLA. Where a jaxlib does otherwise, the test says so."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    operands = [np.ones(shape, np.float32) for shape in shapes]
    emulated = engines(lambda a, b: jnp.einsum(text, a, b), *operands)
    assert ("NcMatmul" in emulated) == is_dot
    compiled = jax.jit(lambda a, b: jnp.einsum(text, a, b)).lower(*args).compile()
    if bool(re.search(r" dot\(", compiled.as_text() or "")) != is_dot:
        pytest.skip(f"this jaxlib simplifies {text} otherwise")


# ---- Precision.


def _high(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, precision="high")


def _highest(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum("ij,jk->ik", a, b, precision=lax.Precision.HIGHEST)


@pytest.mark.slow_cases("_high")
@pytest.mark.parametrize("dot", [_high, _highest])
def test_a_precision_is_ignored_with_a_warning_or_obeyed(
    dot: Callable[..., Any],
) -> None:
    """A policy that casts warns once a line; `dot_precision` decides."""
    a, b = normal(0, 9, 40), normal(1, 40, 8)
    asked = dot.__name__[1:].upper()
    with pytest.warns(nj.PrecisionIgnoredWarning, match=f"{asked},"):
        cast = nj.jit(dot, policy="bf16")(a, b)
    assert (cast == nj.jit(jnp.dot, policy="bf16")(a, b)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = nj.jit(dot, policy="bf16,dot_precision=ignored")(a, b)
        obeyed = nj.jit(dot, policy="bf16,dot_precision=obeyed")(a, b)
        rule = nj.Rule(op="dot", dot_precision="obeyed")
        by_rule = nj.jit(dot, policy=nj.Policy(auto_cast="matmult", rules=(rule,)))
        assert (by_rule(a, b) == obeyed).all()
        nj.jit(dot, policy="fp32")(a, b)
    assert (said == cast).all()
    assert (obeyed == nj.jit(jnp.dot, policy="fp32")(a, b)).all()


def test_check_says_that_a_precision_may_be_ignored() -> None:
    """A finding under a policy that casts, and none without."""
    a, b = normal(0, 9, 40), normal(1, 40, 8)
    dot = lambda a, b: jnp.dot(a, b, precision="highest")  # noqa: E731
    found = {
        policy: [f.rule for f in nj.check(dot, policy=policy)(a, b).findings]
        for policy in (
            "bf16,dot_precision=ignored",
            "fp32",
            "bf16,dot_precision=obeyed",
        )
    }
    assert "dot-precision" in found.pop("bf16,dot_precision=ignored")
    assert not any("dot-precision" in rules for rules in found.values())
