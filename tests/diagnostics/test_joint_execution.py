"""One kernel for all lanes has the results and the distances of separate lanes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

import neuronjax as nj
from neuronjax.diagnostics import joint_execution
from neuronjax.diagnostics.distances import Broken, figures, remembering
from neuronjax.diagnostics.op_errors import errors_of
from neuronjax.numerics.host_kernels import compiled
from neuronjax.numerics.host_kernels.figures import Distance

pytestmark = pytest.mark.skipif(
    not compiled.lanes(), reason="no kernels for this processor"
)
FUNCTIONS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "sqrt": lambda x, _: np.sqrt(x),
}
SMALLEST = 2.0**-126
EDGES = [0.0, -0.0, 1.0, SMALLEST, -SMALLEST, 2.0**-149, 1e-40, 2.0**-63, 3.0, 1e38]
NUMBERS = st.floats(-(2.0**99), 2.0**99, width=32) | st.sampled_from(
    np.float32(EDGES).tolist()
)


def on_engine(name, x, y):
    """An operation in FP32 that flushes operands and results below 2^-126; a result
    is rounded as if it were normal before it is flushed."""
    x, y = (np.where(np.abs(v) < SMALLEST, np.copysign(0, v), v) for v in (x, y))
    exact = FUNCTIONS[name](x.astype(np.float64), y.astype(np.float64))
    rounded = FUNCTIONS[name](np.float32(x), np.float32(y))
    is_flushed = np.abs(exact) < SMALLEST - 2.0**-151
    return np.where(is_flushed, np.copysign(np.float32(0), rounded), rounded)


def close(found, expected):
    assert found == pytest.approx(expected, rel=1e-12, abs=0.0)


def check(name, run, reference, moved):
    """Compare the kernel with the definitions; pairs are (left, right) operands."""
    operands = [*zip(run, reference, moved, strict=True)]
    with remembering(), np.errstate(all="ignore"):
        made = joint_execution._executed(name, operands[: 1 + (name != "sqrt")])
        exact, other = (FUNCTIONS[name](*x) for x in (reference, moved))
        own = on_engine(name, *run)
        given_ = [x.astype(np.float32) for x in reference]
        wide = FUNCTIONS[name](*(x.astype(np.float64) for x in given_))
        single = on_engine(name, *given_)
        if made is None:
            pairs = (own, exact), (other, exact), (single, wide)
            assert not all(np.isfinite(np.sum((a - b) ** 2)) for a, b in pairs)
            return False
        *results, alone = made
        for found, wanted in zip(results, (own, exact, other), strict=True):
            np.testing.assert_array_equal(found, np.broadcast_to(wanted, found.shape))
            assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(np.signbit(results[0]), np.signbit(own))
        expected = errors_of(np.asarray(single), wide)
        close(alone._asdict(), expected._asdict())
        known = figures(results[0], results[1], joint_execution._SETTING)
        ratio = figures(results[2], results[1], {})
        copies = [x.copy() for x in results]  # of these, no figures are remembered
        measured = figures(copies[0], copies[1], joint_execution._SETTING)
        for figure in (*Distance, *Broken):
            close(known[figure], measured[figure])
        close(
            ratio[Distance.ERROR2], figures(copies[2], copies[1], {})[Distance.ERROR2]
        )
        return True


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_kernel(data):
    name = data.draw(st.sampled_from([*FUNCTIONS]))
    shape = data.draw(arrays.array_shapes(max_dims=2, max_side=9))
    draw = lambda kind: data.draw(arrays.arrays(kind, shape, elements=NUMBERS))  # noqa: E731
    run, reference, moved = (
        [draw(kind), draw(kind)] for kind in (np.float32, np.float64, np.float64)
    )
    if name == "sqrt":
        run, reference, moved = (
            [np.abs(x) for x in pair] for pair in (run, reference, moved)
        )
    check(name, run, reference, moved)


def triples(shape, seed=0):
    rng = np.random.default_rng(seed)
    wide = [rng.normal(size=shape) ** 2 + 0.1 for _ in range(2)]
    near = [x * (1 + 1e-4 * rng.normal(size=shape)) for x in wide]
    return [x.astype(np.float32) for x in near], wide, near


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [1, 7, 1024, 1025, 100_003])
def test_sizes(name, size):
    """Vectors, their rest, and blocks."""
    assert check(name, *triples((size,)))


@pytest.mark.parametrize("one", ["left", "right"])
@pytest.mark.parametrize("name", ["add", "divide"])
def test_a_repeated_number(name, one):
    def cut(pair):
        n = ("left", "right").index(one)
        return [
            np.broadcast_to(x[0, 0], x.shape) if n == m else x
            for m, x in enumerate(pair)
        ]

    assert check(name, *map(cut, triples((33, 40))))


@pytest.mark.parametrize("shape", [(9,), (1, 1)])
def test_two_repeated_numbers_are_left_to_numpy(shape):
    repeated = [[np.broadcast_to(x[0], shape) for x in y] for y in triples((9,))]
    with remembering():
        operands = [*zip(*repeated, strict=True)]
        assert joint_execution._executed("add", operands) is None


@pytest.mark.parametrize("shapes", [((), ()), ((), (1, 1)), ((1,), ()), ((), (3,))])
def test_scalars(shapes):
    pairs = [
        [np.resize(x, s) for x, s in zip(y, shapes, strict=True)] for y in triples((3,))
    ]
    assert check("divide", *pairs)


@pytest.mark.parametrize("name", ["subtract", "sqrt"])
def test_layouts(name):
    """A transposed operand, and one whose rows are repeated."""
    run, reference, moved = triples((48, 96))
    turned = [
        [x[0].T.copy().T, np.broadcast_to(x[1][:1], x[0].shape)]
        for x in (run, reference, moved)
    ]
    assert check(name, *turned)


def model(x, w, v, n):
    y = x * w + v
    y = jnp.sqrt(y * y + 1e-3) - w.T[: y.shape[0]] * 2.0
    z = (y / (1.0 + jnp.abs(v))) @ w
    tiny = z * 1e-38 * 1e-5 + 1e-39
    return {"z": z.sum(), "n": (z + y) / n, "tiny": tiny, "w": w - 0.1 * z.mean()}


def broken(x, w, v, n):
    y = jnp.where(x > 1, jnp.inf, x) - w
    return y * v, jnp.sqrt(y) / n


def scanned(x, w, v, n):
    def turn(carry, row):
        carry = carry * w + row / n
        return carry - carry.mean(), (carry * carry).sum()

    return jax.lax.scan(turn, x, jnp.stack([v, v + 1, v * 2]))


def report(function, size, policy):
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(2, size, size)).astype(np.float32)
    v = rng.normal(size=(size,)).astype(np.float32)
    with np.errstate(all="ignore"):
        return nj.compare(function, policy=policy)(x, w, v, np.float32(3))


@pytest.mark.parametrize("function", [model, broken, scanned])
@pytest.mark.parametrize("policy", ["bf16", "fp32", "fp8"])
@pytest.mark.parametrize("size", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_reports_are_equal(function, policy, size, monkeypatch):
    used = []
    execute = joint_execution._executed

    def executed(*args):
        used.append(args[0])
        return execute(*args)

    monkeypatch.setattr(joint_execution, "_executed", executed)
    joint = report(function, size, policy)
    assert used or (function is scanned and size < 129)
    monkeypatch.setattr(joint_execution, "_shared_function", lambda *_: None)
    apart = report(function, size, policy)
    assert [str(f) for f in joint.faults] == [str(f) for f in apart.faults]
    for a, b in zip(joint.ops, apart.ops, strict=True):
        for kind in ("isolation", "accumulation"):
            found, expected = getattr(a, kind).as_dict(), getattr(b, kind).as_dict()
            assert found == pytest.approx(expected, rel=1e-9, nan_ok=True), (a, kind)
    for a, b in zip(joint.results, apart.results, strict=True):
        assert a.pop("path") == b.pop("path")
        assert a == pytest.approx(b, rel=1e-9, nan_ok=True)
