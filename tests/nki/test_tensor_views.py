"""Views of a tensor are NumPy's views of the same memory, or named errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

import neuronjax.nki.language as nl
from neuronjax.errors import InvalidProgramError
from neuronjax.ir.kernel import Storage
from neuronjax.nki.indexing import layout_at
from neuronjax.nki.tensor import NkiTensor


def tensor(shape, memory="private_hbm", dtype="float32"):
    storage = Storage(0, memory, tuple(shape), dtype)
    return NkiTensor(shape, dtype, storage)


def elements(t: NkiTensor) -> np.ndarray:
    """The element numbers that a view shows, by NumPy's own striding."""
    flat = np.arange(t.storage.size)
    strides = [8 * s for s in t.strides]
    return np.lib.stride_tricks.as_strided(flat[t.offset :], t.shape, strides)


def whole(t: NkiTensor) -> np.ndarray:
    return np.arange(t.storage.size).reshape(t.storage.shape)


SHAPES = st.lists(st.integers(1, 6), min_size=2, max_size=4).map(tuple)


def keys(shape):
    """An index expression for a shape: ints, slices, an ellipsis."""
    entry = lambda n: st.one_of(  # noqa: E731
        st.integers(-n, n - 1),
        st.tuples(st.integers(0, n - 1), st.integers(1, n), st.integers(1, 3))
        .filter(lambda s: s[0] < s[1])
        .map(lambda s: slice(*s)),
        st.just(slice(None)),
    )
    return st.integers(0, len(shape)).flatmap(
        lambda k: st.tuples(*map(entry, shape[:k])).map(lambda e: (*e, Ellipsis))
    )


@pytest.mark.slow
@given(SHAPES.flatmap(lambda s: st.tuples(st.just(s), keys(s))))
def test_hbm_indexing_is_numpys(case):
    shape, key = case
    t = tensor(shape)
    expected = whole(t)[key]
    np.testing.assert_array_equal(
        elements(t[key]), expected if expected.ndim else expected[None]
    )


@given(SHAPES.flatmap(lambda s: st.tuples(st.just(s), keys(s))))
def test_on_chip_indexing_keeps_the_partition(case):
    shape, key = case
    t = tensor(shape, "sbuf")
    found = t[key]
    assert found.ndim >= 2
    kept = whole(t)[key]
    if isinstance(key[0], int) and key[0] is not Ellipsis:
        assert found.shape[0] == 1
    np.testing.assert_array_equal(elements(found).ravel(), kept.ravel())


def test_indexing_as_the_guide_writes_it():
    t = tensor((64, 64, 64), "sbuf")
    assert t[0, 0, 10].shape == (1, 1)
    assert t[:, 0].shape == (64, 64)
    assert t[:, 0, 10].shape == (64, 1)
    assert t[0:64, 0, 0:64].shape == (64, 64)
    assert t[:, :, ::2].shape == (64, 64, 32)
    assert t[0, ..., :].shape == (1, 64, 64)
    assert t[0, ...][:, 0:32, :].shape == (1, 32, 64)
    h = tensor((4, 128, 32))
    assert h[0].shape == (128, 32)
    u = tensor((128, 4, 16), "sbuf")[0:64].permute((0, 2, 1))[:, 0, :]
    assert u.shape == (64, 4)
    v = tensor((128, 64), "sbuf").slice(1, 8, 24)
    assert v.get_pattern() == [[64, 128], [1, 16]]
    assert v.offset == 8


@given(SHAPES, st.data())
def test_chains_of_views(shape, data):
    """Any chain of view methods shows what NumPy's chain shows."""
    t = tensor(shape)
    expected = whole(t)
    for _ in range(data.draw(st.integers(1, 5))):
        t, expected = _step(t, expected, data)
        np.testing.assert_array_equal(elements(t), expected)
        assert t.is_contiguous() == _dense(t)


def _dense(t: NkiTensor) -> bool:
    steps = np.diff(elements(t).ravel())
    return bool((steps == 1).all())


def _step(t, expected, data):
    kind = data.draw(st.sampled_from(["permute", "slice", "expand", "split", "merge"]))
    dim = data.draw(st.integers(0, t.ndim - 1))
    size = t.shape[dim]
    if kind == "permute":
        dims = data.draw(st.permutations(range(t.ndim)))
        return t.permute(dims), expected.transpose(dims)
    if kind == "slice":
        start = data.draw(st.integers(0, size - 1))
        end = data.draw(st.integers(start + 1, size))
        step = data.draw(st.integers(1, 3))
        index = (slice(None),) * dim + (slice(start, end, step),)
        return t.slice(dim, start, end, step), expected[index]
    if kind == "expand" and t.ndim < 6:
        return t.expand_dim(dim), np.expand_dims(expected, dim)
    if kind == "split" and size % 2 == 0:
        shape = (*t.shape[:dim], 2, size // 2, *t.shape[dim + 1 :])
        return t.reshape_dim(dim, (2, -1)), expected.reshape(shape)
    if dim + 1 < t.ndim:
        shape = (*t.shape[:dim], size * t.shape[dim + 1], *t.shape[dim + 2 :])
        try:
            return t.flatten_dims(dim, dim + 1), expected.reshape(shape)
        except InvalidProgramError:
            # NumPy has no view of that shape either.
            with pytest.raises(ValueError, match="copy"):
                np.reshape(expected, shape, copy=False)
    return t, expected


@given(SHAPES, st.data())
def test_reshape_is_numpys_or_refused(shape, data):
    t = tensor(shape)
    expected = whole(t)
    dims = data.draw(st.permutations(range(t.ndim)))
    t, expected = t.permute(dims), expected.transpose(dims)
    factors = data.draw(st.sampled_from([(-1,), (t.size,), (2, -1), (-1, 3), (1, -1)]))
    try:
        view = np.reshape(expected, factors, copy=False)
    except ValueError:
        with pytest.raises(InvalidProgramError, match="reshape"):
            t.reshape(factors)
    else:
        np.testing.assert_array_equal(elements(t.reshape(factors)), view)


def test_broadcast_and_squeeze():
    t = tensor((4, 1, 3), "sbuf")
    repeated = np.broadcast_to(whole(t), (4, 5, 3))
    np.testing.assert_array_equal(elements(t.broadcast(1, 5)), repeated)
    np.testing.assert_array_equal(elements(t.squeeze_dim(1)), whole(t)[:, 0])


def test_rearrange():
    t = tensor((128, 24), "sbuf")
    found = t.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})
    assert found.shape == (128, 6, 4)
    expected = whole(t).reshape(128, 4, 6).transpose(0, 2, 1)
    np.testing.assert_array_equal(elements(found), expected)
    dense = tensor((2, 3, 4))
    found = dense.rearrange(("a", "b", "c"), (("a", "b"), "c"))
    np.testing.assert_array_equal(elements(found), whole(dense).reshape(6, 4))


@pytest.mark.parametrize("target", ["uint8", "bfloat16", "int32", "float32"])
def test_reinterpretation_is_numpys(target):
    t = tensor((8, 6, 8), "sbuf", "float32")
    found = t[:, 2].view(target)
    numpy_dtype = np.dtype({"bfloat16": "uint16"}.get(target, target))
    memory = np.arange(8 * 6 * 8, dtype=np.float32).reshape(8, 6, 8)
    expected = memory[:, 2].view(numpy_dtype)
    assert found.shape == expected.shape
    flat = memory.reshape(-1).view(numpy_dtype)
    strides = [s * flat.itemsize for s in found.strides]
    shown = np.lib.stride_tricks.as_strided(flat[found.offset :], found.shape, strides)
    np.testing.assert_array_equal(shown, expected)


def test_ap_addresses_the_storage():
    t = tensor((16, 16), "sbuf")
    inner = t[:, 4:].ap([[16, 16], [2, 4]])
    assert inner.offset == 4  # inherited
    outer = inner.ap([[16, 16], [1, 8]], offset=8)
    np.testing.assert_array_equal(elements(outer), whole(t)[:, 8:16])
    cast = tensor((128, 256), "sbuf", "int32").ap(
        [[512, 128], [1, 512]], 0, dtype=nl.bfloat16
    )
    assert (cast.shape, cast.dtype) == ((128, 512), "bfloat16")


def test_index_arrays():
    t = tensor((128, 64), "sbuf")
    p, f = np.arange(32)[:, None], np.arange(16)[None, :]
    found = t[p + 8, 2 * f + 1]
    np.testing.assert_array_equal(elements(found), whole(t)[8:40, 1:33:2])
    with pytest.raises(InvalidProgramError, match="affine"):
        t[p, f * f % 64]


BREACHES = {
    "partition permuted": lambda t: t.permute((1, 0)),
    "partition squeezed": lambda t: t[0:1].squeeze_dim(0),
    "partition broadcast": lambda t: t[0:1].broadcast(0, 4),
    "partition inserted": lambda t: t.expand_dim(0),
    "partition split": lambda t: t.reshape_dim(0, (2, 64)),
    "partition reshaped": lambda t: t.reshape((64, -1)),
    "partition merged": lambda t: t.flatten_dims(0, 1),
    "partition stride": lambda t: t.ap([[128, 64], [1, 64]]),
    "slice out of range": lambda t: t.slice(1, 0, 65),
    "slice empty": lambda t: t.slice(1, 3, 3),
    "index out of range": lambda t: t[:, 64],
    "too many indices": lambda t: t[0, 0, 0],
    "select out of range": lambda t: t.select(1, -1),
    "broadcast of more than one": lambda t: t.broadcast(1, 2),
    "squeeze of more than one": lambda t: t.squeeze_dim(1),
    "reshape to another size": lambda t: t.reshape((128, 63)),
    "ap out of range": lambda t: t.ap([[64, 128], [1, 65]], offset=1).access(),
    "ap before the start": lambda t: t.ap([[64, 128], [-1, 8]], offset=6).access(),
    "ap of narrower elements": lambda t: t.ap(
        [[256, 128], [1, 256]], offset=1, dtype="uint8"
    ).access(),
    "view of a strided row": lambda t: t[:, ::2].view("uint8"),
    "view that does not divide": lambda t: (
        t[:, :3].view("uint16").view("uint8")[:, :5].view("uint32")
    ),
    "vector_select on chip": lambda t: t.vector_select(0, t),
    "no such dimension": lambda t: t.slice(2, 0, 1),
    "float index": lambda t: tensor((4, 4)).select(0, tensor((1, 1), "sbuf")),
    "no such dtype": lambda t: t.view("float64"),
    "rearrange names": lambda t: t.rearrange(("a", "b"), ("a", "c")),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_breaches_are_named(breach):
    with pytest.raises(InvalidProgramError) as error:
        BREACHES[breach](tensor((128, 64), "sbuf"))
    assert "remedy" in str(error.value)


def test_a_view_beyond_the_storage_need_not_be_used():
    """Loops over uneven sizes make such views."""
    outer = tensor((128, 64), "sbuf").ap([[64, 128], [8, 9]])
    assert outer.slice(1, 0, 8).access().offset == 0
    with pytest.raises(InvalidProgramError, match="0 to 8192 of a tensor of 8192"):
        outer.access()


def test_one_runtime_index_only():
    index = tensor((1, 1), "sbuf", "int32")
    t = tensor((4, 8, 8)).select(0, index)
    assert t.is_indirect()
    assert t.shape == (8, 8)
    with pytest.raises(InvalidProgramError, match="second runtime index"):
        t.select(0, index)
    offsets = tensor((16, 1), "sbuf", "int32")
    gathered = tensor((64, 128, 8)).vector_select(0, offsets)
    assert gathered.shape == (16, 128, 8)
    with pytest.raises(InvalidProgramError, match="is indexed at run time"):
        gathered.slice(0, 0, 4)
    with pytest.raises(InvalidProgramError, match="indexed by vector_select"):
        gathered.permute((1, 0, 2))


@pytest.mark.slow
@given(st.data(), st.sampled_from(["private_hbm", "sbuf"]))
def test_an_ellipsis_at_the_end_changes_no_view(data, memory):
    shape = data.draw(SHAPES)
    t = tensor(shape, memory)
    key = data.draw(keys(shape))
    short, long = t[key[:-1]], t[key]
    assert short.layout == long.layout


@given(st.data())
def test_slices_and_numbers_of_ds_are_slices(data):
    shape = data.draw(SHAPES)
    start = [data.draw(st.integers(0, n - 1)) for n in shape]
    size = [data.draw(st.integers(1, n - s)) for n, s in zip(shape, start, strict=True)]
    pairs = list(zip(start, size, strict=True))
    t = tensor(shape)
    by_ds = t[tuple(nl.ds(s, n) for s, n in pairs)]
    assert by_ds.layout == t[tuple(slice(s, s + n) for s, n in pairs)].layout


@pytest.mark.parametrize("step", [-3, 0, 1, 5])
@pytest.mark.parametrize("shape", [(64, 1), (1, 64), (64,)])
def test_a_ramp_of_indices_is_a_stride(step, shape):
    t = tensor((600, 7))
    rows = (200 + step * np.arange(64)).reshape(shape)
    found = layout_at(t, (rows, np.asarray(3)), "")
    expected = (rows * 7 + 3).ravel()
    moving = max(range(len(shape)), key=shape.__getitem__)
    assert found.shape == shape
    assert (found.offset, found.strides[moving]) == (expected[0], 7 * step)


@pytest.mark.parametrize("at", [1, 2, 40, 63])
def test_indices_that_are_nearly_a_ramp_are_no_stride(at):
    rows = np.arange(64)
    rows[at] += 1
    with pytest.raises(InvalidProgramError, match="not affine"):
        layout_at(tensor((400, 7)), (rows, np.asarray(3)), "")
