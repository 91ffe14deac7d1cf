"""Assertions on bits and ULPs: what they accept, and what they say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from neuronjax.testing import BitsDiffer, assert_bitwise_equal, assert_ulp

TREE = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.int32(3)}


def changed(path, index, flip=1):
    tree = {name: np.array(leaf) for name, leaf in TREE.items()}
    tree[path].view(np.uint32)[index] ^= np.uint32(flip)
    return tree


def test_equal_trees_pass():
    assert_bitwise_equal(TREE, {name: np.array(leaf) for name, leaf in TREE.items()})
    assert_bitwise_equal(jnp.float32(np.nan), np.float32(np.nan))
    assert_bitwise_equal(jax.random.key(3), jax.random.key(3))


def test_a_changed_bit_is_named():
    message = (
        r"after: 1 leaf differs\n  w\[1, 2\]: 5\.00000048 \(0x40a00001\), expected"
    )
    with pytest.raises(BitsDiffer, match=message) as caught:
        assert_bitwise_equal(changed("w", (1, 2)), TREE, "after")
    [leaf] = caught.value.leaves
    assert (leaf.path, leaf.index, leaf.differing, leaf.compared) == ("w", (1, 2), 1, 6)
    assert leaf.expected == "5 (0x40a00000)"
    assert leaf.record()["index"] == (1, 2)


def test_signed_zeros_differ_in_bits_and_not_in_ulp():
    zeros = np.float32([0.0]), np.float32([-0.0])
    with pytest.raises(BitsDiffer, match=r"0x00000000.*0x80000000"):
        assert_bitwise_equal(*zeros)
    assert_ulp(*zeros, max_ulp=0)


def test_types_and_structures():
    with pytest.raises(BitsDiffer, match=r"is float32\[2\], expected float32\[3\]"):
        assert_bitwise_equal(np.zeros(2, np.float32), np.zeros(3, np.float32))
    with pytest.raises(BitsDiffer, match="bfloat16"):
        assert_bitwise_equal(jnp.zeros(2, jnp.bfloat16), np.zeros(2, np.float16))
    with pytest.raises(BitsDiffer, match="the structure is"):
        assert_bitwise_equal({"a": 1}, {"b": 1})


@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", "float16", "float8_e4m3", "float4_e2m1fn", "bool", "complex64"],
)
def test_every_dtype(dtype):
    one, other = (np.array([0, x]).astype(jnp.dtype(dtype)) for x in (0, 1))
    assert_bitwise_equal(one, one.copy())
    with pytest.raises(BitsDiffer, match=r"result\[1\]: 0j? \(0x0+\)|False"):
        assert_bitwise_equal(one, other)


def test_ulps_are_of_the_dtype():
    near = np.array([1.0, 2.0], ml_dtypes.bfloat16), np.array([1.0, 2.03125])
    actual, expected = near[0], near[1].astype(ml_dtypes.bfloat16)
    assert_ulp(actual, expected, max_ulp=2)
    with pytest.raises(BitsDiffer, match=r"result\[1\]: 2 .*\(2 ULP; 1 allowed\)"):
        assert_ulp(actual, expected, max_ulp=1)


def test_ulps_name_the_worst():
    actual = changed("w", (0, 1), flip=4)
    actual["w"].view(np.uint32)[1, 1] ^= 8
    with pytest.raises(BitsDiffer, match=r"w\[1, 1\].*8 ULP.*2 of 6"):
        assert_ulp(actual, TREE, max_ulp=3)
    with pytest.raises(BitsDiffer, match=r"n\[\]"):
        assert_ulp({**TREE, "n": np.int32(4)}, TREE, max_ulp=100)
    with pytest.raises(BitsDiffer, match="inf ULP"):
        assert_ulp(np.float32(np.nan), np.float32(1), max_ulp=1e9)
