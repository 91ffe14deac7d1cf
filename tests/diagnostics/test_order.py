"""Summation trees found by probing: made ones, the emulator's and the host's."""

from __future__ import annotations

import random

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

import neuronjax as nj
from neuronjax.diagnostics.order import (
    SummationProbe,
    SummationTree,
    left_fold,
    reveal_order,
)


def evaluate(node, x, dtype=np.float32):
    """A tree of additions, each rounded to a dtype; more than two are exact."""
    if isinstance(node, int):
        return dtype(x[node])
    parts = [evaluate(child, x, dtype) for child in node]
    if len(parts) == 2:
        return dtype(parts[0] + parts[1])
    # A fused sum aligns to the largest: what is small beside it is lost.
    parts = [float(p) for p in parts]
    if max(map(abs, parts)) > 2**90:
        return dtype(sum(p for p in parts if abs(p) > 2**90))
    return dtype(sum(parts))


def ordered(node):
    """Children by their smallest leaf, as the probe returns them."""
    if isinstance(node, int):
        return node, node
    children = sorted((ordered(child) for child in node), key=lambda c: c[1])
    return tuple(child for child, _ in children), children[0][1]


def random_tree(leaves, generator, widest=2):
    if len(leaves) == 1:
        return leaves[0]
    parts = generator.randint(2, min(widest, len(leaves)))
    cuts = sorted(generator.sample(range(1, len(leaves)), parts - 1))
    pieces = zip([0, *cuts], [*cuts, len(leaves)], strict=True)
    return tuple(random_tree(leaves[a:b], generator, widest) for a, b in pieces)


@pytest.mark.slow
@given(st.integers(1, 24), st.randoms(use_true_random=False), st.sampled_from([2, 4]))
def test_any_tree_is_found(addends: int, generator: random.Random, widest: int):
    leaves = list(range(addends))
    generator.shuffle(leaves)
    tree = ordered(random_tree(leaves, generator, widest))[0]
    found = reveal_order(lambda x: evaluate(tree, x), addends)
    assert found.root == tree
    assert found.addends == addends
    assert not found.is_compensated


def kahan(x, dtype=np.float32):
    total = lost = dtype(0)
    for value in x.astype(dtype):
        corrected = dtype(value - lost)
        grown = dtype(total + corrected)
        lost = dtype(dtype(grown - total) - corrected)
        total = grown
    return total


def neumaier(x, dtype=np.float32):
    total = lost = dtype(0)
    for value in x.astype(dtype):
        grown = dtype(total + value)
        big, small = (total, value) if abs(total) >= abs(value) else (value, total)
        lost = dtype(lost + dtype(dtype(big - grown) + small))
        total = grown
    return dtype(total + lost)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("addends", [3, 17])
def test_a_compensated_sum_is_no_plain_one(addends, dtype):
    number = jnp.dtype(dtype).type
    plain = reveal_order(
        lambda x: evaluate(left_fold(range(addends)), x, number), addends, dtype=dtype
    )
    assert not plain.is_compensated
    assert plain.is_left_fold
    found = reveal_order(lambda x: kahan(x, number), addends, dtype=dtype)
    assert found.is_compensated
    assert str(found).endswith(", compensated")
    with pytest.raises(nj.InvalidProgramError, match="rounds sums to"):
        reveal_order(lambda x: neumaier(x, number), addends, dtype=dtype)


def test_a_wider_accumulator_is_no_plain_one():
    found = reveal_order(lambda x: np.cumsum(x)[-1], 9)
    assert found.is_left_fold
    assert found.is_compensated


@pytest.mark.slow
def test_more_addends_than_bfloat16_can_count():
    tree = left_fold(range(300))
    found = reveal_order(
        lambda x: evaluate(tree, x, ml_dtypes.bfloat16), 300, dtype="bfloat16"
    )
    assert found.is_left_fold
    assert found.depth == 299


@pytest.mark.parametrize(
    ("root", "text"),
    [
        (7, "7"),
        (left_fold(range(5)), "0..4"),
        ((0, (1, (2, 3))), "3..0"),
        ((left_fold(range(4)), left_fold(range(4, 6))), "0..3 + (4 + 5)"),
        (((0, 1), (2, 3)), "(0 + 1) + (2 + 3)"),
        ((0, 1, 2, 3), "sum(0, 1, 2, 3)"),
        (left_fold([(i, i + 3) for i in range(3)]), "(0 + 3) + (1 + 4) + (2 + 5)"),
    ],
)
def test_text(root, text):
    assert str(SummationTree(root)) == text


@pytest.mark.slow
def test_a_reduction_is_tiles_of_512():
    total = nj.jit(jnp.sum, policy="fp32")
    found = reveal_order(lambda x: total(jnp.asarray(x, jnp.float32)), 600)
    assert str(found) == "0..511 + (512..599)"


def test_an_fp32_matmul_is_sums_of_32_rows_in_tiles_of_128():
    dot = nj.jit(lambda x: x @ jnp.ones((150, 2)), policy="fp32")
    found = reveal_order(lambda x: dot(jnp.asarray(x, jnp.float32))[0], 150)
    assert str(found) == "(0..31) + (32..63) + (64..95) + (96..127) + (128..149)"


@pytest.mark.slow
def test_double_row_fp8_pairs_rows():
    rows = 256

    def fp8_dot(x, w):
        return jnp.dot(x, w, preferred_element_type=jnp.float32)

    dot = nj.jit(fp8_dot, target="trn2", policy="fp32")
    ones = jnp.ones((rows, 2), jnp.float8_e5m2) * 0.5
    probe = SummationProbe(huge=2.0**15, unit=2.0**-15, exact_units=2**24)
    found = reveal_order(
        lambda x: dot(jnp.asarray(x, jnp.float8_e5m2), ones)[0] * 2, rows, probe=probe
    )
    assert found.root == left_fold([(k, k + 128) for k in range(128)])


def test_the_hosts_sum_has_a_tree():
    found = reveal_order(lambda x: np.sum(x.astype(np.float32)), 64)
    assert found.addends == 64
    assert not found.is_left_fold


def test_what_is_no_sum_is_an_error():
    for function in (np.max, lambda x: np.float32(0.5), lambda x: np.nan):
        with pytest.raises(nj.InvalidProgramError, match="no order of adding"):
            reveal_order(function, 5)
    with pytest.raises(nj.InvalidProgramError, match="no probe"):
        reveal_order(np.sum, 5, dtype="int8")
    with pytest.raises(nj.InvalidProgramError, match="at least one"):
        reveal_order(np.sum, 0)
    with pytest.raises(nj.InvalidProgramError, match="a scalar"):
        reveal_order(lambda x: x[:1], 4)
