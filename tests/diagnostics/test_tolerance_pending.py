"""Bounds of what is computed in parts are those of stored results, bit for bit."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from neuronjax.diagnostics.tolerance import error_bounds, pending, tracked

F32 = np.float32


def attention(q, k, v):
    scores = (q @ k.transpose(0, 1, 3, 2)) / F32(8.0)
    powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    weights = powers / np.sum(powers, axis=-1, keepdims=True)
    return weights @ v, weights, scores.sum((0, 2)), scores.max(1)


def chain(q, k, v):
    x = q
    for _ in range(12):  # more functions than a part may take
        x = np.tanh(x * F32(1.5) + q)
    return x, np.where(x > 0, x, k), x.reshape(-1), np.concatenate([x, v])


def assigned(q, k, v):
    """What is computed of an array does not change with the array."""
    x = np.zeros(q.shape, F32)
    x[...] = q
    product, mask = x * k, np.ones(q.shape, bool)
    chosen = np.where(mask, x, v)
    x[0] = v[0]
    mask[...] = False
    return product + v, chosen, x


@pytest.fixture
def inputs():
    generator = np.random.default_rng(3)
    return [generator.standard_normal((2, 3, 40, 24)).astype(F32) for _ in range(3)]


def bounds(reference, inputs, monkeypatch, least):
    monkeypatch.setattr(pending, "PENDING_ELEMENTS", least)
    return error_bounds(reference, inputs, products="bf16x3")


@pytest.mark.parametrize("block", [1 << 15, 64])
@pytest.mark.parametrize("reference", [attention, chain, assigned])
def test_parts_are_as_the_whole(reference, block, inputs, monkeypatch):
    stored = bounds(reference, inputs, monkeypatch, 1 << 40)
    monkeypatch.setattr(tracked, "_FEWEST_FOR_THREADS", 4)
    monkeypatch.setattr(tracked.blocks, "__defaults__", (block,))
    monkeypatch.setattr(tracked.over_blocks, "__defaults__", (block,))
    in_parts = bounds(reference, inputs, monkeypatch, 0)
    for a, b in zip(stored, in_parts, strict=True):
        np.testing.assert_array_equal(a.value, b.value)
        np.testing.assert_array_equal(a.bound, b.bound)
        np.testing.assert_allclose(a.l2_bound, b.l2_bound, rtol=1e-6)


def test_what_is_computed_before_an_assignment_stays(inputs, monkeypatch):
    product, chosen, x = bounds(assigned, inputs, monkeypatch, 0)
    q, k, v = inputs
    np.testing.assert_allclose(product.value, q * k + v, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(chosen.value, q)
    np.testing.assert_array_equal(x.value, np.concatenate([v[:1], q[1:]]))


@pytest.mark.slow
def test_results_between_are_not_stored(monkeypatch):
    """A softmax of 64 MiB, whose five arrays with errors are 960 MiB."""
    stored = []
    settle = pending.Pending.settle
    monkeypatch.setattr(
        pending.Pending, "settle", lambda x: stored.append(x.size) or settle(x)
    )

    def softmax(x):
        powers = np.exp(x - np.max(x, axis=-1, keepdims=True))
        return powers / np.sum(powers, axis=-1, keepdims=True)

    x = np.ones((4096, 4096), F32)
    found = error_bounds(softmax, [x])
    assert max(stored, default=0) < x.size
    assert found.value.shape == x.shape


def test_products_in_threads_have_one_thread_each():
    """Waiting threads of OpenBLAS would take processor time from the others."""
    if not hasattr(tracked._BLAS, "scipy_openblas_get_num_threads64_"):
        pytest.skip("NumPy has another library of matrix products")
    threads = tracked._BLAS.scipy_openblas_get_num_threads64_
    tracked._BLAS.scipy_openblas_set_num_threads64_(2)
    assert tracked.in_threads(lambda _: threads(), [0, 1, 2]) == [1, 1, 1]
    assert threads() == 2
    with pytest.raises(ZeroDivisionError):
        tracked.in_threads(lambda x: 1 / x, [1, 0])
    assert threads() == 2
    # The first of two calls in different threads ends while the second still runs.
    begun, ended = threading.Event(), threading.Event()
    first = threading.Thread(
        target=tracked.in_threads, args=(lambda _: begun.wait(9), [0, 1])
    )
    first.start()
    while threads() != 1:
        time.sleep(0.001)

    def second(n):
        begun.set()
        if n:
            ended.wait(9)

    other = threading.Thread(target=tracked.in_threads, args=(second, [0, 1]))
    other.start()
    first.join()
    ended.set()
    other.join()
    assert threads() == 2
