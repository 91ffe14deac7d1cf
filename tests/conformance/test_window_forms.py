"""Sliding windows, running folds and selection in windows by any computation.

Against the StableHLO reference interpreter where the order of combination does not
matter, and against loops in NumPy where it does.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from neuronjax.ir.block_set import PoolBlock, ScanBlock
from neuronjax.ir.instruction_set import Pool, TensorTensorScan
from tests.conformance import bits, modules
from tests.conformance.modules import (
    ADD,
    LEAST,
    LONG,
    PAIR,
    ZERO,
    block,
    constant,
    ints,
    op,
)
from tests.oracles import data, floats, reduction
from tests.oracles.movement import (
    Windows,
    reduce_window,
    running_fold,
    select_and_scatter,
)

I32 = np.int32


def windows_text(
    arrays: tuple, result: str, windows: Windows, region: str, inits: str
) -> str:
    """reduce_window of %0, %1, ... from the constants `inits`."""
    fields = {
        "window_dimensions": windows.dimensions,
        "window_strides": windows.strides,
        "base_dilations": windows.base_dilations,
        "window_dilations": windows.window_dilations,
    }
    texts = [f"{k} = array<i64: {', '.join(map(str, v))}>" for k, v in fields.items()]
    pairs = [list(p) for p in windows.padding]
    texts.append(f"padding = dense<{pairs}> : tensor<{len(pairs)}x2xi64>")
    operands = [f"%{i}" for i in range(len(arrays))] + inits.split()
    kind = modules.element_type(arrays[0].dtype)
    types = [*map(modules.tensor, arrays), *[f"tensor<{kind}>"] * len(arrays)]
    results = ", ".join([result] * len(arrays))
    return (
        f'%r{f":{len(arrays)}" if len(arrays) > 1 else ""} = "stablehlo.reduce_window"('
        f"{', '.join(operands)}) <{{{', '.join(texts)}}}> {region} : "
        f"({', '.join(types)}) -> ({results})"
    )


PLAIN = Windows(
    dimensions=(2, 3),
    strides=(1, 1),
    base_dilations=(1, 1),
    window_dilations=(1, 1),
    padding=((0, 0), (0, 0)),
)
WINDOWS = {
    "plain": PLAIN,
    "strided": dataclasses.replace(PLAIN, strides=(2, 3), padding=((1, 0), (2, 1))),
    "dilated": dataclasses.replace(
        PLAIN, base_dilations=(2, 3), window_dilations=(3, 2), padding=((1, 2), (0, 3))
    ),
    "cropped": dataclasses.replace(
        PLAIN, base_dilations=(1, 2), padding=((-1, 1), (-2, -3))
    ),
    "nearly_running": dataclasses.replace(
        PLAIN, dimensions=(1, 7), padding=((0, 0), (6, 1))
    ),
    "too_large": dataclasses.replace(PLAIN, dimensions=(9, 1)),
    "tiled": dataclasses.replace(
        PLAIN, dimensions=(34, 35), padding=((29, 0), (0, 30)), strides=(1, 3)
    ),
}


@pytest.mark.slow
def test_integer_windows_are_those_of_the_reference():
    rng = np.random.default_rng(1)
    x, y = ints(rng, 6, 7), ints(rng, 6, 7)
    forms = []
    for name, windows in WINDOWS.items():
        zeros = [np.zeros(x.shape, I32)], [I32(0)], windows
        (like,) = reduce_window(*zeros, lambda a, b: (a,))
        type_ = modules.tensor(like)
        for kind, region in (("add", ADD), ("long", LONG)):
            if name == "tiled" and kind == "long":
                continue
            text = ZERO + windows_text((x,), type_, windows, region, "%z")
            forms.append(modules.form(f"{name}_{kind}", (x,), (like,), text))
        if name in ("dilated", "cropped"):
            text = (
                ZERO + LEAST + windows_text((x, y), type_, windows, PAIR, "%z %least")
            )
            forms.append(modules.form(f"{name}_pair", (x, y), (like, like), text))
    text, arrays = modules.module(forms)
    outputs, expected = modules.run(text, *arrays), modules.reference(text, *arrays)
    for name, got, want in zip(modules.labels(forms), outputs, expected, strict=True):
        floats.same_bits(got, want, name)


#: x + 2 y: not associative, so that it shows every order.
WEIGHTED = block(
    "%x %y",
    op("%d", "add", "%y", "%y", dtype="f32") + op("%s", "add", "%x", "%d", dtype="f32"),
    "%s",
    "f32",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dilated", "tiled"])
def test_a_window_is_tiles_of_left_folds(name):
    x = data.normal(np.random.default_rng(2), (6, 7))
    weighted = lambda a, b: (floats.add(a, floats.add(b, b))[()],)  # noqa: E731
    windows = WINDOWS[name]
    (expected,) = reduce_window([x], [np.float32(0.5)], windows, weighted)
    text = constant("%z", 0.5, "f32") + windows_text(
        (x,), modules.tensor(expected), windows, WEIGHTED, "%z"
    )
    text, arrays = modules.module([modules.form("w", (x,), (expected,), text)])
    floats.same_bits(modules.run_both_ways(text, *arrays)[0], expected, name)


# ---- Running folds.

CUMULATIVE = {
    "cumsum": (lax.cumsum, floats.add, 0.0),
    "cumprod": (lax.cumprod, floats.multiply, 1.0),
    "cummax": (lax.cummax, reduction.maximum, -np.inf),
    "cummin": (lax.cummin, reduction.minimum, np.inf),
}


@pytest.mark.slow
def test_cumulative_ops_run_along_the_axis():
    rng = np.random.default_rng(3)
    x = np.concatenate([data.cancelling(rng, (2, 700)), data.kinds(rng, (700,))])
    narrow = x[:3].astype(ml_dtypes.bfloat16)

    def program(x, narrow):
        return {
            name: [f(v, axis=1, reverse=r) for r in (False, True) for v in (x, narrow)]
            for name, (f, *_) in CUMULATIVE.items()
        }

    outputs = nj.jit(program)(x, narrow)
    for name, (_, function, init) in CUMULATIVE.items():
        body = lambda a, b, f=function: (f(a, b),)  # noqa: E731
        for reverse in (False, True):
            wide, rounded = outputs[name][2 * reverse : 2 * reverse + 2]
            (expected,) = running_fold([x], [np.float32(init)], body, reverse)
            floats.same_bits(wide, expected, f"{name} {reverse}")
            values = narrow.astype(np.float32)
            (expected,) = running_fold([values], [np.float32(init)], body, reverse)
            expected = floats.round_to(expected, "bf16").astype(narrow.dtype)
            floats.same_bits(rounded, expected, f"{name} {reverse}, narrow")


@pytest.mark.slow
def test_cumulative_ops_of_integers_and_on_every_axis():
    n = ints(np.random.default_rng(4), 3, 5, 4)

    def program(n):
        whole = [lax.cumsum(n, axis=a, reverse=a == 1) for a in range(3)]
        others = (lax.cumprod, lax.cummax, lax.cummin)
        whole += [f(n, axis=a, reverse=a == 1) for a, f in enumerate(others)]
        return [*whole, jnp.cumsum(n > 0, axis=2), lax.cummax(n.astype(jnp.uint8))]

    bits.assert_same(nj.jit(program)(n), jax.jit(program)(n))


def test_integers_go_through_fp32_where_the_policy_says_so():
    n = np.array([[2**24, 1, 1]], I32)
    program = lambda n: (  # noqa: E731
        lax.cumsum(n, axis=1),
        lax.reduce_window(n, 0, lax.add, (1, 2), (1, 1), "VALID"),
    )
    running, pairs = nj.jit(program)(n)
    floats.same_bits(running, n + I32([[0, 2**24, 2**24 + 1]]), "exact")
    floats.same_bits(pairs, np.array([[2**24 + 1, 2]], I32), "exact")
    policy = nj.Policy(integer_path="fp32")
    running, pairs = nj.jit(program, policy=policy)(n)
    floats.same_bits(running, np.full((1, 3), 2**24, I32), "fp32")
    floats.same_bits(pairs, np.array([[2**24, 2]], I32), "fp32")


@pytest.mark.slow
def test_a_running_sum_of_growing_terms_never_falls():
    x = np.abs(data.cancelling(np.random.default_rng(5), (3, 4096)))
    total = bits.same_both_ways(nj.jit(lambda x: x.cumsum(-1)), x)
    assert np.all(np.diff(total) >= 0)


@pytest.mark.slow
def test_cumlogsumexp():
    x = data.normal(np.random.default_rng(6), (4, 300)) * 3
    program = nj.jit(lambda x: [lax.cumlogsumexp(x, 1, r) for r in (False, True)])
    forward, backward = bits.same_both_ways(program, x)
    exact = np.logaddexp.accumulate(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(forward, exact, rtol=3e-6, atol=3e-6)
    exact = np.logaddexp.accumulate(x[:, ::-1].astype(np.float64), axis=1)[:, ::-1]
    np.testing.assert_allclose(backward, exact, rtol=3e-6, atol=3e-6)


@pytest.mark.slow
def test_only_windows_that_reach_back_to_the_start_run():
    def classes(function, *arrays):
        instructions = nj.jit(function).lower(*arrays).compile().instructions
        known = Pool | PoolBlock | TensorTensorScan | ScanBlock
        return [type(i) for i in instructions if isinstance(i, known)]

    x, init = np.ones((3, 5), np.float32), np.float32(1)
    padding = ((0, 0), (4, 0))
    window = lambda x, i, f: lax.reduce_window(x, i, f, (1, 5), (1, 1), padding)  # noqa: E731
    assert classes(lambda x: window(x, np.float32(0), lax.add), x) == [TensorTensorScan]
    assert classes(lambda x: window(x, np.float32(1), lax.add), x) == [Pool]
    assert classes(lambda x, i: window(x, i, lax.add), x, init) == [Pool]
    assert classes(lambda x: lax.cumlogsumexp(x, 1), x) == [ScanBlock]
    floats.same_bits(
        nj.jit(lambda x, i: window(x, i, lax.add))(x, init),
        np.full((3, 5), 6, np.float32),
        "padding takes part",
    )


# ---- Selection in windows.


SELECTIONS = {
    "largest": ("GE", "add", "%x", lambda a, b: a >= b, np.add),
    "least": ("LE", "multiply", "%x", lambda a, b: a <= b, np.multiply),
    "last": ("GT", "add", "%x", lambda a, b: a > b, np.add),
    "square": ("GE", "subtract", "%a", lambda a, b: a * a >= b * b, np.subtract),
    "lowest": ("GE", "add", "%x", lambda a, b: a >= b, np.add),
}


def selection_form(name: str, operand: np.ndarray, source: np.ndarray) -> modules.Form:
    direction, scatter, left, *_ = SELECTIONS[name]
    squares = op("%a", "multiply", "%x", "%x") + op("%b", "multiply", "%y", "%y")
    right = "%b" if left == "%a" else "%y"
    select = (
        "({\n^bb0(%x: tensor<i32>, %y: tensor<i32>):\n"
        f"{squares if left == '%a' else ''}"
        f"%p = stablehlo.compare {direction}, {left}, {right}, SIGNED : "
        "(tensor<i32>, tensor<i32>) -> tensor<i1>\n"
        "stablehlo.return %p : tensor<i1>\n}"
    )
    region = block("%x %y", op("%s", scatter, "%x", "%y"), "%s")
    text = (
        constant("%z", 2)
        + '%r = "stablehlo.select_and_scatter"(%0, %1, %z) <{window_dimensions = '
        "array<i64: 3, 3>, window_strides = array<i64: 2, 3>, padding = "
        f"dense<[[1, 2], [1, 1]]> : tensor<2x2xi64>}}> {select}, {region[1:]}"
        " : (tensor<6x7xi32>, tensor<4x3xi32>, tensor<i32>) -> tensor<6x7xi32>"
    )
    return modules.form(name, (operand, source), (operand,), text)


@pytest.mark.slow
def test_a_selection_sends_windows_in_order_to_what_they_select():
    rng = np.random.default_rng(10)
    operand = rng.integers(-3, 4, (6, 7)).astype(I32)
    operands = dict.fromkeys(SELECTIONS, operand)
    # Padding is no candidate, though it were the largest.
    operands["lowest"] = np.full((6, 7), -(2**31), I32)
    source = rng.integers(-9, 10, (4, 3)).astype(I32)
    forms = [selection_form(n, x, source) for n, x in operands.items()]
    text, arrays = modules.module(forms)
    outputs = modules.run(text, *arrays)
    for (name, x), got in zip(operands.items(), outputs, strict=True):
        *_, select, scatter = SELECTIONS[name]
        padding = ((1, 2), (1, 1))
        expected = select_and_scatter(
            x, source, I32(2), (3, 3), (2, 3), padding, select, scatter
        )
        floats.same_bits(got, expected, name)
