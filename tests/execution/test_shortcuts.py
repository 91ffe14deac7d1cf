"""Products in the place of their transposes: the same bits, and where they stay."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax import lax

import neuronjax as nj
from neuronjax.capture.trace import capture
from neuronjax.execution.engines import tensor
from neuronjax.execution.shortcuts import shortened
from neuronjax.hardware import resolve_target
from neuronjax.ir.instruction_set import DmaCopy, NcMatmul, ScaleFromAmax, TensorCopy
from neuronjax.lowering import lower

POLICIES = ("bf16", "fp8", "fp32")


def transposed_dot(x, y, numbers, permutation):
    return lax.transpose(lax.dot_general(x, y, numbers), permutation)


def products_of(function, *arguments, target="trn2", policy="bf16"):
    """(instructions of main, those that the interpreter executes)."""
    program = capture(lambda *a: jax.tree.leaves(function(*a)), arguments, "xy").program
    chosen = nj.Policy.resolve(policy)
    main = lower(program, target=resolve_target(target), policy=chosen).main
    return main.instructions, shortened(main)


def is_transpose(i):
    return isinstance(i, DmaCopy) and i.kind == "transpose"


def products_with_shape(instructions, shape):
    products = [i for i in instructions if isinstance(i, NcMatmul)]
    return [i for i in products if i.results[0].type.shape == shape]


def deviates(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@st.composite
def contractions(draw):
    """Operands of a dot_general of any rank, and the exchange of its free axes."""
    batch, contract, left, right = (
        draw(st.lists(st.integers(1, 5), min_size=low, max_size=2))
        for low in (0, 1, 0, 0)
    )

    def operand(free, seed):
        sizes = [*batch, *contract, *free]
        order = draw(st.permutations(range(len(sizes))))
        places = np.argsort(order).tolist()
        n, k = len(batch), len(batch) + len(contract)
        x = deviates(*[sizes[d] for d in order], seed=seed)
        return x, tuple(places[n:k]), tuple(places[:n])

    x, x_contract, x_batch = operand(left, 1)
    y, y_contract, y_batch = operand(right, 2)
    numbers = ((x_contract, y_contract), (x_batch, y_batch))
    b, m, n = len(batch), len(left), len(right)
    permutation = (*range(b), *range(b + m, b + m + n), *range(b, b + m))
    return x, y, numbers, permutation


@pytest.mark.slow
@settings(max_examples=15)
@given(contractions(), st.sampled_from(POLICIES))
def test_the_bits_are_those_of_one_instruction_at_a_time(case, policy):
    x, y, numbers, permutation = case
    call = nj.jit(
        lambda x, y: transposed_dot(x, y, numbers, permutation),
        target="trn2",
        policy=policy,
    )
    with jax.disable_jit():
        expected = np.asarray(call(x, y))
    found = np.asarray(call(x, y))
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_the_gradient_of_a_weight_is_not_transposed():
    x, w = deviates(64, 96), deviates(96, 32)
    gradient = jax.grad(lambda w, x: jnp.sin(x @ w).sum())
    before, after = products_of(gradient, w, x)
    assert any(map(is_transpose, before))
    assert not any(map(is_transpose, after))
    [old] = products_with_shape(before, (32, 96))
    [new] = products_with_shape(after, (96, 32))
    assert new.operands == old.operands[::-1]


def twice_read(x, y):
    product = x @ y
    return product.T, product


def other_permutation(x, y):
    return lax.transpose(lax.dot_general(x, y, (((2,), (0,)), ((), ()))), (1, 0, 2))


def read_in_a_loop(x, y):
    product = x @ y
    body = lambda _, total: total + product  # noqa: E731
    return product.T, lax.fori_loop(0, 3, body, jnp.zeros(product.shape))


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (twice_read, deviates(4, 8)),
        (other_permutation, deviates(3, 4, 8)),
        (read_in_a_loop, deviates(4, 8)),
    ],
)
def test_a_product_that_others_read_stays(function, x):
    before, after = products_of(function, x, deviates(8, 5))
    assert tuple(before) == tuple(after)


@pytest.mark.parametrize(
    "policy",
    [
        nj.Policy.preset("fp32"),
        nj.Policy(psum_dtype="bfloat16", rounding="stochastic"),
    ],
)
def test_an_order_or_a_place_that_matters_stays(policy):
    """Of four passes the middle two would change places; random bits have a place."""
    x, y = (deviates(*s).astype(jnp.bfloat16) for s in ((4, 8), (8, 5)))
    if policy.rounding != "stochastic":
        x, y = x.astype(np.float32), y.astype(np.float32)
    before, after = products_of(
        lambda x, y: (x @ y).T, x, y, target="trn3", policy=policy
    )
    assert any(map(is_transpose, before))
    assert tuple(before) == tuple(after)


@pytest.mark.skipif(
    not tensor.has_host_kernels(), reason="no kernels for this processor"
)
def test_an_eight_bit_product_is_scaled_by_kernels():
    """No pass for magnitudes or products in FP32, and no transpose behind scales."""
    x, w = deviates(64, 96), deviates(96, 32)
    gradient = jax.grad(lambda w, x: jnp.sin(x @ w).sum())
    before, after = products_of(gradient, w, x, policy="fp8")
    assert any(map(is_transpose, before))
    assert not any(map(is_transpose, after))
    ops = [getattr(i, "op", "") for i in after]
    assert "abs" not in ops
    assert ops.count("abs_max") == sum(isinstance(i, ScaleFromAmax) for i in before)
    assert not any(isinstance(i, TensorCopy) for i in after)
