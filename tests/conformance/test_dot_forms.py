"""Every form of a contraction: layouts, dtypes, integers, algorithms.

Layouts on numbers whose sums are exact in any order; dtypes and algorithms against the
fold, bit for bit; integers against Python's.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from neuronjax.ir.program import Location, Op
from neuronjax.lowering.dot_algorithm import parsed
from tests.conformance import bits
from tests.conformance.module_text import dtype_of, module, quick, run, tensor
from tests.oracles import contraction, dot_algorithm, floats, integers

Preset = lax.DotAlgorithmPreset
PLAIN = (((1,), (0,)), ((), ()))
slow = pytest.mark.slow


# ---- Layouts.

#: lhs shape, rhs shape, ((lhs, rhs contracted), (lhs, rhs batch)).
LAYOUTS = (
    ((3, 4), (4, 5), (((1,), (0,)), ((), ()))),
    ((4, 3), (5, 4), (((0,), (1,)), ((), ()))),
    ((2, 3, 4), (2, 4, 5), (((2,), (1,)), ((0,), (0,)))),
    ((3, 4, 2), (5, 2, 4), (((1,), (2,)), ((2,), (1,)))),
    ((3, 4, 5, 6), (5, 4, 3, 7), (((2,), (0,)), ((1,), (1,)))),
    ((3, 4, 5, 6), (5, 4, 3, 7), (((2, 0), (0, 2)), ((1,), (1,)))),
    ((2, 3, 4), (4, 2, 3), (((1,), (2,)), ((2, 0), (0, 1)))),
    ((2, 3, 4, 5), (5, 3, 4, 2), (((2,), (2,)), ((3, 1, 0), (0, 1, 3)))),
    ((3, 4), (3, 4), (((), ()), ((0, 1), (0, 1)))),
    ((3, 4), (4, 3), (((0, 1), (1, 0)), ((), ()))),
    ((3, 4), (5, 2), (((), ()), ((), ()))),
    ((6,), (6,), (((0,), (0,)), ((), ()))),
    ((6,), (6,), (((), ()), ((0,), (0,)))),
    ((), (), (((), ()), ((), ()))),
    ((), (2, 3), (((), ()), ((), ()))),
    ((3, 0), (0, 4), (((1,), (0,)), ((), ()))),
    ((0, 3), (3, 4), (((1,), (0,)), ((), ()))),
    ((0, 2, 3), (0, 3, 2), (((2,), (1,)), ((0,), (0,)))),
)


def by_definition(a: np.ndarray, b: np.ndarray, layout) -> np.ndarray:
    """The contraction in float64, or OR of ANDs."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = layout
    letters = iter("abcdefghijklmnop")
    left = {d: next(letters) for d in range(a.ndim)}
    right = dict(
        zip(
            (*rhs_contract, *rhs_batch),
            (left[d] for d in (*lhs_contract, *lhs_batch)),
            strict=True,
        )
    )
    right = {d: right.get(d) or next(letters) for d in range(b.ndim)}
    free = [
        *(left[d] for d in range(a.ndim) if d not in (*lhs_contract, *lhs_batch)),
        *(right[d] for d in range(b.ndim) if d not in (*rhs_contract, *rhs_batch)),
    ]
    names = [*(left[d] for d in lhs_batch), *free]
    spec = (
        f"{''.join(left.values())},"
        f"{''.join(right[d] for d in range(b.ndim))}->{''.join(names)}"
    )
    wide = np.einsum(spec, a.astype(np.float64), b.astype(np.float64))
    return wide > 0 if a.dtype == np.bool_ else wide


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    quick(["float32", "bfloat16", "int32", "bool"], "int32"),
)
def test_every_layout(name):
    rng = np.random.default_rng(1)
    dtype = dtype_of(name)

    def small(shape):
        return rng.integers(0, 2 if name == "bool" else 5, shape).astype(dtype)

    pairs = [(small(lhs), small(rhs)) for lhs, rhs, _ in LAYOUTS]

    def dots(pairs):
        rows = zip(pairs, LAYOUTS, strict=True)
        return [lax.dot_general(a, b, layout) for (a, b), (*_, layout) in rows]

    program = nj.jit(dots)
    outputs = program(pairs)
    if name == "float32":
        bits.assert_same(outputs, bits.op_by_op(program, pairs))
    for (a, b), (*_, layout), out in zip(pairs, LAYOUTS, outputs, strict=True):
        want = np.asarray(by_definition(a, b, layout)).astype(dtype)
        assert (out.shape, out.dtype) == (want.shape, want.dtype)
        assert np.array_equal(np.asarray(out), want), layout


def test_the_deprecated_dot():
    rng = np.random.default_rng(2)
    matrix, other = (rng.integers(-4, 5, (3, 3)).astype(np.float32) for _ in range(2))
    vector = rng.integers(-4, 5, 3).astype(np.float32)
    m, v, s = (tensor(shape, np.float32) for shape in ((3, 3), (3,), ()))
    text = module(
        [m, m, v],
        [
            f"%0 = stablehlo.dot %a0, %a1 : ({m}, {m}) -> {m}",
            f"%1 = stablehlo.dot %a0, %a2 : ({m}, {v}) -> {v}",
            f"%2 = stablehlo.dot %a2, %a0 : ({v}, {m}) -> {v}",
            f"%3 = stablehlo.dot %a2, %a2 : ({v}, {v}) -> {s}",
        ],
        [("%0", m), ("%1", v), ("%2", v), ("%3", s)],
    )
    got = run(text, [matrix, other, vector], compiled_only=True)
    wants = [matrix @ other, matrix @ vector, vector @ matrix, vector @ vector]
    for out, want in zip(got, wants, strict=True):
        assert np.array_equal(out, want)


# ---- Dtypes of floats.

NARROW = {"bfloat16": "bf16", "float16": "fp16", "float8_e5m2": "e5m2"}
FORMATS = {"float32": "fp32", **NARROW, "float8_e4m3": "e4m3"}


@pytest.mark.slow
def test_every_pair_of_float_dtypes():
    """One pass, or four where one side is FP32; a narrower result rounds once more."""
    rng = np.random.default_rng(3)
    values = [rng.standard_normal(s).astype(np.float32) for s in ((3, 9), (9, 4))]
    kinds = list(itertools.product(FORMATS, repeat=2))
    pairs = [
        tuple(x.astype(dtype_of(n)) for x, n in zip(values, names, strict=True))
        for names in kinds
    ]
    preferred = ["float32", "bfloat16", "float16", "float8_e4m3"]

    def dots(pairs):
        return [
            [
                lax.dot_general(a, b, PLAIN, preferred_element_type=dtype_of(p))
                for p in (preferred if a.dtype == b.dtype else preferred[:1])
            ]
            for a, b in pairs
        ]

    outputs = nj.jit(dots)(pairs)
    for names, (a, b), row in zip(kinds, pairs, outputs, strict=True):
        wide = "float32" in names
        lhs, rhs = ("fp32",) * 2 if wide else (FORMATS[n] for n in names)
        array = contraction.Array(lhs=lhs, rhs=rhs)
        x, y = (v.astype(np.float32) for v in (a, b))
        sums = contraction.dot_general(x, y, PLAIN, array)
        for p, out in zip(preferred, row, strict=False):
            want = sums if p == "float32" else floats.round_to(sums, FORMATS[p])
            floats.same_bits(out, want.astype(dtype_of(p)), f"{names} to {p}")


def test_precision_changes_nothing():
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((3, 150), (150, 4)))

    def dots(a, b):
        return [jnp.dot(a, b, precision=p) for p in (None, *lax.Precision)]

    first, *others = nj.jit(dots)(a, b)
    for out in others:
        bits.assert_same(out, first)


# ---- Integers.

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool")


def integer_array(rng, shape, name: str) -> np.ndarray:
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    info = np.iinfo(name)
    return rng.integers(info.min, info.max, shape, np.int64, endpoint=True).astype(name)


@pytest.mark.slow
def test_integer_dots_wrap_around():
    rng = np.random.default_rng(5)
    cases = [
        (*pair, result)
        for pair in [*zip(INTEGERS, INTEGERS, strict=True), ("int8", "uint8")]
        for result in ("int8", "uint16", "int32", "uint32")
        if "bool" not in pair or result == "int32"
    ]
    cases.append(("bool", "bool", "bool"))
    pairs = [
        (integer_array(rng, (3, 70), a), integer_array(rng, (70, 4), b))
        for a, b, _ in cases
    ]
    lines, results, types = [], [], []
    for n, ((*_, result), (a, b)) in enumerate(zip(cases, pairs, strict=True)):
        types += [tensor(x.shape, x.dtype) for x in (a, b)]
        results.append((f"%{n}", tensor((3, 4), result)))
        lines.append(
            f"%{n} = stablehlo.dot_general %a{2 * n}, %a{2 * n + 1}, contracting_dims "
            f"= [1] x [0] : ({types[-2]}, {types[-1]}) -> {results[-1][1]}"
        )
    arrays = [x for pair in pairs for x in pair]
    outputs = run(module(types, lines, results), arrays, compiled_only=True)
    for (*names, result), (a, b), out in zip(cases, pairs, outputs, strict=True):
        [want] = integers.dot(a[None], b[None], dtype_of(result))
        assert np.array_equal(out, want), (names, result)


@pytest.mark.slow_cases("int8")
@pytest.mark.parametrize("name", ["int8", "int32", "bool"])
def test_integer_dots_through_fp32(name):
    """As the vendor's compiler: FP32 operands, one rounding, saturation."""
    rng = np.random.default_rng(6)
    a, b = (integer_array(rng, shape, name) for shape in ((3, 150), (150, 4)))
    result = np.int8 if name == "int8" else np.int32

    def program(a, b):
        return lax.dot_general(a, b, PLAIN, preferred_element_type=result)

    got = nj.jit(program, policy=nj.Policy(integer_path="fp32"))(a, b)
    x, y = (v.astype(np.float32) for v in (a, b))
    array = contraction.Array(lhs="fp32", rhs="fp32")
    sums = contraction.dot_general(x, y, PLAIN, array).astype(np.float64)
    info = np.iinfo(result)
    want = np.clip(np.rint(sums), info.min, info.max).astype(result)
    assert np.array_equal(np.asarray(got), want)


def test_integer_dots_without_downcast_are_refused():
    x = np.ones((2, 2), np.int32)
    dot = nj.jit(jnp.dot, policy=nj.Policy(implicit_integer_downcast="none"))
    with pytest.raises(nj.UnsupportedError, match=r"EVRF035.*int32"):
        dot(x, x)
    assert np.array_equal(dot(x.astype(np.int8), x.astype(np.int8)), x * 2)


@pytest.mark.slow
def test_integers_that_make_floats():
    """Bytes in one BF16 pass, wider ones as FP32; with a BF16 partner JAX makes both
    FP32."""
    rng = np.random.default_rng(7)
    names = ("int8", "uint8", "bool", "int16", "int32", "uint32")
    half = rng.standard_normal((150, 4)).astype(ml_dtypes.bfloat16)
    pairs = [
        (integer_array(rng, (3, 150), n), integer_array(rng, (150, 4), n))
        for n in names
    ]

    def dots(pairs):
        def dot(a, b):
            return lax.dot_general(a, b, PLAIN, preferred_element_type=jnp.float32)

        return [[dot(a, b), dot(a, half)] for a, b in pairs]

    for (a, b), outputs in zip(pairs, nj.jit(dots)(pairs), strict=True):
        for y, out in zip((b, half), outputs, strict=True):
            form = "bf16" if a.dtype.itemsize == y.dtype.itemsize == 1 else "fp32"
            array = contraction.Array(lhs=form, rhs=form)
            x, y = (v.astype(np.float32) for v in (a, y))
            want = contraction.dot_general(x, y, PLAIN, array)
            floats.same_bits(out, want, str(a.dtype))


# ---- Algorithms.


def operands(k: int, seed: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """FP32 numbers of 24 digits, with an Inf and a NaN in rows of their own."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((5, k), (k, 4)))
    a[3, 0], a[4, k - 1] = np.inf, np.nan
    return a, b


SPLIT = {
    Preset.BF16_BF16_F32: ("bf16", 1),
    Preset.BF16_BF16_F32_X3: ("bf16", 3),
    Preset.BF16_BF16_F32_X6: ("bf16", 6),
    Preset.BF16_BF16_F32_X9: ("bf16", 9),
    Preset.TF32_TF32_F32: ("tf32", 1),
    Preset.TF32_TF32_F32_X3: ("tf32", 3),
    Preset.F16_F16_F32: ("fp16", 1),
}
#: Where other casts would be seen.
POLICIES = {"none": nj.Policy(), "fp8": nj.Policy.preset("fp8")}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fp8", pytest.param("none", marks=slow)])
def test_algorithms_round_as_they_say(policy):
    pairs = [operands(k) for k in ((130,) if policy == "fp8" else (3, 256))]

    def dots(pairs):
        return [
            [lax.dot_general(a, b, PLAIN, precision=p) for a, b in pairs] for p in SPLIT
        ]

    program = nj.jit(dots, policy=POLICIES[policy])
    outputs = program(pairs)
    for (preset, (name, operations)), row in zip(SPLIT.items(), outputs, strict=True):
        for (a, b), out in zip(pairs, row, strict=True):
            want = dot_algorithm.dot(a, b, name, operations)
            floats.same_bits(out, want, f"{preset.name} {a.shape}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [
        ("bfloat16", "float32"),
        pytest.param("float32", "float16", marks=slow),
        pytest.param("float16", "bfloat16", marks=slow),
        pytest.param("float8_e4m3", "float8_e5m2", marks=slow),
        pytest.param("int8", "float32", marks=slow),
    ],
)
def test_algorithms_of_mixed_operands(lhs, rhs):
    """What is narrower than an algorithm's format is in it already."""
    a, b = (4 * np.nan_to_num(x, posinf=0) for x in operands(130))
    a, b = a.astype(jnp.dtype(lhs)), b.astype(jnp.dtype(rhs))
    wide: dict[str, Any] = dict(preferred_element_type=jnp.float32)

    def dots(a, b):
        return [lax.dot_general(a, b, PLAIN, precision=p, **wide) for p in SPLIT]

    for (preset, how), out in zip(SPLIT.items(), nj.jit(dots)(a, b), strict=True):
        want = dot_algorithm.dot(a.astype(np.float32), b.astype(np.float32), *how)
        floats.same_bits(out, want, preset.name)


AS_POLICY = {
    "BF16_BF16_F32": "bf16",
    "F16_F16_F32": "fp16",
    "TF32_TF32_F32": "tf32",
    "F32_F32_F32": "fp32",
    # Precisions are hints: the policy's casts are what counts.
    "bfloat16": "fp32",
    "tensorfloat32": "fp32",
    "highest": "fp32",
}


@pytest.mark.slow
def test_one_operation_is_the_policy_of_its_format():
    """`jax_default_matmul_precision` under FP32, for a whole program."""
    a, b = operands(260)

    def program(a, b):
        return jnp.tanh(a @ b), jax.grad(lambda a: jnp.sum(a @ b))(a)

    found = {}
    for name in AS_POLICY:
        with jax.default_matmul_precision(name):
            found[name] = nj.jit(program, policy="fp32")(a, b)
    for name, policy in AS_POLICY.items():
        same = nj.jit(program, policy=policy)
        for got, want in zip(found[name], same(a, b), strict=True):
            floats.same_bits(got, want, name)


def test_fp8_algorithms_of_other_operands_are_refused_by_name():
    with pytest.raises(
        nj.InvalidProgramError, match="'ANY_F8_ANY_F8_F32' req"
    ) as caught:
        nj.jit(
            lambda a, b: lax.dot_general(
                a, b, PLAIN, precision=Preset.ANY_F8_ANY_F8_F32
            )
        )(*operands(4))
    assert "test_dot_forms.py:" in str(caught.value.location)


def x3(a, b):
    return lax.dot_general(a, b, PLAIN, precision=Preset.BF16_BF16_F32_X3)


@pytest.mark.slow
def test_an_algorithm_is_the_same_op_by_op():
    bits.same_both_ways(nj.jit(x3), *operands(20))


@slow
def test_an_algorithm_is_the_same_in_a_batch():
    a, b = operands(20)
    program = nj.jit(x3)
    whole = program(a, b)
    batched = jax.vmap(program, in_axes=(0, None))(a[:, None], b)
    bits.assert_same(np.asarray(batched)[:, 0], np.asarray(whole))


@slow
def test_more_parts_come_closer():
    rng = np.random.default_rng(9)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((8, 96), (96, 8)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    presets = [p for p, (name, _) in SPLIT.items() if name == "bf16"][:3]

    def dots(a, b):
        return [lax.dot_general(a, b, PLAIN, precision=p) for p in presets]

    errors = [np.abs(out - exact).max() for out in nj.jit(dots)(a, b)]
    assert errors[1] < errors[0] / 50
    assert errors[2] < errors[1]


def test_f32_is_the_four_passes_whatever_the_policy():
    a, b = operands(150)
    b[0] = 0  # of Inf * 0 the halves know nothing else than the whole

    def dot(precision):
        return lambda a, b: lax.dot_general(a, b, PLAIN, precision=precision)

    plain = nj.jit(dot(None))(a, b)
    policy = nj.Policy.preset("bf16")
    bits.assert_same(nj.jit(dot(Preset.F32_F32_F32), policy=policy)(a, b), plain)


@pytest.mark.slow
def test_bf16_sums_need_a_chip_that_adds_in_bf16():
    a, b = operands(256)

    def dot(a, b):
        return lax.dot_general(a, b, PLAIN, precision=Preset.BF16_BF16_BF16)

    got = nj.jit(dot, target="trn3")(a, b)
    want = dot_algorithm.dot(a, b, "bf16", 1, psum="bf16")
    floats.same_bits(got, want.astype(np.float32))
    with pytest.raises(nj.UnsupportedError, match="not in bfloat16") as caught:
        nj.jit(dot, target="trn2")(a, b)
    assert "trn3" in str(caught.value.remedy)


@pytest.mark.slow
def test_fp8_algorithms_take_the_operands_as_they_are():
    rng = np.random.default_rng(10)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((3, 300), (300, 4)))
    low = ml_dtypes.float8_e5m2
    a, b = a.astype(low), b.astype(low)
    presets = [p for p in Preset if p.name.startswith("ANY_F8")]

    def dots(a, b):
        return [
            lax.dot_general(
                a, b, PLAIN, precision=p, preferred_element_type=jnp.float32
            )
            for p in presets
        ]

    array = contraction.Array(lhs="e5m2", rhs="e5m2", double_row=True)
    x, y = (v.astype(np.float32) for v in (a, b))
    want = contraction.dot_general(x, y, PLAIN, array)
    for out in nj.jit(dots)(a, b):
        floats.same_bits(out, want)


@pytest.mark.parametrize(
    ("preset", "names"),
    [(Preset.F16_F16_F16, "not in float16"), (Preset.F64_F64_F64, "f64|float64")],
    ids=lambda p: getattr(p, "name", ""),
)
def test_algorithms_that_no_chip_has(preset, names):
    a, b = operands(4)

    def dot(a, b):
        return lax.dot_general(a, b, PLAIN, precision=preset)

    for target in ("trn1", "trn3"):
        with jax.enable_x64(preset is Preset.F64_F64_F64):
            with pytest.raises(nj.UnsupportedError, match=names) as caught:
                nj.jit(dot, target=target)(a, b)
        assert caught.value.remedy


def test_an_algorithm_with_counts_of_parts():
    """Operations beyond JAX's presets, as a later StableHLO may know them."""
    op = Op("stablehlo.dot_general", (), (), {}, (), Location())

    def text(operations: int) -> str:
        return (
            "<lhs_precision_type = bf16, rhs_precision_type = tf32, "
            "accumulation_type = f32, lhs_component_count = 2, rhs_component_count = 1,"
            f" num_primitive_operations = {operations}>"
        )

    algorithm = parsed(op, text(2))
    assert algorithm.pairs == [(0, 0), (1, 0)]
    assert algorithm.formats == ("bfloat16", "tfloat32")
    with pytest.raises(nj.InvalidProgramError, match="3 operations"):
        parsed(op, text(3))


def test_parts_cannot_be_compressed():
    policy = nj.Policy(auto_cast="matmult", sparsity="4:16")
    with pytest.raises(nj.UnsupportedError, match="several operations"):
        nj.jit(x3, policy=policy)(*operands(16))
