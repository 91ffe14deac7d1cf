"""For every portability rule a program that it is about, and a near miss.

A program is a function of the arguments given, or the body of a StableHLO function
`main` where JAX has no way to write it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.policy.scopes import policy_scope

Shape = jax.ShapeDtypeStruct
Source = Callable[..., Any] | str


def f32(*shape: int) -> Shape:
    return Shape(shape, jnp.float32)


def f16(*shape: int) -> Shape:
    return Shape(shape, jnp.float16)


def i32(*shape: int) -> Shape:
    return Shape(shape, jnp.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A rule, the severity it finds, a program that breaks it and one that does not."""

    rule: str
    severity: str = "error"
    bad: Source
    good: Source
    args: tuple = (f32(8),)
    good_args: tuple | None = None
    target: str = "trn1"
    good_target: str | None = None
    sdk: str = "2.32"
    good_sdk: str | None = None
    x64: bool = False


def _loop(n: Any, x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, n, lambda i, c: c * 2 + i, x)


def _spread(number: float) -> jax.Array:
    return jnp.full((8,), number, jnp.float32)


def _turned(size: int) -> Callable[..., Any]:
    def function(turns: jax.Array) -> jax.Array:
        places = jnp.stack([jnp.arange(size), 2 * jnp.arange(size)], 1)
        with policy_scope("bf16"):
            return jnp.cos(places.astype(jnp.float32) @ turns)

    return function


def _running_sum(dtype: Any) -> Callable[..., Any]:
    def function(x: jax.Array) -> jax.Array:
        def turn(total: jax.Array, row: jax.Array) -> tuple:
            return total + row.astype(dtype), None

        return lax.scan(turn, jnp.zeros(x.shape[1:], dtype), x)[0]

    return function


def _fold(x: jax.Array, body: Callable[..., Any]) -> jax.Array:
    return lax.reduce(x, np.float32(0), body, (0,))


def _pool(x: jax.Array, **dilation: Any) -> jax.Array:
    return lax.reduce_window(x, -np.inf, lax.max, (2,), (1,), "VALID", **dilation)


def _convolve(x: jax.Array, stride: int, **dilation: Any) -> jax.Array:
    kernel = jnp.ones((1, 1, 3), x.dtype)
    return lax.conv_general_dilated(x, kernel, (stride,), [(0, 0)], **dilation)


def _cast(dtype: Any) -> Callable[[jax.Array], jax.Array]:
    return lambda x: x.astype(dtype).astype(jnp.float32)


_INT64 = "%0 = stablehlo.add %arg0, %arg0 : tensor<8xi64>"
_CHIP = "tensor<8xf32>) -> tensor<8xf32>"


def _call(name: str) -> str:
    return (
        f"func.func public @main(%arg0: {_CHIP} {{\n"
        f"  %0 = stablehlo.custom_call @{name}(%arg0) : ({_CHIP}\n"
        "  return %0 : tensor<8xf32>\n}"
    )


def _collective(dtype: str) -> str:
    return f"""
    func.func public @main(%arg0: tensor<8x{dtype}>) -> tensor<8x{dtype}> {{
      %0 = "stablehlo.all_reduce"(%arg0) <{{
        replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}}> ({{
      ^bb0(%a: tensor<{dtype}>, %b: tensor<{dtype}>):
        %1 = stablehlo.add %a, %b : tensor<{dtype}>
        stablehlo.return %1 : tensor<{dtype}>
      }}) : (tensor<8x{dtype}>) -> tensor<8x{dtype}>
      return %0 : tensor<8x{dtype}>
    }}"""


def _constant64(value: int) -> str:
    return f"""
    func.func public @main() -> tensor<i64> {{
      %0 = stablehlo.constant dense<{value}> : tensor<i64>
      return %0 : tensor<i64>
    }}"""


def _windows(operands: int) -> str:
    names = ", ".join(["%arg0"] * operands)
    starts = ", ".join(["%z"] * operands)
    arguments = ", ".join(f"%a{i}: tensor<f32>" for i in range(2 * operands))
    types = ", ".join(["tensor<8xf32>"] * operands + ["tensor<f32>"] * operands)
    results = ", ".join(["tensor<7xf32>"] * operands)
    sums = "\n".join(
        f"%s{i} = stablehlo.add %a{i}, %a{i + operands} : tensor<f32>"
        for i in range(operands)
    )
    returned = ", ".join(f"%s{i}" for i in range(operands))
    kinds = ", ".join(["tensor<f32>"] * operands)
    count = f"%0:{operands}" if operands > 1 else "%0"
    first = "%0#0" if operands > 1 else "%0"
    return f"""
    func.func public @main(%arg0: tensor<8xf32>) -> tensor<7xf32> {{
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      {count} = "stablehlo.reduce_window"({names}, {starts}) <{{
        window_dimensions = array<i64: 2>}}> ({{
      ^bb0({arguments}):
        {sums}
        stablehlo.return {returned} : {kinds}
      }}) : ({types}) -> ({results})
      return {first} : tensor<7xf32>
    }}"""


def _scan_of(trips: int) -> Callable[[jax.Array], jax.Array]:
    return lambda x: lax.fori_loop(0, trips, lambda i, c: jnp.sin(c), x)


CASES = (
    # -- control flow, reductions, sorting ---------------------------------------------
    Case(
        rule="dynamic-while",
        bad=lambda n, x: _loop(n, x),
        good=lambda n, x: _loop(5, x),
        args=(i32(), f32(8)),
    ),
    Case(
        rule="dynamic-while",
        bad=lambda x: lax.while_loop(lambda c: c.sum() < 10, lambda c: c * 2, x),
        good=lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x)[1],
    ),
    Case(
        rule="dynamic-while",
        bad=lambda x: lax.while_loop(
            lambda c: (c[0] < 9) & (c[1][0] < 1), lambda c: (c[0] + 1, c[1]), (0, x)
        ),
        good=lambda x: lax.while_loop(
            lambda c: c[0] > 0, lambda c: (c[0] - 2, c[1] * 2), (9, x)
        ),
    ),
    Case(
        rule="traced-cond",
        bad=lambda n, x: lax.cond(n > 0, jnp.sin, jnp.cos, x),
        good=lambda n, x: lax.cond(jnp.asarray(3) > 0, jnp.sin, jnp.cos, x),
        args=(i32(), f32(8)),
    ),
    Case(
        rule="variadic-reduction",
        bad=lambda x: jnp.argmax(x),
        good=lambda x: jnp.where(x == x.max(), jnp.arange(8), 8).min(),
    ),
    Case(
        rule="reduction-body",
        bad=lambda x: _fold(x, lambda a, b: a + b * b),
        good=lambda x: _fold(x, lax.add),
    ),
    Case(
        rule="reduction-body",
        severity="info",
        bad=lambda x: (x > 0).any(),
        good=lambda x: (x > 0).astype(jnp.float32).max(),
    ),
    Case(
        rule="reduction-init",
        severity="warning",
        bad=lambda x: lax.reduce(x, x[0], lax.add, (0,)),
        good=lambda x: lax.reduce(x, np.float32(3), lax.add, (0,)),
    ),
    Case(
        rule="sort-comparator",
        bad=lambda x: lax.sort((x, x), num_keys=2),
        good=lambda x: lax.sort((x, x), num_keys=1),
    ),
    Case(
        rule="topk-integer",
        bad=lambda x: lax.top_k(x, 2),
        good=lambda x: lax.top_k(x, 2),
        args=(i32(8),),
        good_args=(f32(8),),
    ),
    Case(
        rule="window-dilation",
        bad=lambda x: _pool(x, window_dilation=(2,)),
        good=lambda x: _pool(x, window_dilation=(1,)),
    ),
    Case(
        rule="window-dilation",
        bad=lambda x: _pool(x, base_dilation=(2,)),
        good=_pool,
    ),
    Case(rule="window-operands", bad=_windows(2), good=_windows(1)),
    Case(
        rule="convolution-dilations",
        bad=lambda x: _convolve(x, 1, lhs_dilation=(2,), rhs_dilation=(2,)),
        good=lambda x: _convolve(x, 1, rhs_dilation=(2,)),
        args=(f32(1, 1, 16),),
    ),
    Case(
        rule="convolution-stride",
        bad=lambda x: _convolve(x, 2, lhs_dilation=(2,)),
        good=lambda x: _convolve(x, 2, rhs_dilation=(2,)),
        args=(f32(1, 1, 16),),
    ),
    # -- dtypes ------------------------------------------------------------------------
    Case(
        rule="float64",
        bad=lambda x: x.astype(jnp.float64).sum(),
        good=lambda x: x.sum(),
        x64=True,
    ),
    Case(
        rule="complex",
        severity="warning",
        bad=lambda x: lax.complex(x, x).imag,
        good=lambda x: x,
    ),
    Case(
        rule="complex",
        bad=lambda x: lax.complex(x, x).imag,
        good=lambda x: x,
        sdk="2.31",
    ),
    Case(rule="fp8-fnuz", bad=_cast("float8_e4m3fnuz"), good=_cast("float8_e5m2")),
    Case(rule="fp8-e4m3fn", bad=_cast("float8_e4m3fn"), good=_cast(jnp.float8_e4m3)),
    Case(
        rule="fp8-e4m3fn",
        severity="warning",
        bad=_cast("float8_e4m3fn"),
        good=_cast("float8_e5m2"),
        target="trn3",
    ),
    Case(rule="fp8-e3m4", bad=_cast(jnp.float8_e3m4), good=_cast(jnp.float8_e4m3)),
    Case(
        rule="float4", bad=_cast(jnp.float4_e2m1fn), good=_cast("int8"), target="trn3"
    ),
    Case(
        rule="mx-scales",
        bad=_cast(jnp.float8_e8m0fnu),
        good=_cast(jnp.float8_e8m0fnu),
        target="trn2",
        good_target="trn3",
    ),
    Case(rule="small-integer", bad=_cast("int4"), good=_cast("int8")),
    Case(
        rule="int64",
        severity="warning",
        bad=lambda x: x.astype(jnp.int64) + 1,
        good=lambda x: jnp.arange(8) + x.shape[0],
        x64=True,
    ),
    Case(rule="int64-constant", bad=_constant64(2**40), good=_constant64(2**30)),
    Case(
        rule="fp8-overflow",
        severity="info",
        bad=_cast(jnp.float8_e4m3),
        good=lambda x: _cast(jnp.float8_e4m3)(jnp.clip(x, -240, 240)),
    ),
    Case(
        rule="round-trip",
        severity="warning",
        bad=lambda x: x.astype(jnp.bfloat16).astype(jnp.float32) + 1,
        good=lambda x: jnp.tanh(x.astype(jnp.bfloat16)).astype(jnp.float32),
    ),
    # -- integers ----------------------------------------------------------------------
    Case(
        rule="integer-fp32",
        severity="warning",
        bad=lambda n: n + (2**24 + 1),
        good=lambda n: jnp.clip(n, 0, 1000) * 1000,
        args=(i32(8),),
    ),
    Case(
        rule="integer-fp32",
        severity="info",
        bad=lambda n, x: n * n,
        good=lambda n, x: x[n],
        args=(i32(8), f32(8)),
    ),
    Case(
        rule="integer-reduction",
        severity="warning",
        bad=lambda n: n.sum(),
        good=lambda n: jnp.clip(n, 0, 255).sum(),
        args=(i32(8),),
    ),
    Case(
        rule="integer-dot",
        bad=lambda n: n @ n,
        good=lambda n: n.astype(jnp.float32) @ n.astype(jnp.float32),
        args=(i32(8, 8),),
    ),
    Case(
        rule="integer-scatter",
        bad=lambda n: n.at[jnp.array([1, 2])].add(1),
        good=lambda n: n.at[jnp.array([1, 2])].set(1),
        args=(i32(8),),
    ),
    Case(
        rule="integer-collective",
        severity="warning",
        bad=_collective("i32"),
        good=_collective("f32"),
    ),
    Case(
        rule="arithmetic-shift",
        bad=lambda n: n.astype(jnp.int8) >> 1,
        good=lambda n: n >> 1,
        args=(i32(8),),
    ),
    Case(
        rule="integer-division",
        severity="warning",
        bad=lambda n: lax.div(n, np.int32(3)),
        good=lambda n: lax.div(n, np.int32(3)),
        args=(i32(8),),
        sdk="2.29",
        good_sdk="2.30",
    ),
    Case(
        rule="integer-division",
        severity="warning",
        bad=lambda n: lax.div(n.astype(jnp.int64), np.int64(6284)),
        good=lambda n: lax.div(n.astype(jnp.int64), np.int64(4096)),
        args=(i32(8),),
        x64=True,
    ),
    Case(
        rule="float-to-int",
        severity="warning",
        bad=lambda x: x.astype(jnp.int32),
        good=lambda x: jnp.floor(x).astype(jnp.int32),
    ),
    # -- indices -----------------------------------------------------------------------
    Case(
        rule="out-of-bounds",
        bad=lambda x: x[jnp.array([1, 9])],
        good=lambda x: x[jnp.array([1, -7])],
    ),
    Case(
        rule="out-of-bounds",
        bad=lambda x: x.at[jnp.arange(9)].set(0.0),
        good=lambda x: x.at[jnp.arange(8)].set(0.0),
    ),
    Case(
        rule="out-of-bounds",
        bad=lambda x: x[jnp.arange(3), jnp.arange(3) * 2],
        good=lambda x: x[jnp.arange(3), jnp.arange(3)],
        args=(f32(8, 3),),
    ),
    Case(
        rule="index-range",
        severity="info",
        bad=lambda x, n: x[n],
        good=lambda x, n: x[jnp.clip(n, 0, 7)],
        args=(f32(8), i32(3)),
    ),
    Case(
        rule="gather-window",
        severity="warning",
        bad=lambda x, n: jax.vmap(lambda i: lax.dynamic_slice(x, (i,), (3,)))(n),
        good=lambda x, n: jax.vmap(lambda i: x[i])(n),
        args=(f32(8), i32(3)),
    ),
    Case(
        rule="update-slice-index",
        severity="info",
        bad=lambda x, n: lax.dynamic_update_slice(x, x[:2], (n,)),
        good=lambda x, n: lax.scan(lambda c, y: (c, y * 2), n, x)[1],
        args=(f32(8), i32()),
    ),
    # -- single operators --------------------------------------------------------------
    Case(
        rule="threefry",
        severity="warning",
        bad=lambda x: x + jax.random.uniform(jax.random.key(0), x.shape),
        good=lambda x: x + jax.random.uniform(jax.random.key(0, impl="rbg"), x.shape),
    ),
    Case(
        rule="randint",
        severity="warning",
        bad=lambda x: jax.random.randint(jax.random.key(0), x.shape, 0, 7),
        good=lambda x: jax.random.uniform(jax.random.key(0), x.shape),
    ),
    Case(
        rule="rng-seed",
        severity="warning",
        bad=lambda x: jax.random.uniform(jax.random.key(0, impl="rbg"), x.shape),
        good=lambda x: jax.random.uniform(jax.random.key(0), x.shape),
    ),
    Case(
        rule="power-exponent",
        severity="warning",
        bad=lambda x: x**2.5,
        good=lambda x: lax.pow(x, np.float32(3)),
    ),
    Case(
        rule="reduce-precision",
        bad=lambda x: lax.reduce_precision(x, 5, 10),
        good=_cast(jnp.float16),
    ),
    Case(
        rule="dot-algorithm",
        severity="warning",
        bad=lambda x: lax.dot(x, x, precision=lax.DotAlgorithmPreset.BF16_BF16_F32),
        good=lambda x: lax.dot(x, x, precision=lax.DotAlgorithmPreset.F32_F32_F32),
        args=(f32(8, 8),),
    ),
    Case(  # this SDK casts by default, the newest does not
        rule="dot-precision",
        severity="warning",
        bad=lambda x: lax.dot(x, x, precision="highest"),
        good=lambda x: lax.dot(x, x, precision="highest"),
        args=(f32(8, 8),),
        sdk="2.26",
        good_sdk="2.32",
    ),
    Case(
        rule="linear-algebra",
        bad=lambda x: jnp.linalg.svd(x)[1],
        good=lambda x: jnp.linalg.norm(x),
        args=(f32(4, 4),),
    ),
    Case(rule="custom-call", bad=_call("unheard_of"), good=_call("Sharding")),
    Case(
        rule="unlisted-operator",
        severity="info",
        bad=lambda x: jnp.sort(x),
        good=lambda x: jnp.abs(x),
    ),
    Case(
        rule="unlisted-operator",
        severity="warning",
        bad=lambda x: lax.linalg.cholesky(x, symmetrize_input=False),
        good=lambda x: x @ x,
        args=(f32(8, 8),),
    ),
    Case(rule="not-emulated", bad=_collective("f32"), good=_call("Sharding")),
    # -- numerical faults --------------------------------------------------------------
    Case(
        rule="overflow-constant",
        severity="warning",
        bad=lambda x: jnp.full(8, jnp.finfo(jnp.float32).min).astype(jnp.bfloat16),
        good=lambda x: jnp.full(8, -1e9, jnp.float32).astype(jnp.bfloat16),
    ),
    Case(
        rule="overflow-factor",
        severity="warning",
        bad=lambda x: (1 - x) * -1e9,
        good=lambda x: jnp.where(x > 0, x, -1e9),
        args=(f16(8),),
    ),
    Case(
        rule="underflow-constant",
        severity="warning",
        bad=lambda x: x.astype(jnp.float16) + _spread(1e-8).astype(jnp.float16),
        good=lambda x: x.astype(jnp.bfloat16) + _spread(1e-8).astype(jnp.bfloat16),
    ),
    Case(
        rule="underflow-epsilon",
        severity="warning",
        bad=lambda x: x / (jnp.sqrt(x) + 1e-8),
        good=lambda x: x / (jnp.sqrt(x) + 1e-4),
        args=(f16(8),),
    ),
    Case(
        rule="underflow-epsilon",
        severity="warning",
        bad=lambda x: lax.rsqrt(jnp.square(x) + np.float16(1e-6)),
        good=lambda x: lax.rsqrt(jnp.square(x).astype(jnp.float32) + 1e-6),
        args=(f16(8),),
    ),
    Case(
        rule="underflow-epsilon",
        severity="warning",
        bad=lambda x: x / (jnp.sqrt(x + 0.0) + 1e-8)[:, None],
        good=lambda x: x / (jnp.sqrt(x + 0.0) + 1e-4)[:, None],
        args=(f16(8),),
    ),
    Case(
        rule="absorption-decay",
        severity="warning",
        bad=lambda x: 0.999 * x + 0.001 * (x * x),
        good=lambda x: 0.9 * x + 0.1 * (x * x),
        args=(Shape((8,), jnp.bfloat16),),
    ),
    Case(
        rule="integer-in-float",
        severity="warning",
        bad=lambda x: x + jnp.arange(1024).astype(jnp.bfloat16),
        good=lambda x: x + jnp.arange(1024).astype(jnp.float32),
        args=(f32(1024),),
    ),
    Case(
        rule="integer-in-matmul",
        severity="warning",
        bad=_turned(4096),
        good=_turned(128),
        args=(f32(2, 8),),
    ),
    Case(
        rule="stagnation-loop",
        severity="warning",
        bad=_running_sum(jnp.bfloat16),
        good=_running_sum(jnp.float32),
        args=(f32(200, 8),),
    ),
    Case(
        rule="stagnation-loop",
        severity="warning",
        bad=_running_sum(jnp.float16),
        good=_running_sum(jnp.float16),
        args=(f32(1025, 8),),
        good_args=(f32(1024, 8),),
    ),
    # -- whole programs ----------------------------------------------------------------
    Case(
        rule="hbm-capacity",
        bad=lambda x: x,
        good=lambda x: x,
        args=(f32(2**16, 2**16),),
        good_args=(f32(2**15, 2**15),),
    ),
    Case(
        rule="instruction-count",
        severity="warning",
        bad=_scan_of(1_000_000),
        good=_scan_of(1_000),
        args=(f32(1024, 1024),),
    ),
    Case(
        rule="x64-mode",
        severity="info",
        bad=lambda n: n,
        good=lambda n: n,
        args=(Shape((8,), np.dtype(np.int64)),),
        good_args=(i32(8),),
        x64=True,
    ),
    # -- what capture refuses ----------------------------------------------------------
    Case(
        rule="host-callback",
        bad=lambda x: jax.pure_callback(np.sin, f32(8), x),
        good=jnp.sin,
    ),
    Case(
        rule="float64",
        bad=lambda x: x,
        good=lambda x: x,
        args=(Shape((8,), np.dtype(np.float64)),),
        good_args=(f32(8),),
        x64=True,
    ),
)
