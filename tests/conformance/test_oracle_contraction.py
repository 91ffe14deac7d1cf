"""TensorE against the oracle, bit for bit: dots in every format, tile and layout."""

from __future__ import annotations

import dataclasses
import fractions
import functools
import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from tests.oracles import contraction, data, floats

BATCHED = (((2,), (1,)), ((0,), (0,)))
PLAIN = (((1,), (0,)), ((), ()))
MATMULT = functools.partial(nj.Policy, auto_cast="matmult")
FP8 = {"trn1": "e4m3", "trn2": "e4m3", "trn3": "e4m3fn"}
WIDE_FORMATS = ("fp32", "bf16", "fp16", "tf32")
# Products of numbers of these formats can leave FP32's range.
UNBOUNDED_FORMATS = ("fp32", "bf16", "tf32")


def fp8_array(target: str, *, scaled: bool) -> contraction.Array:
    name = FP8[target]
    return contraction.Array(
        lhs=name, rhs=name, scaled=scaled, double_row=target != "trn1"
    )


def fp8_policy(*, scaled: bool) -> nj.Policy:
    return MATMULT(auto_cast_type="fp8", scaling="current" if scaled else "none")


@functools.cache
def emulated_dots(dimensions, target: str, policy: nj.Policy | str):
    """Emulates a list of dots of the same layout in one program."""

    def dots(pairs):
        return [lax.dot_general(a, b, dimensions) for a, b in pairs]

    return nj.jit(dots, target=target, policy=policy)


def check_dots(pairs, dimensions, target, policy, array) -> None:
    outputs = emulated_dots(dimensions, target, policy)(pairs)
    for (a, b), out in zip(pairs, outputs, strict=True):
        expected = contraction.dot_general(a, b, dimensions, array)
        floats.same_bits(out, expected, f"{target} {array} {a.shape} {b.shape}")


def round_once(exact: fractions.Fraction) -> np.float32:
    """Nearest FP32 number, ties to even, subnormal results zero."""
    if not exact:
        return np.float32(0)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < fractions.Fraction(2) ** exponent
    quantum = fractions.Fraction(2) ** (exponent - 23)
    rounded = round(size / quantum) * quantum
    if rounded < fractions.Fraction(2) ** -126:
        rounded = 0
    elif rounded >= 2**128:
        rounded = np.inf
    return np.float32(np.copysign(float(rounded), float(exact)))


def test_the_oracle_rounds_a_fused_sum_once():
    rng = np.random.default_rng(0)
    halfway = np.float32([1 + 2.0**-12, 1 - 2.0**-12, 1 + 2.0**-23, 2.0**-63])
    x, y = (np.concatenate([data.kinds(rng, (60,))[:4].ravel(), halfway]) for _ in "xy")
    near = -floats.multiply(x, y) * np.float32(0.99)
    z = np.where(np.isfinite(near) & (rng.random(x.size) < 0.5), near, x[::-1])
    x, y, z = map(floats.flush, (x, y, z))
    terms = zip(*(map(fractions.Fraction, v.tolist()) for v in (x, y, z)), strict=True)
    got = floats.fma(x, y, z)
    assert np.array_equal(got, [round_once(a * b + c) for a, b, c in terms])
    assert np.mean(got != floats.add(floats.multiply(x, y), z)) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE_FORMATS)
def test_dots_equal_the_fold(name):
    rng = np.random.default_rng(1)
    pairs = [
        (data.kinds(rng, (4, k)), data.kinds(rng, (k, 5)))
        for k in (2, 127, 129, 256, 700)
    ]
    check_dots(pairs, BATCHED, "trn2", name, contraction.Array(lhs=name, rhs=name))


@pytest.mark.slow
def test_fp32_operands_in_sums_of_all_rows():
    rng = np.random.default_rng(1)
    pairs = [
        (data.kinds(rng, (4, k)), data.kinds(rng, (k, 5))) for k in (2, 32, 33, 300)
    ]
    policy = nj.Policy(fp32_model="fp32_4pass")
    check_dots(pairs, BATCHED, "trn2", policy, contraction.Array(fp32_rows=128))
    # Only FP32 operands: what BF16 ones do is the other question.
    bf16 = nj.Policy.preset("bf16")
    a, b = data.normal(rng, (4, 90)), data.normal(rng, (90, 5))
    outs = [
        emulated_dots(PLAIN, "trn2", p)([(a, b)])[0]
        for p in (bf16, dataclasses.replace(bf16, fp32_model="fp32_4pass"))
    ]
    floats.same_bits(*outs)


@pytest.mark.slow_cases("fp16", "tf32")
@pytest.mark.parametrize("name", WIDE_FORMATS)
def test_a_zero_result_is_positive(name):
    tiny = np.float32(2.0**-70 if name != "fp16" else 0)
    lhs = np.array([[-0.0], [0.0], [-1.0], [-tiny]], np.float32)
    rhs = np.array([[0, -0.0, tiny]], np.float32)
    pair = (np.repeat(lhs, 2, axis=1), np.repeat(rhs, 2, axis=0))
    check_dots([pair], PLAIN, "trn2", name, contraction.Array(lhs=name, rhs=name))


@pytest.mark.slow_except("fp32")
@pytest.mark.parametrize("name", UNBOUNDED_FORMATS)
def test_products_beyond_the_range_meet_the_sum_exact(name):
    rng = np.random.default_rng(2)
    big = np.float32(2.0**70)
    # Only a sum that overflows is infinite.
    cancelled = (np.float32([[big, big]] * 2), np.float32([[big], [-big]]))
    ends = [-(2.0**64), 2.0**64]
    rescued = (np.float32([ends, ends]), np.float32([[2.0**63], [2.0**64]]))
    random = (data.wide(rng, (4, 130)), data.wide(rng, (130, 5)))
    pairs = [cancelled, rescued, random]
    check_dots(pairs, PLAIN, "trn2", name, contraction.Array(lhs=name, rhs=name))


@pytest.mark.slow_except("fp32")
@pytest.mark.parametrize("name", UNBOUNDED_FORMATS)
def test_products_below_the_range_meet_the_sum_exact(name):
    rng = np.random.default_rng(3)

    def small(shape):
        return data.normal(rng, shape) * np.exp2(rng.integers(-66, -60, shape))

    pairs = [
        (small((4, k)).astype(np.float32), small((k, 5)).astype(np.float32))
        for k in (3, 130)
    ]
    check_dots(pairs, PLAIN, "trn2", name, contraction.Array(lhs=name, rhs=name))


def test_fp16_keeps_its_own_subnormals():
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(s).astype(np.float32) * 1e-6 for s in ((4, 9), (9, 5)))
    array = contraction.Array(lhs="fp16", rhs="fp16")
    assert np.any(contraction.dot_general(a, b, PLAIN, array))
    check_dots([(a, b)], PLAIN, "trn2", "fp16", array)


@pytest.mark.slow_except("(255, 256, 400)-trn2")
@pytest.mark.parametrize("target", FP8)
@pytest.mark.parametrize("k", [(255, 256, 400), (200, 300, 700)], ids=str)
def test_unscaled_fp8_dots_equal_the_fold_of_pairs(target, k):
    rng = np.random.default_rng(5)
    pairs = [(data.kinds(rng, (3, n)), data.kinds(rng, (n, 4))) for n in k]
    array = fp8_array(target, scaled=False)
    check_dots(pairs, BATCHED, target, fp8_policy(scaled=False), array)


@pytest.mark.slow_except("trn2")
@pytest.mark.parametrize("target", FP8)
def test_scaled_fp8_dots_equal_the_fold_of_pairs(target):
    rng = np.random.default_rng(6)

    def tensor(shape, exponent):
        return data.normal(rng, shape) * np.float32(2.0**exponent)

    pairs = [
        (tensor((3, 130), 0), tensor((130, 4), -40)),
        (tensor((3, 300), 60), tensor((300, 4), -90)),
        (tensor((3, 9), 5), np.zeros((9, 4), np.float32)),
        (tensor((3, 9), 0), data.special(rng, (9, 4))),
        (tensor((3, 9), 125), tensor((9, 4), -125)),
    ]
    array = fp8_array(target, scaled=True)
    check_dots(pairs, PLAIN, target, fp8_policy(scaled=True), array)


@pytest.mark.slow_except("trn3")
@pytest.mark.parametrize("target", FP8)
def test_a_scale_brings_the_largest_number_just_below_the_format_s(target):
    """Around the largest value in every binade the scale changes by a factor of two."""
    largest = np.float32(floats.FORMATS[FP8[target]].largest)
    edges = [largest, np.nextafter(largest, np.float32(np.inf)), largest - 1]
    column = np.float32([[1.0], [3.0]])
    pairs = [(np.float32([[edge, 1.0625]] * 2), column) for edge in edges]
    array = fp8_array(target, scaled=True)
    check_dots(pairs, PLAIN, target, fp8_policy(scaled=True), array)


@pytest.mark.slow
def test_a_bf16_psum_rounds_every_tile():
    rng = np.random.default_rng(14)
    pairs = [(data.normal(rng, (6, k)), data.normal(rng, (k, 5))) for k in (100, 700)]
    policy = MATMULT(auto_cast_type="bf16", psum_dtype="bfloat16")
    array = contraction.Array(lhs="bf16", rhs="bf16", psum="bf16")
    check_dots(pairs, PLAIN, "trn3", policy, array)


LAYOUTS = {
    "lhs and rhs transposed": ((((0,), (1,)), ((), ())), (130, 3), (4, 130)),
    "two contracted": ((((1, 2), (0, 1)), ((), ())), (3, 5, 30), (5, 30, 4)),
    "two contracted, apart": ((((0, 2), (0, 2)), ((), ())), (5, 3, 30), (5, 4, 30)),
    "batch last": ((((0,), (1,)), ((2,), (0,))), (131, 3, 2), (2, 131, 4)),
    "two batches": ((((2,), (3,)), ((0, 1), (1, 0))), (2, 3, 140, 2), (3, 2, 4, 140)),
    "vectors": ((((0,), (0,)), ((), ())), (300,), (300,)),
    "outer": ((((), ()), ((), ())), (3,), (4,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_every_layout_is_the_same_fold(name):
    rng = np.random.default_rng(7)
    pairs = [
        (data.cancelling(rng, lhs), data.cancelling(rng, rhs))
        for _, lhs, rhs in LAYOUTS.values()
    ]

    def program(pairs):
        dimensions = (layout[0] for layout in LAYOUTS.values())
        return [lax.dot_general(a, b, d) for (a, b), d in zip(pairs, dimensions)]

    array = contraction.Array(lhs=name, rhs=name)
    outputs = nj.jit(program, target="trn2", policy=name)(pairs)
    for (label, layout), (a, b), out in zip(LAYOUTS.items(), pairs, outputs):
        expected = contraction.dot_general(a, b, layout[0], array)
        floats.same_bits(out, expected, f"{name} {label}")


def test_declared_narrow_operands_are_one_pass_and_one_rounding():
    rng = np.random.default_rng(8)
    a, b = data.cancelling(rng, (3, 300)), data.cancelling(rng, (300, 4))

    def program(a, b):
        narrow = [(a.astype(t), b.astype(t)) for t in (jnp.bfloat16, jnp.float16)]
        wide = [jnp.matmul(x, y, preferred_element_type=jnp.float32) for x, y in narrow]
        return [x @ y for x, y in narrow], wide

    stored, wide = nj.jit(program, target="trn2", policy="fp32")(a, b)
    formats = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}
    for (name, dtype), x, y in zip(formats.items(), stored, wide, strict=True):
        array = contraction.Array(lhs=name, rhs=name)
        expected = contraction.dot_general(a, b, PLAIN, array)
        floats.same_bits(y, expected, name)
        floats.same_bits(x, floats.round_to(expected, name).astype(dtype), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE_FORMATS)
def test_matrices_with_few_rows_or_columns(name):
    """Shapes that XLA takes for matrix-vector products."""
    rng = np.random.default_rng(15)
    # Every pair of an M, a K and an N: all triples would be twice as many.
    sizes = [(1, 7, 2), (1, 130, 2), (3, 7, 1), (3, 130, 2), (16, 7, 1), (16, 130, 2)]
    pairs = [
        (data.cancelling(rng, (m, k)), data.cancelling(rng, (k, n)))
        for m, k, n in sizes
    ]
    check_dots(pairs, PLAIN, "trn2", name, contraction.Array(lhs=name, rhs=name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp8"])
def test_op_by_op_gives_the_fold_too(name):
    rng = np.random.default_rng(9)
    pair = (data.cancelling(rng, (3, 300)), data.cancelling(rng, (300, 4)))
    if name == "fp8":
        array, policy = fp8_array("trn2", scaled=True), fp8_policy(scaled=True)
    else:
        array, policy = contraction.Array(lhs=name, rhs=name), name
    with jax.disable_jit():
        check_dots([pair], PLAIN, "trn2", policy, array)


@pytest.mark.slow
def test_in_a_scan_under_vmap_and_an_outer_jit():
    """Every step multiplies by a matrix and then by its transpose."""
    rng = np.random.default_rng(10)
    w = data.normal(rng, (2, 140, 140)) / np.float32(12)
    x = data.normal(rng, (2, 3, 140))

    def step(x, w):
        y = x @ w
        return y @ w.T, y

    def scanned(x, w):
        return lax.scan(lambda c, _: step(c, w), x, None, length=2)

    emulate = jax.jit(jax.vmap(nj.jit(scanned, target="trn2", policy="bf16")))
    carry, ys = emulate(x, w)
    array = contraction.Array(lhs="bf16", rhs="bf16")
    for i in range(2):
        expected = x[i]
        for n in range(2):
            y = contraction.dot_general(expected, w[i], PLAIN, array)
            floats.same_bits(ys[i, n], y, f"example {i} step {n}")
            expected = contraction.dot_general(y, w[i].T, PLAIN, array)
        floats.same_bits(carry[i], expected, f"example {i}")


@st.composite
def small_dots(draw):
    """Dimension numbers and shapes with every dimension in any place."""
    batch, contract, lhs_free, rhs_free = (
        draw(st.lists(st.integers(1, 4), max_size=2)) for _ in range(4)
    )
    sizes = {"b": batch, "k": contract, "m": lhs_free, "n": rhs_free}

    def place(kinds: str):
        axes = [(kind, i) for kind in kinds for i in range(len(sizes[kind]))]
        axes = draw(st.permutations(axes))
        shape = tuple(sizes[kind][i] for kind, i in axes)
        where = {
            kind: tuple(axes.index((kind, i)) for i in range(len(sizes[kind])))
            for kind in "bk"
        }
        return shape, where

    (lhs, at), (rhs, to) = place("bkm"), place("bkn")
    return ((at["k"], to["k"]), (at["b"], to["b"])), lhs, rhs


@pytest.mark.slow
@hypothesis.settings(max_examples=6)
@hypothesis.given(
    small_dots(), st.sampled_from(["fp32", "bf16"]), st.integers(0, 2**32 - 1)
)
def test_any_small_dot(dot, name, seed):
    dimensions, lhs, rhs = dot
    rng = np.random.default_rng(seed)
    pair = (data.cancelling(rng, lhs), data.cancelling(rng, rhs))
    program = nj.jit(
        lambda a, b: lax.dot_general(a, b, dimensions), target="trn2", policy=name
    )
    array = contraction.Array(lhs=name, rhs=name)
    expected = contraction.dot_general(*pair, dimensions, array)
    floats.same_bits(program(*pair), expected, f"{name} {dimensions} {lhs} {rhs}")


def convolution_case(spec, image, kernel, **window):
    return spec, image, kernel, window


CONVOLUTIONS = {
    "1-D": convolution_case(
        ("NCH", "OIH", "NCH"), (2, 3, 9), (4, 3, 3), strides=(2,), padding=((1, 2),)
    ),
    "2-D channels last": convolution_case(
        ("NHWC", "HWIO", "NHWC"), (2, 6, 7, 3), (3, 2, 3, 4), padding=((1, 1), (0, 1))
    ),
    "strides and dilation": convolution_case(
        ("NCHW", "OIHW", "NCHW"),
        (2, 2, 9, 8),
        (3, 2, 3, 2),
        strides=(2, 3),
        padding=((2, 1), (1, 1)),
        rhs_dilation=(2, 1),
    ),
    "groups": convolution_case(
        ("NHWC", "HWIO", "NHWC"),
        (2, 5, 5, 4),
        (3, 3, 2, 6),
        padding=((1, 1), (1, 1)),
        feature_group_count=2,
    ),
    "depthwise": convolution_case(
        ("NHWC", "HWIO", "NHWC"),
        (2, 6, 5, 4),
        (3, 3, 1, 4),
        strides=(2, 2),
        padding=((0, 1), (1, 1)),
        feature_group_count=4,
    ),
    "transposed": convolution_case(
        ("NCHW", "OIHW", "NCHW"),
        (1, 3, 4, 3),
        (2, 3, 3, 3),
        padding=((2, 1), (1, 1)),
        lhs_dilation=(2, 2),
    ),
    "many tiles": convolution_case(
        ("NHWC", "HWIO", "NHWC"), (2, 4, 4, 32), (3, 3, 32, 3), padding=((1, 1), (1, 1))
    ),
}


def oracle_window(window, rank) -> contraction.Window:
    ones = (1,) * rank
    return contraction.Window(
        strides=window.get("strides", ones),
        padding=window["padding"],
        lhs_dilation=window.get("lhs_dilation", ones),
        rhs_dilation=window.get("rhs_dilation", ones),
    )


def to_oracle(x: np.ndarray, names: str, order: str) -> np.ndarray:
    """The dimensions of x, called `names`, into `order` and then the space."""
    space = [c for c in "HW" if c in names]
    return np.asarray(x).transpose([names.index(c) for c in [*order, *space]])


def convolve(image, kernel, case):
    spec, _, _, window = case
    window = {"strides": (1,) * (image.ndim - 2), "window_strides": None, **window}
    window["window_strides"] = window.pop("strides")
    return lax.conv_general_dilated(image, kernel, dimension_numbers=spec, **window)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "labels"),
    [("fp32", ("1-D", "groups")), ("bf16", tuple(CONVOLUTIONS)[1:])],
    ids=["fp32", "bf16"],
)
def test_convolutions_and_their_gradients(name, labels):
    rng = np.random.default_rng(11)
    cases = [CONVOLUTIONS[label] for label in labels]
    arguments = [
        (data.cancelling(rng, image), data.cancelling(rng, kernel))
        for _, image, kernel, _ in cases
    ]
    outs = [
        jax.eval_shape(functools.partial(convolve, case=case), *pair).shape
        for case, pair in zip(cases, arguments, strict=True)
    ]
    cotangents = [data.cancelling(rng, shape) for shape in outs]

    def program(arguments, cotangents):
        results = []
        for case, pair, cotangent in zip(cases, arguments, cotangents, strict=True):
            out, vjp = jax.vjp(functools.partial(convolve, case=case), *pair)
            results.append((out, *vjp(cotangent)))
        return results

    results = nj.jit(program, target="trn2", policy=name)(arguments, cotangents)
    array = contraction.Array(lhs=name, rhs=name)
    for label, pair, cotangent, got in zip(
        labels, arguments, cotangents, results, strict=True
    ):
        check_convolution(f"{name} {label}", pair, cotangent, got, array)


def check_convolution(label, pair, cotangent, got, array) -> None:
    names, _, _, window = CONVOLUTIONS[label.split(" ", 1)[1]]
    image = to_oracle(pair[0], names[0], "NC")
    kernel = to_oracle(pair[1], names[1], "OI")
    cotangent = to_oracle(cotangent, names[2], "NC")
    view = oracle_window(window, image.ndim - 2)
    groups = window.get("feature_group_count", 1)
    shared = dict(feature_groups=groups)
    out = contraction.convolution(image, kernel, view, array, **shared)
    floats.same_bits(to_oracle(got[0], names[2], "NC"), out, label)
    if "lhs_dilation" in window:
        return  # its gradients are those of a strided convolution, tested there
    to_image = contraction.input_gradient(
        cotangent, kernel, view, array, space=image.shape[2:], **shared
    )
    floats.same_bits(to_oracle(got[1], names[0], "NC"), to_image, f"{label}, image")
    to_kernel = contraction.kernel_gradient(
        image, cotangent, view, array, space=kernel.shape[2:], **shared
    )
    floats.same_bits(to_oracle(got[2], names[1], "OI"), to_kernel, f"{label}, kernel")


@pytest.mark.slow
@pytest.mark.parametrize("target", FP8)
def test_fp8_convolutions_scale_each_tensor_and_pair_rows(target):
    rng = np.random.default_rng(12)
    labels = ("many tiles", "strides and dilation")
    cases = [CONVOLUTIONS[label] for label in labels]
    arguments = []
    for _, *shapes, _ in cases:
        arguments.append([data.normal(rng, shape) for shape in shapes])

    def program(arguments):
        pairs = zip(arguments, cases, strict=True)
        return [convolve(*pair, case=case) for pair, case in pairs]

    policy, array = fp8_policy(scaled=True), fp8_array(target, scaled=True)
    outputs = nj.jit(program, target=target, policy=policy)(arguments)
    for label, (names, _, _, window), (image, kernel), out in zip(
        labels, cases, arguments, outputs, strict=True
    ):
        expected = contraction.convolution(
            to_oracle(image, names[0], "NC"),
            to_oracle(kernel, names[1], "OI"),
            oracle_window(window, image.ndim - 2),
            array,
        )
        floats.same_bits(to_oracle(out, names[2], "NC"), expected, label)


def test_the_order_of_a_fold_is_visible_in_this_data():
    """The tests above have teeth: another order or tile gives other bits."""
    rng = np.random.default_rng(13)
    a, b = data.cancelling(rng, (8, 300)), data.cancelling(rng, (300, 8))
    for name, double_row in itertools.product(("bf16", "e4m3"), (False, True)):
        array = contraction.Array(lhs=name, rhs=name, double_row=double_row)
        ours = contraction.dot_general(a, b, PLAIN, array)
        reverse = contraction.dot_general(a[:, ::-1], b[::-1], PLAIN, array)
        assert np.mean(ours != reverse) > 0.2
        other = contraction.Array(lhs=name, rhs=name, double_row=not double_row)
        assert np.any(ours != contraction.dot_general(a, b, PLAIN, other))
