"""Every write to a format obeys the policy: operation x format x overflow x rounding.

Each operation is a sum or a product of two numbers of the format, taken in its own way;
what it must be is known beforehand: beyond the largest number for half of the elements,
between two neighbours for the other half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj

Op = Callable[[jax.Array, jax.Array], jax.Array]

FORMATS = "bfloat16 float16 float8_e4m3 float8_e5m2 float8_e3m4 float8_e4m3fn".split()
#: Trainium3 has e4m3fn in place of e4m3.
ON_TRN3 = "float8_e4m3fn"
COUNT = 4096


def over_devices(collective: Callable[[jax.Array], jax.Array], out: P) -> Op:
    """Of two devices, of which the first has the one number, the second the other."""
    mesh = nj.make_mesh((2,), ("x",))
    options: dict[str, Any] = dict(mesh=mesh, in_specs=P("x"), check_vma=False)
    sharded = jax.shard_map(lambda x: collective(x[0]), out_specs=out, **options)
    return lambda a, b: sharded(jnp.stack([a, b]))


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    ones = jnp.ones((2, 1), a.dtype)
    return lax.dot(jnp.stack([a, b], 1), ones, preferred_element_type=a.dtype)[:, 0]


def convolved(a: jax.Array, b: jax.Array) -> jax.Array:
    kernel = jnp.ones((1, 1, 2), a.dtype)
    x = jnp.stack([a, b], 1)[:, None]
    options: dict[str, Any] = dict(preferred_element_type=a.dtype)
    return lax.conv_general_dilated(x, kernel, (1,), "VALID", **options)[:, 0, 0]


def wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32)


def clamped(x: jax.Array) -> jax.Array:
    return lax.clamp(-x, x, x)


def pooled(a: jax.Array, b: jax.Array) -> jax.Array:
    zero = np.zeros((), a.dtype)
    x = jnp.stack([a, b], 1)
    return lax.reduce_window(x, zero, lax.add, (1, 2), (1, 2), "VALID")[:, 0]


def by_body(a: jax.Array, b: jax.Array) -> jax.Array:
    """A reduction by a body that VectorE has no instruction for."""
    zero = np.zeros((), a.dtype)
    return lax.reduce(jnp.stack([a, b]), zero, lambda x, y: x - (-y), (0,))


SUMS: dict[str, Op] = {
    "add": lax.add,
    "subtract": lambda a, b: a - (-b),
    "convert": lambda a, b: (wide(a) + wide(b)).astype(a.dtype),
    "clamp": lambda a, b: clamped(a + b),
    "reduce": lambda a, b: lax.reduce_sum(jnp.stack([a, b]), (0,)),
    "reduce by a body": by_body,
    "cumulative sum": lambda a, b: lax.cumsum(jnp.stack([a, b], 1), 1)[:, 1],
    "window": pooled,
    "scatter": lambda a, b: a.at[jnp.arange(a.size)].add(b),
    "dot": dot,
    "convolution": convolved,
    "psum": over_devices(lambda x: lax.psum(x, "x"), P()),
    "psum_scatter": over_devices(
        lambda x: lax.psum_scatter(x, "x", tiled=True), P("x")
    ),
}
PRODUCTS: dict[str, Op] = {
    "multiply": lax.mul,
    "reduce to a product": lambda a, b: lax.reduce_prod(jnp.stack([a, b]), (0,)),
    "cumulative product": lambda a, b: lax.cumprod(jnp.stack([a, b], 1), 1)[:, 1],
    "scatter a product": lambda a, b: a.at[jnp.arange(a.size)].multiply(b),
    "outer product": lambda a, b: lax.dot_general(
        a[:, None], b[:, None], (((1,), (1,)), ((0,), (0,)))
    ),
}


def numbers(dtype: np.dtype) -> tuple[float, float]:
    """The largest and the distance from 1 to the next."""
    info = ml_dtypes.finfo(dtype)
    return float(info.max), float(info.eps)


def operands(dtype: np.dtype, too_large: tuple, between: tuple) -> list[np.ndarray]:
    halves = zip(too_large, between, strict=True)
    return [np.repeat(np.array(h), COUNT // 2).astype(dtype) for h in halves]


def faults(
    got: np.ndarray, low: float, step: float, share: float, policy: nj.Policy
) -> str:
    """What is wrong with a result that must be `low` and that share of a step."""
    beyond, between = np.split(got.astype(np.float64), 2)
    largest, _ = numbers(got.dtype)
    if policy.overflow == "saturate":
        if (beyond != largest).any():
            return f"overflows to {beyond[0]}"
    elif np.isfinite(beyond).any():
        return f"saturates at {beyond[0]}"
    if not np.isin(between, [low, low + step]).all():
        return f"rounds {low} + {share} x {step} to {between[0]}"
    up = np.mean(between != low)
    if policy.rounding == "stochastic" and abs(up - share) > 0.05:
        return f"rounds up {up} of {low} + {share} x {step}"
    if policy.rounding == "rne" and up not in (0, 1):
        return f"rounds up {up} of equal numbers"
    return ""


def results(dtype: np.dtype, **options: Any) -> dict[str, jax.Array]:
    largest, step = numbers(dtype)
    sums = operands(dtype, (largest, largest), (1, step / 4))
    products = operands(dtype, (largest, 2), (1 + step, 1.5))

    def program(a: Any, b: Any, c: Any, d: Any) -> dict[str, jax.Array]:
        found = {name: op(a, b) for name, op in SUMS.items()}
        found |= {name: op(c, d) for name, op in PRODUCTS.items()}
        return {name: x.reshape(-1) for name, x in found.items()}

    return nj.jit(program, **options)(*sums, *products)


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["rne", "stochastic"])
@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_operation(name, overflow, rounding):
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    policy = nj.Policy(overflow=overflow, rounding=rounding)
    found = results(dtype, policy=policy, target="trn3" if name == ON_TRN3 else "trn2")
    _, step = numbers(dtype)
    wanted = {name: (1, 1 / 4) for name in SUMS} | {
        name: (1.5 + step, 1 / 2) for name in PRODUCTS
    }
    wrong = {
        op: fault
        for op, (low, share) in wanted.items()
        if (fault := faults(np.asarray(found[op]), low, step, share, policy))
    }
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float8_e4m3", "bfloat16"])
def test_op_by_op(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    policy = nj.Policy(overflow="saturate", rounding="stochastic")
    compiled = results(dtype, policy=policy)
    with jax.disable_jit():
        one_by_one = results(dtype, policy=policy)
    for op, x in compiled.items():
        assert np.asarray(x).tobytes() == np.asarray(one_by_one[op]).tobytes(), op


@pytest.mark.parametrize(("overflow", "wanted"), [("ieee", np.inf), ("saturate", None)])
def test_sums_in_psum(overflow, wanted):
    """Of two tiles, each of the largest number."""
    x = np.full((1, 256), 0.0, ml_dtypes.bfloat16)
    x[0, [0, 128]] = largest = float(ml_dtypes.finfo(x.dtype).max)
    policy = nj.Policy(psum_dtype="bfloat16", overflow=overflow)
    f = nj.jit(lambda a, b: a @ b, policy=policy, target="trn3")
    got = f(x, np.ones((256, 3), x.dtype))
    assert np.asarray(got, np.float64).tolist() == [[wanted or largest] * 3]


@pytest.mark.parametrize(("overflow", "wanted"), [("ieee", np.inf), ("saturate", 240)])
def test_iota(overflow, wanted):
    policy = nj.Policy(overflow=overflow)
    got = nj.jit(lambda: lax.iota(jnp.float8_e4m3, 300), policy=policy)()
    assert float(got[-1]) == wanted


@pytest.mark.parametrize(
    ("source", "target"),
    [("int32", "bfloat16"), ("float16", "bfloat16"), ("float8_e4m3", "float8_e5m2")],
)
def test_casts_that_round_are_stochastic(source, target):
    """Whatever the widths: 257 and 1.125 lie between two numbers of the target."""
    x = 257 if source == "int32" else 1 + 2**-3 if "8" in source else 1 + 2**-8
    dtypes = [
        np.dtype(getattr(ml_dtypes, name, None) or name) for name in (source, target)
    ]
    policy = nj.Policy(rounding="stochastic")
    f = nj.jit(lambda x: x.astype(dtypes[1]), policy=policy)
    up = np.mean(np.asarray(f(np.full(COUNT, x, dtypes[0])), np.float64) > float(x))
    assert abs(up - 0.5) < 0.05
