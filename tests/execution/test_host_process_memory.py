"""Long lives: many shapes in one process, and what clearing JAX's caches leaves."""

import gc
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.execution import host_process, interpreter
from tests.conformance import bits

#: What one program of these tests maps at most while it is compiled.
ROOM = 400


def step():
    return nj.jit(lambda x, w: jnp.tanh(x @ w).sum(0), policy="bf16")


def arguments(rows):
    x = np.linspace(-2, 2, rows * 8, dtype=np.float32).reshape(rows, 8)
    return x, np.linspace(-1, 3, 32, dtype=np.float32).reshape(8, 4)


@pytest.fixture
def full(monkeypatch):
    """As if the limit were so many regions above what is mapped."""

    def above(regions):
        gc.collect()
        limit = host_process.mapped_regions() + regions
        monkeypatch.setattr(host_process, "SECONDS_BETWEEN_COUNTS", 0.0)
        monkeypatch.setattr(host_process, "FULL", 1.0)
        monkeypatch.setattr(host_process, "most_regions", lambda: limit)
        return limit

    interpreter.forget_kernels()
    jax.clear_caches()
    return above


@pytest.mark.slow
@pytest.mark.slow_cases("40-False")
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc here")
@pytest.mark.parametrize(
    ("shapes", "disabled"),
    [
        (40, False),
        (12, True),
        pytest.param(500, False, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_many_shapes_stay_within_the_limit(full, shapes, disabled):
    run = step()
    expected = bits.digest(run(*arguments(1)))
    limit, most, cleared, last = full(ROOM), 0, 0, 0
    memory = [_resident_mib()]
    with jax.disable_jit(disabled):
        for rows in range(1, shapes + 1):
            run(*arguments(rows))
            regions = host_process.mapped_regions()
            cleared += regions < last
            most, last = max(most, regions), regions
            memory.append(_resident_mib())
        assert bits.digest(run(*arguments(1))) == expected
    assert cleared >= shapes // 40, "the caches were never cleared"
    assert most < limit + ROOM
    # The first hundred programs have made what all the others use again.
    assert memory[-1] - memory[min(100, shapes // 2)] < 200


def _resident_mib():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def loss(w, x):
    def turn(carry, row):
        return jnp.tanh(carry @ w + row), carry.sum()

    carry, sums = jax.lax.scan(jax.checkpoint(turn), x[0], x)
    return jax.lax.cond(carry[0] > 0, jnp.sum, jnp.max, carry) + sums.mean()


WHILE_TRACED = {
    "grad": lambda f: jax.grad(f),
    "grad inside": lambda f: nj.jit(jax.value_and_grad(loss), policy="fp8"),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f), in_axes=(None, 0)),
    "jit of grad of remat": lambda f: jax.jit(jax.grad(jax.checkpoint(f))),
    "scan": lambda f: jax.jit(
        lambda w, x: jax.lax.scan(lambda c, _: (c - f(c, x), f(c, x)), w, None, 2)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WHILE_TRACED)
def test_caches_may_be_cleared_while_a_program_is_traced(full, way):
    """It is what makes room for a program that is larger than what is left."""
    w = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    x = np.linspace(-1, 2, 24, dtype=np.float32).reshape(2, 3, 4)
    x = x if way == "vmap of grad" else x[0]

    def result():
        return WHILE_TRACED[way](nj.jit(loss, policy="fp8"))(w, x)

    expected = result()
    full(-1_000_000)
    bits.assert_same(result(), expected, way)


@pytest.mark.slow
def test_threads_compile_while_caches_are_cleared(full):
    expected = [bits.digest(step()(*arguments(rows))) for rows in range(1, 7)]
    full(-1_000_000)
    run, found = step(), {}

    def call(rows):
        found[rows] = bits.digest(run(*arguments(rows)))

    for _ in range(2):
        callers = [threading.Thread(target=call, args=(n,)) for n in range(1, 7)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert [found.pop(n) for n in range(1, 7)] == expected


def test_nothing_is_counted_where_nothing_is_limited(monkeypatch):
    monkeypatch.setattr(host_process, "SECONDS_BETWEEN_COUNTS", 0.0)
    monkeypatch.setattr(host_process, "most_regions", lambda: 0)
    monkeypatch.setattr(
        host_process.jax, "clear_caches", lambda: pytest.fail("cleared")
    )
    host_process.make_room()
