"""N:M sparsity against a plain Python model: values, tags, packing, errors.

The model sorts Python tuples group by group and shares no code with the implementation;
values are compared as bits.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax import lax

import neuronjax as nj
from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.sparsity import (
    DTYPES,
    PATTERNS,
    SparseArray,
    SparsityPattern,
    expanded_rows,
    get_pattern,
    magnitude_ranks,
    sparsify,
)
from tests.arrays import bits

pytestmark = pytest.mark.usefixtures("strict_promotion")

some_patterns = pytest.mark.parametrize("pattern", ["4:16", "2:8", "1:2"])
NAN, INF = math.nan, math.inf
SPECIAL = [0.0, -0.0, 1.0, -1.0, 1.5, -2.0, 1e-30, -1e-40, INF, -INF, NAN, -NAN]


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def _assert_same(actual: Any, expected: Any) -> None:
    assert np.asarray(actual).dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(bits(actual), bits(expected))


def _weight(value: Any) -> float:
    """The order of magnitudes, as a float that has no NaN."""
    value = float(value)
    return -1.0 if math.isnan(value) else -abs(value) if value else 0.0


def _before(value: Any) -> tuple[int, float]:
    """A sort key: NaN first, then by magnitude."""
    return (0, 0.0) if math.isnan(float(value)) else (1, _weight(value))


def _model_vector(x: np.ndarray, n: int, m: int) -> tuple[list[Any], list[int]]:
    values, tags = [], []
    for start in range(0, len(x), m):
        group = list(x[start : start + m])
        group += [x.dtype.type(0)] * (m - len(group))
        order = sorted(range(m), key=lambda i: (*_before(group[i]), i))
        for position in sorted(order[:n]):
            tags.append(position)
            values.append(group[position])
    return values, tags


def _model(x: np.ndarray, pattern: str, axis: int) -> tuple[np.ndarray, np.ndarray]:
    n, m = map(int, pattern.split(":"))
    moved = np.moveaxis(x, axis, -1)
    length = -(-moved.shape[-1] // m) * n
    values = np.zeros((*moved.shape[:-1], length), x.dtype)
    tags = np.zeros(values.shape, np.uint8)
    for index in np.ndindex(moved.shape[:-1]):
        kept, positions = _model_vector(moved[index], n, m)
        values[index], tags[index] = np.array(kept, x.dtype), positions
    return np.moveaxis(values, -1, axis), np.moveaxis(tags, -1, axis)


def _model_dense(x: np.ndarray, pattern: str, axis: int) -> np.ndarray:
    n, m = map(int, pattern.split(":"))
    moved = np.moveaxis(x, axis, -1)
    dense = np.zeros_like(moved)
    for index in np.ndindex(moved.shape[:-1]):
        values, tags = _model_vector(moved[index], n, m)
        for i, (value, tag) in enumerate(zip(values, tags, strict=True)):
            if i // n * m + tag < moved.shape[-1]:
                dense[index][i // n * m + tag] = value
    return np.moveaxis(dense, -1, axis)


def _data(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Few distinct magnitudes, so ties abound, and every special value."""
    rng = np.random.default_rng(seed)
    normal = np.round(rng.standard_normal(shape) * 2) / 2
    special = rng.choice(SPECIAL, shape)
    x = np.where(rng.random(shape) < 0.2, special, normal)
    with np.errstate(all="ignore"):
        return x.astype(_dtype(dtype))


# -- patterns --------------------------------------------------------------------------


def test_patterns_are_those_of_the_hardware_page():
    assert list(PATTERNS) == ["4:16", "4:12", "4:8", "2:8", "2:4", "1:4", "1:2"]
    assert [p.ratio for p in PATTERNS.values()] == [4, 3, 2, 4, 2, 4, 2]
    for name, pattern in PATTERNS.items():
        assert name == pattern.name == str(pattern)
        assert pattern.kept * pattern.ratio == pattern.group <= 16


def test_patterns_by_name_by_the_other_spelling_and_by_themselves():
    assert get_pattern("4:16") == get_pattern("16:4") == SparsityPattern(4, 16)
    assert get_pattern(SparsityPattern(2, 4)) is PATTERNS["2:4"]


@pytest.mark.parametrize(
    "name", ["3:4", "", "4", "4:16:4", SparsityPattern(3, 5), None]
)
def test_an_unknown_pattern_is_refused_with_all_names(name):
    with pytest.raises(
        InvalidProgramError, match="4:16, 4:12, 4:8, 2:8, 2:4, 1:4, 1:2"
    ):
        get_pattern(name)


# -- sparsify --------------------------------------------------------------------------


@pytest.mark.slow
def test_sparsify_of_a_small_example():
    x = jnp.array([1, -3, 2, 0, 0, 0, -1, 5], jnp.float32)
    sparse = sparsify(x, "2:4")
    assert sparse.values.tolist() == [-3, 2, -1, 5]
    assert sparse.tags.tolist() == [1, 2, 2, 3]
    assert sparse.todense().tolist() == [0, -3, 2, 0, 0, 0, -1, 5]
    assert (sparse.axis, sparse.length, sparse.shape) == (-1, 8, (8,))
    assert sparse.pattern.name == "2:4"
    assert expanded_rows(sparse.tags, "2:4").tolist() == [1, 2, 6, 7]


@pytest.mark.parametrize(
    ("group", "tags"),
    [
        ([1, 1, 1, 1], [0, 1]),  # ties: the lower index
        ([0, 2, -2, 2], [1, 2]),
        ([0, 0, 0, 0], [0, 1]),
        ([-0.0, 0, 0, 3], [0, 3]),  # -0 ties with +0
        ([INF, NAN, -INF, 9], [0, 1]),  # NaN above Inf
        ([INF, -INF, NAN, NAN], [2, 3]),
        ([NAN, -NAN, NAN, INF], [0, 1]),  # of NaNs again the lower index
        ([0, 1e-45, 0, -2e-45], [1, 3]),  # subnormals are not flushed
    ],
)
def test_ties_and_special_values(group, tags):
    x = np.array(group, np.float32)
    sparse = sparsify(x, "2:4")
    assert sparse.tags.tolist() == tags
    _assert_same(sparse.values, x[tags])


def test_the_payload_of_a_nan_does_not_matter_and_is_kept():
    x = np.array([0x7FC00000, 0xFFFFFFFF, 0x7F800001, 0x3F800000], np.uint32)
    sparse = sparsify(x.view(np.float32), "2:4")
    assert sparse.tags.tolist() == [0, 1]
    _assert_same(sparse.values, x[:2].view(np.float32))


@pytest.mark.slow_except("1:4-float32")
@pytest.mark.parametrize(
    ("pattern", "dtype"),
    [*itertools.product(PATTERNS, ["float32"]), *(("2:4", d) for d in DTYPES[1:])],
)
def test_sparsify_matches_the_numpy_model(pattern, dtype):
    x = _data((33, 5), dtype)
    sparse = sparsify(x, pattern)
    values, tags = _model(x, pattern, 0)
    _assert_same(sparse.values, values)
    _assert_same(sparse.tags, tags)
    _assert_same(sparse.todense(), _model_dense(x, pattern, 0))


# Few shapes, for each compiles; empty axes and axes shorter than a group among them.
LAYOUTS = [
    ((7,), 0, "1:2"),
    ((3, 29), 1, "4:12"),
    ((16, 2, 5), 1, "1:4"),
    ((2, 1, 32, 3), -2, "4:16"),
    ((0, 4), 1, "2:4"),
    ((4, 0), -1, "2:8"),
    ((19, 3), 0, "4:8"),
]


@pytest.mark.slow
@settings(max_examples=20)
@given(
    layout=st.sampled_from(LAYOUTS),
    codes=st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=9),
    seed=st.integers(0, 999),
)
def test_any_codes_against_the_model(layout, codes, seed):
    shape, axis, pattern = layout
    chosen = np.random.default_rng(seed).choice(np.array(codes, np.uint16), shape)
    x = chosen.view(ml_dtypes.bfloat16)
    sparse = sparsify(x, pattern, axis=axis)
    values, tags = _model(x, pattern, axis)
    _assert_same(sparse.values, values)
    _assert_same(sparse.tags, tags)
    _assert_same(sparse.todense(), _model_dense(x, pattern, axis))
    assert (sparse.shape, sparse.axis) == (x.shape, axis % x.ndim - x.ndim)
    ranks = np.asarray(magnitude_ranks(x, pattern, axis=axis))
    kept = ranks < get_pattern(pattern).kept
    _assert_same(np.where(kept, x, np.zeros_like(x)), sparse.todense())
    again = SparseArray.from_dense(sparse.todense(), pattern, axis=axis)
    _assert_same(again.todense(), sparse.todense())


@pytest.mark.slow
def test_bfloat16_subnormals_and_payloads_survive_a_lone_select():
    """A select between a BF16 code and 0 must not become one between BF16 values."""
    codes = np.zeros((16, 2, 5), np.uint16)
    codes[::2, 1], codes[1::2, 0] = 0x8001, 0xFF81
    x = codes.view(ml_dtypes.bfloat16)
    sparse = sparsify(x, "1:4", axis=1)
    _assert_same(sparse.todense(), x)
    _assert_same(jax.jit(lambda x: sparsify(x, "1:4", axis=1).todense())(x), x)


@pytest.mark.slow_cases("float8_e5m2")
@pytest.mark.parametrize("dtype", ["float8_e5m2", "float8_e4m3fn", "bfloat16"])
def test_the_order_of_magnitudes_over_all_codes(dtype):
    """In 1:2 every code meets its neighbours in the order of codes."""
    width = _dtype(dtype).itemsize * 8
    codes = np.arange(1 << width, dtype=f"uint{width}")
    other = np.roll(codes, 1) ^ np.random.default_rng(0).integers(0, 4, codes.shape)
    pairs = np.stack([codes, other.astype(codes.dtype)]).view(_dtype(dtype))
    with np.errstate(invalid="ignore"):
        left, right = np.abs(pairs.astype(np.float64))
    second = (right > left) | np.isnan(right) & ~np.isnan(left)
    np.testing.assert_array_equal(sparsify(pairs, "1:2").tags[0], second)


@pytest.mark.slow
@some_patterns
def test_a_short_last_group_keeps_zeros_beyond_the_end_only_if_it_must(pattern):
    kept, group = get_pattern(pattern).kept, get_pattern(pattern).group
    for rows in (1, kept + 1):
        x = np.arange(1, group + rows + 1, dtype=np.float32)
        sparse = sparsify(x, pattern)
        beyond = np.asarray(expanded_rows(sparse.tags, pattern)) >= len(x)
        assert beyond.sum() == max(kept - rows, 0)
        assert not bits(sparse.values)[beyond].any()
        assert sparse.shape == x.shape


@pytest.mark.slow
def test_a_sparse_array_is_a_pytree_with_a_static_axis():
    sparse = sparsify(jnp.ones((16, 4)), "4:16")
    leaves, tree = jax.tree.flatten(sparse)
    assert [leaf.dtype for leaf in leaves] == [jnp.float32, jnp.uint8]
    assert jax.tree.unflatten(tree, leaves).axis == -2
    with pytest.raises(dataclasses.FrozenInstanceError):
        sparse.axis = 0


# -- the same bits everywhere ----------------------------------------------------------


def _composed(x: jax.Array) -> dict[str, jax.Array]:
    """Between arithmetic, as in a program."""
    x = x * jnp.float32(0.5)
    sparse = sparsify(x, "4:12", axis=-2)
    return {
        "values": sparse.values,
        "tags": sparse.tags,
        "dense": sparse.todense(),
        "ranks": magnitude_ranks(x, "4:12", axis=-2),
    }


def _assert_trees_same(actual: Any, expected: Any) -> None:
    jax.tree.map(_assert_same, actual, expected)


@pytest.mark.slow
def test_jit_vmap_scan_and_eager_agree():
    x = jnp.asarray(_data((3, 40, 6), "float32", seed=3))
    expected = [_composed(one) for one in x]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected)
    _assert_trees_same(jax.jit(jax.vmap(_composed))(x), stacked)
    scanned = jax.jit(lambda x: lax.scan(lambda c, one: (c, _composed(one)), 0, x)[1])
    _assert_trees_same(scanned(x), stacked)
    with jax.disable_jit():
        sparse = sparsify(x[0] * jnp.float32(0.5), "4:12")
    _assert_same(sparse.values, expected[0]["values"])
    _assert_same(sparse.tags, expected[0]["tags"])


@pytest.mark.slow
def test_a_sparse_array_through_vmap():
    x = jnp.asarray(_data((3, 2, 32, 4), "bfloat16"))
    batch = jax.vmap(jax.vmap(sparsify))(x)
    assert (batch.axis, batch.shape) == (-2, x.shape)
    _assert_same(batch.todense(), sparsify(x, axis=2).todense())
    one = jax.tree.map(lambda leaf: leaf[1, 1], batch)
    _assert_same(one.todense(), sparsify(x[1, 1]).todense())
    _assert_same(jax.vmap(SparseArray.todense)(batch), batch.todense())


@pytest.mark.slow
def test_inside_an_emulated_program():
    x = jnp.asarray(_data((32, 2), "bfloat16"))
    tags = lambda x: sparsify(x, "2:4").tags  # noqa: E731
    emulated = nj.jit(tags, target="trn2", policy="bf16")
    _assert_same(emulated(x), tags(x))


# -- parts -----------------------------------------------------------------------------


@pytest.mark.slow
@some_patterns
def test_parts_in_any_order_make_the_array(pattern):
    sparse = sparsify(_data((50, 3), "float16"), pattern)
    kept = sparse.pattern.kept
    groups = sparse.tags.shape[0] // kept
    order = np.random.default_rng(0).permuted(
        np.arange(groups * kept).reshape(groups, kept), axis=1
    )
    again = SparseArray.from_parts(
        sparse.values[order.ravel()],
        sparse.tags[order.ravel()],
        pattern=pattern,
        length=50,
    )
    _assert_same(again.values, sparse.values)
    _assert_same(again.tags, sparse.tags)
    _assert_same(again.todense(), sparse.todense())


def _parts(tags: Any, values: Any = None, **options: Any) -> SparseArray:
    tags = np.array(tags, np.uint8)
    values = np.ones(tags.shape, np.float32) if values is None else values
    return SparseArray.from_parts(values, tags, **{"pattern": "2:4", **options})


def test_a_tag_out_of_range_is_named():
    tags = [[0, 1], [1, 2], [0, 9], [7, 1]]
    with pytest.raises(
        InvalidProgramError,
        match=r"tags\[2, 1\] is 9, in group 1 of axis -2 \(2:4\)\n.*from 0 to 3",
    ):
        _parts(tags)


def test_a_tag_given_twice_is_named():
    tags = [[0, 1, 3, 2], [0, 1, 2, 2], [1, 0, 1, 1]]
    with pytest.raises(
        InvalidProgramError,
        match=r"tags\[0, 3\] is 3, for the second time in group 1 of axis -1 \(2:4\)",
    ):
        _parts([[0, 1, 3, 3], [0, 0, 2, 2], [1, 0, 1, 0]], axis=1)
    with pytest.raises(InvalidProgramError, match=r"tags\[1, 3\] is 2, .* group 1"):
        _parts(tags, axis=-1)


def test_values_beyond_the_end_must_be_zeros():
    with pytest.raises(
        InvalidProgramError, match=r"values\[3\] is 1.0, but its position 5 on axis"
    ):
        _parts([0, 1, 0, 1], length=5)
    values = np.array([1, 2, 3, -0.0], np.float32)
    sparse = _parts([0, 1, 0, 1], values, length=5)
    assert sparse.todense().tolist() == [1, 2, 0, 0, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(values=np.ones(3, np.float32)),
            r"shape \(3,\) with tags of shape \(4,\)",
        ),
        (dict(values=np.ones(4, np.int32)), "int32 has no sparse matmul"),
        (dict(values=np.ones(4, np.float64)), "float64 has no sparse matmul"),
        (dict(axis=1), "axis 1 of an array of 1 dimensions"),
        (dict(length=9), "length 9 does not fit 2 groups of 4\n.*from 5 to 8"),
        (dict(length=4), "length 4 does not fit 2 groups of 4\n.*from 5 to 8"),
        (dict(pattern="4:5"), "'4:5' is not a sparsity pattern"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options, message):
    with pytest.raises(InvalidProgramError, match=message):
        _parts([0, 1, 0, 1], **options)


def test_an_incomplete_group_and_tags_of_another_dtype_are_refused():
    with pytest.raises(InvalidProgramError, match="axis -1 has 3 kept elements"):
        _parts([0, 1, 0])
    ones = np.ones(4, np.float32)
    with pytest.raises(InvalidProgramError, match=r"tags are int32.*\n.*'uint8'"):
        SparseArray.from_parts(ones, np.arange(4, dtype=np.int32), pattern="4:8")


def test_parts_inside_jit_are_checked_outside():
    make = jax.jit(lambda v, t: SparseArray.from_parts(v, t, pattern="2:4"))
    values = jnp.array([1, 2, 3, 4], jnp.float32)
    sparse = make(values, jnp.array([0, 1, 2, 2], jnp.uint8))
    with pytest.raises(InvalidProgramError, match=r"tags\[3\] is 2, for the second"):
        sparse.todense()
    assert jax.jit(SparseArray.todense)(sparse).tolist() == [1, 2, 0, 0, 0, 0, 4, 0]


# -- dense arrays that obey the pattern ------------------------------------------------


@pytest.mark.slow
def test_an_array_that_obeys_loses_nothing():
    x = np.zeros((32, 3), np.float32)
    x[[1, 5, 15, 16, 31]] = [[1], [-2], [NAN], [-INF], [1e-40]]
    sparse = SparseArray.from_dense(x, "4:8")
    _assert_same(sparse.todense(), x)


@pytest.mark.slow
def test_an_array_that_does_not_obey_is_refused():
    x = np.zeros((3, 32), np.float32)
    x[1, 16:21] = [1, 1e-45, NAN, -1, 2]
    with pytest.raises(
        InvalidProgramError,
        match=r"group 1 of axis -1, at group index \[1, 1\], has 5 non-zero .* 4 of 16",
    ):
        SparseArray.from_dense(x, "4:16", axis=1)
    x[1, 20] = -0.0
    _assert_same(SparseArray.from_dense(x, "4:16", axis=1).todense() == x, x == x)


def test_a_short_last_group_is_checked_too():
    x = np.ones(5, np.float32)
    x[1:4] = 0
    assert SparseArray.from_dense(x, "1:4").todense().tolist() == [1, 0, 0, 0, 1]
    with pytest.raises(InvalidProgramError, match="group 0 of axis -1"):
        SparseArray.from_dense(np.ones(5, np.float32), "1:4")


def test_inside_jit_a_dense_array_is_pruned():
    x = jnp.arange(1, 9, dtype=jnp.float32)
    sparse = jax.jit(lambda x: SparseArray.from_dense(x, "2:4"))(x)
    assert sparse.values.tolist() == [3, 4, 7, 8]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones(4, np.int8), "int8 has no sparse matmul"),
        (np.ones(4, ml_dtypes.float4_e2m1fn), "float4_e2m1fn has no sparse matmul"),
        (np.ones((), np.float32), "axis 0 of an array of 0 dimensions"),
    ],
)
def test_what_is_not_an_operand_is_refused(x, message):
    with pytest.raises(InvalidProgramError, match=message):
        sparsify(x)
    with pytest.raises(InvalidProgramError, match=message):
        SparseArray.from_dense(x, "4:16")


# -- packed tags -----------------------------------------------------------------------


@pytest.mark.slow
def test_the_tile_of_the_guide():
    """[A3]: 128 x 128 kept elements have a tag tile uint16 [128, 32]."""
    sparse = sparsify(_data((512, 128), "bfloat16"))
    assert sparse.nbytes == 128 * 128 * 2 + 128 * 32 * 2


@pytest.mark.slow
def test_tags_are_packed_along_an_axis_that_is_not_sparse():
    sparse = sparsify(_data((6, 32), "float32"), "2:8", axis=1)
    assert sparse.nbytes == 6 * 8 * 4 + 2 * 8 * 2
    vector = sparsify(_data((32,), "float32"), "2:8")
    assert vector.nbytes == 8 * 4 + 2 * 2


@pytest.mark.slow_except("2:8")
@some_patterns
def test_expanded_rows_address_the_dense_array(pattern):
    x = _data((2, 48, 5), "float32")
    sparse = sparsify(x, pattern, axis=1)
    rows = expanded_rows(sparse.tags, pattern, axis=1)
    assert rows.dtype == jnp.int32
    _assert_same(np.take_along_axis(x, np.asarray(rows), axis=1), sparse.values)
    assert (np.diff(np.asarray(rows), axis=1) > 0).all()
