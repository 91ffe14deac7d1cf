"""Ops that become several instructions or none: broadcasting, batch normalisation,
custom calls that mean nothing, and those that are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import neuronjax as nj
from neuronjax.lowering.moves import WITHOUT
from neuronjax.lowering.refused import REFUSED
from tests.conformance.module_text import (
    dtype_of,
    module,
    quick,
    run,
    same_numbers,
    tensor,
)
from tests.oracles import floats, integers, reduction


@pytest.mark.slow
def test_broadcasting_ops():
    rng = np.random.default_rng(4)
    x = rng.integers(1, 9, (3, 1, 4)).astype(np.int32)
    y = rng.integers(1, 9, (2, 1)).astype(np.int32)
    types = [tensor(x.shape, x.dtype), tensor(y.shape, y.dtype)]
    result = tensor((3, 2, 4), np.int32)
    both = f"({', '.join(types)}) -> {result}"
    float_only = ("atan2", "next_after", "polygamma", "zeta")
    names = [
        n
        for n in WITHOUT
        if n.split("broadcast_")[1] not in ("compare", "select", *float_only)
    ]
    lines = [f'%{i} = "{n}"(%a0, %a1) : {both}' for i, n in enumerate(names)]
    k = len(names)
    predicate = tensor((3, 2, 4), bool)
    lines += [
        f'%{k} = "chlo.broadcast_compare"(%a0, %a1) {{comparison_direction = '
        f"#chlo<comparison_direction LT>}} : ({', '.join(types)}) -> {predicate}",
        f'%{k + 1} = "chlo.broadcast_select"(%{k}, %a0, %a1) : ({predicate}, '
        f"{', '.join(types)}) -> {result}",
        f'%{k + 2} = "chlo.constant_like"(%{k + 1}) {{value = 7 : i32}} : '
        f"({result}) -> {result}",
    ]
    outputs = [(f"%{i}", result) for i in range(k)]
    outputs += [
        (f"%{k}", predicate),
        (f"%{k + 1}", result),
        (f"%{k + 2}", result),
    ]
    got = run(module(types, lines, outputs), [x, y], compiled_only=True)
    a, b = (np.ascontiguousarray(v) for v in np.broadcast_arrays(x, y))
    for name, out in zip(names, got, strict=False):
        want = integers.apply(name.split("broadcast_")[1], a, b)
        assert np.array_equal(out, want), name
    assert np.array_equal(got[k], a < b)
    assert np.array_equal(got[k + 1], np.where(a < b, a, b))
    assert np.array_equal(got[k + 2], np.full(a.shape, 7))


@pytest.mark.slow
def test_broadcasting_along_named_axes():
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    y = np.array([10, 20], np.float32)
    t, s = tensor(x.shape, x.dtype), tensor(y.shape, y.dtype)
    text = module(
        [t, s],
        [
            '%0 = "chlo.broadcast_add"(%a0, %a1) {broadcast_dimensions = '
            f"array<i64: 0>}} : ({t}, {s}) -> {t}"
        ],
        [("%0", t)],
    )
    [got] = run(text, [x, y])
    assert np.array_equal(got, x + y[:, None])


SHAPE, FEATURE, EPSILON = (5, 3, 7), 1, 1e-3


def _batch_norm(name: str, operands: list[np.ndarray], results: list) -> list:
    types = [tensor(x.shape, x.dtype) for x in operands]
    out = [tensor(s, operands[0].dtype) for s in results]
    arguments = ", ".join(f"%a{i}" for i in range(len(operands)))
    text = module(
        types,
        [
            f'%0:{len(out)} = "stablehlo.batch_norm_{name}"({arguments}) {{epsilon = '
            f"{EPSILON} : f32, feature_index = {FEATURE} : i64}} : "
            f"({', '.join(types)}) -> ({', '.join(out)})"
        ],
        [(f"%0#{i}", t) for i, t in enumerate(out)],
    )
    return run(text, operands, compiled_only=operands[0].dtype == np.float32)


def _features(x: Any) -> np.ndarray:
    return np.asarray(x)[:, None]


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(["float32", "bfloat16"], "float32"))
def test_batch_normalisation(name):
    """Every step an FP32 operation, in the order that `lowering.batch_norm` states."""
    rng = np.random.default_rng(5)
    dtype = dtype_of(name)
    x, g = (rng.standard_normal(SHAPE).astype(np.float32) for _ in range(2))
    scale, offset, mean = (rng.standard_normal(3).astype(np.float32) for _ in range(3))
    variance = rng.random(3).astype(np.float32)
    narrow = [v.astype(dtype) for v in (x, scale, offset, mean, variance, g)]
    x, scale, offset, mean, variance, g = (v.astype(np.float32) for v in narrow)
    add, sub, mul, div = floats.add, floats.subtract, floats.multiply, floats.divide
    count = np.float32(SHAPE[0] * SHAPE[2])

    def total(v):
        return reduction.reduce(v, (0, 2))

    def normal(centred, variance):
        root = np.sqrt(add(variance, np.float32(EPSILON)))
        return div(centred, _features(root))

    def affine(v):
        return add(mul(v, _features(scale)), _features(offset))

    centred = sub(x, _features(mean))
    per = [(3,)] * 2
    [got] = _batch_norm("inference", narrow[:5], [SHAPE])
    want = affine(normal(centred, variance)).astype(dtype)
    same_numbers(got, want, "inference")

    own_mean = div(total(x), count)
    own = sub(x, _features(own_mean))
    own_variance = div(total(mul(own, own)), count)
    wants = [affine(normal(own, own_variance)), own_mean, own_variance]
    for got, want in zip(
        _batch_norm("training", narrow[:3], [SHAPE, *per]), wants, strict=True
    ):
        same_numbers(got, want.astype(dtype), "training")

    shifted = add(variance, np.float32(EPSILON))
    deviation = np.sqrt(shifted)
    along = mul(_features(total(mul(g, centred))), centred)
    inner = sub(mul(g, count), _features(total(g)))
    inner = sub(inner, div(along, _features(shifted)))
    factor = div(div(scale, deviation), count)
    wants = [
        mul(_features(factor), inner),
        total(mul(g, normal(centred, variance))),
        total(g),
    ]
    operands = [narrow[0], narrow[1], narrow[3], narrow[4], narrow[5]]
    for got, want in zip(
        _batch_norm("grad", operands, [SHAPE, *per]), wants, strict=True
    ):
        same_numbers(got, want.astype(dtype), "grad")


@pytest.mark.slow
def test_custom_calls_that_mean_nothing():
    x = np.float32([[3, 1, 2], [4, 6, 5]])
    t, i = tensor(x.shape, x.dtype), tensor((2, 2), np.int32)
    v = tensor((2, 2), x.dtype)
    text = module(
        [t],
        [
            f"%0 = stablehlo.custom_call @Sharding(%a0) : ({t}) -> {t}",
            f"%1 = stablehlo.custom_call @annotate_device_placement(%0) : ({t}) -> {t}",
            f"%2 = stablehlo.custom_call @AllocateBuffer() : () -> {t}",
            f"%3:2 = stablehlo.custom_call @mhlo.topk(%1) {{mhlo.attributes = "
            f"{{k = 2 : i64, largest = true}}}} : ({t}) -> ({v}, {i})",
            f"%4 = stablehlo.custom_call @mhlo.erf(%1) : ({t}) -> {t}",
            f"%5 = chlo.erf %a0 : {t} -> {t}",
        ],
        [("%1", t), ("%2", t), ("%3#0", v), ("%3#1", i), ("%4", t), ("%5", t)],
    )
    passed, empty, largest, indices, erf, same = run(text, [x])
    assert np.array_equal(passed, x)
    assert empty.shape == x.shape
    assert largest.tolist() == [[3, 2], [6, 5]]
    assert indices.tolist() == [[0, 2], [1, 2]]
    assert np.array_equal(erf, same)


def test_custom_calls_without_a_rule_are_errors():
    t = tensor((2,), np.float32)
    line = f"%0 = stablehlo.custom_call @cu_solver(%a0) : ({t}) -> {t}"
    with pytest.raises(nj.UnsupportedError, match="cu_solver") as caught:
        run(module([t], [line], [("%0", t)]), [np.zeros(2, np.float32)])
    assert caught.value.remedy


def test_refusals_say_why_and_what_to_do():
    for name, refusal in REFUSED.items():
        assert name.split(".")[0] in ("stablehlo", "chlo")
        assert refusal.reason
        assert refusal.remedy
        assert refusal.error in (nj.UnsupportedError, nj.UnimplementedError)


@pytest.mark.parametrize(
    ("line", "category"),
    [
        (
            "%0 = stablehlo.rng %a0, %a1, %s, distribution = UNIFORM : "
            "(tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<2xf32>",
            nj.UnsupportedError,
        ),
        (
            '%r = "stablehlo.replica_id"() : () -> tensor<ui32>\n'
            "%0 = stablehlo.constant dense<0.0> : tensor<2xf32>",
            nj.UnsupportedError,
        ),
    ],
    ids=["rng", "replica_id"],
)
def test_refused_ops(line, category):
    shape = "%s = stablehlo.constant dense<2> : tensor<1xi64>"
    text = module(["tensor<f32>"] * 2, [shape, line], [("%0", "tensor<2xf32>")])
    with pytest.raises(category) as caught:
        run(text, [np.float32(0), np.float32(1)])
    assert REFUSED[caught.value.op].reason in str(caught.value)
    assert caught.value.remedy
