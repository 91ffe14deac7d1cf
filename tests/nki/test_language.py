"""`nki.language` functions against NumPy, compiled and op by op."""

import math

import jax
import numpy as np
import pytest
import scipy.special as special

from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from neuronjax.ir import alu_operators as operators
from neuronjax.nki import isa as nisa, language as nl

F32 = np.float32
RNG = np.random.default_rng(5)
X = (RNG.normal(size=(4, 3, 8)) * 2).astype(F32)
Y = (RNG.normal(size=(4, 3, 8)) * 2 + 0.1).astype(F32)
POSITIVE = (np.abs(X) + 0.5).astype(F32)
INTS = RNG.integers(0, 100, (4, 8)).astype(np.int32)
SHIFTS = RNG.integers(0, 8, (4, 8)).astype(np.int32)


def results_of(functions, *arrays, target="trn2", eager=True):
    """What each function gives for the loaded arrays; compiled = op by op.

    Functions of one instruction need no second run: those of the instructions have it.
    """

    @nki.jit(target=target)
    def kernel(*arguments):
        tiles = [nl.load(a) for a in arguments]
        outs = []
        for function in functions:
            tile = function(*tiles)
            if nl.is_psum(tile.buffer):
                tile = nl.copy(tile)
            outs.append(nl.ndarray(tile.shape, tile.dtype, nl.shared_hbm))
            nl.store(outs[-1], tile)
        return outs

    found = kernel(*arrays)
    if not eager:
        return found
    with jax.disable_jit():
        again = kernel(*arrays)
    for n, (a, b) in enumerate(zip(found, again, strict=True)):
        np.testing.assert_array_equal(
            a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8), f"output {n}"
        )
    return found


def check(cases, *arrays, rtol=3e-6, atol=1e-6, eager=True):
    found = results_of([c[0] for c in cases.values()], *arrays, eager=eager)
    for name, value, (_, reference) in zip(cases, found, cases.values(), strict=True):
        expected = np.asarray(reference(*(a.astype(np.float64) for a in arrays)))
        np.testing.assert_allclose(
            value.reshape(expected.shape), expected, rtol, atol, err_msg=name
        )


def _of(name, reference, *columns):
    return {name: (lambda *t: getattr(nl, name)(*(t[c] for c in columns)), reference)}


@pytest.mark.slow
def test_binary_operators():
    cases = {}
    for name in "add subtract multiply maximum minimum equal less greater".split():
        ufunc = getattr(np, name)
        cases |= _of(name, lambda x, y, p, f=ufunc: f(x, y), 0, 1)
    for name in "not_equal less_equal greater_equal".split():
        ufunc = getattr(np, name)
        cases |= _of(name, lambda x, y, p, f=ufunc: f(x, y), 0, 1)
    cases |= _of("divide", lambda x, y, p: x / p, 0, 2)
    cases |= _of("power", lambda x, y, p: p**x, 2, 0)
    cases |= _of("mod", lambda x, y, p: np.mod(x, p), 0, 2)
    cases |= _of("fmod", lambda x, y, p: np.fmod(x, p), 0, 2)
    larger = lambda x, y, p: np.where(np.abs(x) > np.abs(y), x, y)  # noqa: E731
    smaller = lambda x, y, p: np.where(np.abs(x) < np.abs(y), x, y)  # noqa: E731
    cases |= {
        "abs_max": (
            lambda x, y, p: nl.abs(nl.abs_max(x, y)),
            lambda *a: abs(larger(*a)),
        )
    }
    cases |= {
        "abs_min": (
            lambda x, y, p: nl.abs(nl.abs_min(x, y)),
            lambda *a: abs(smaller(*a)),
        )
    }
    for name in "logical_and logical_or logical_xor".split():
        ufunc = getattr(np, name)
        cases |= _of(name, lambda x, y, p, f=ufunc: f(x, y), 0, 1)
    cases["row"] = (
        lambda x, y, p: nl.add(x, p[:, 0:1, :]),
        lambda x, y, p: x + p[:, :1],
    )
    cases["number"] = (lambda x, y, p: nl.subtract(2.0, x), lambda x, y, p: 2 - x)
    cases["column"] = (
        lambda x, y, p: nl.multiply(p[:, 0, 0:1], x),
        lambda x, y, p: x * p[:, :1, :1],
    )
    check(cases, X, Y, POSITIVE, rtol=1e-5, eager=False)


@pytest.mark.slow
def test_integer_operators():
    cases = {}
    for name in "bitwise_and bitwise_or bitwise_xor left_shift right_shift".split():
        ufunc = getattr(np, name)
        cases |= _of(name, lambda a, b, f=ufunc: f(a.astype(int), b.astype(int)), 0, 1)
    cases |= _of("invert", lambda a, b: ~a.astype(int), 0)
    check(cases, INTS, SHIFTS, eager=False)


GELU = {
    "gelu_apprx_tanh": lambda x: (
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "gelu_apprx_sigmoid": lambda x: x * special.expit(1.702 * x),
    "gelu": lambda x: x * special.ndtr(x),
}
OF_ANY = {
    **GELU,
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * special.expit(x),
    "silu_dx": lambda x: special.expit(x) * (1 + x * (1 - special.expit(x))),
    "gelu_dx": lambda x: (
        special.ndtr(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    ),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "erf": special.erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "arctan": lambda x: np.arctan(x),
    "sign": np.sign,
    "square": np.square,
    "abs": np.abs,
    "copy": lambda x: x,
    "negative": np.negative,
    "logical_not": np.logical_not,
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
}


@pytest.mark.slow
def test_functions():
    small = np.clip(X, -1.5, 1.5)  # arctan's range
    cases = {}
    for name, reference in OF_ANY.items():
        cases |= _of(name, lambda x, p, f=reference: f(x), 0)
    for name in "log sqrt".split():
        cases |= _of(name, lambda x, p, f=getattr(np, name): f(p), 1)
    cases |= _of("rsqrt", lambda x, p: 1 / np.sqrt(p), 1)
    cases |= _of("reciprocal", lambda x, p: 1 / p, 1)
    cases["tan"] = (lambda x, p: nl.tan(x), lambda x, p: np.tan(x))
    check(cases, small, POSITIVE, rtol=4e-6, atol=2e-6, eager=False)


@pytest.mark.slow
def test_large_arguments_of_the_sine_are_reduced():
    x = np.linspace(-50, 50, 64, dtype=F32).reshape(4, 16)
    check({"sin": (nl.sin, np.sin), "cos": (nl.cos, np.cos)}, x, atol=2e-5)


@pytest.mark.slow
def test_rounding_functions_at_integers_and_below_zero():
    x = np.array([[-2.5, -2, -1.5, -0.5, 0, 0.5, 1, 1.5, 2.5, 1e6 + 0.25]], F32)
    names = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc}
    check({n: (getattr(nl, n), f) for n, f in names.items()}, x, rtol=0, atol=0)


@pytest.mark.slow
def test_reductions():
    last, both = 2, (1, 2)
    cases = {}
    for name in "sum max min mean prod".split():
        f = getattr(np, name)
        cases[f"{name} last"] = (
            lambda x, w, n=name: getattr(nl, n)(x, last),
            lambda x, w, f=f: f(x, axis=last),
        )
        cases[f"{name} both"] = (
            lambda x, w, n=name: getattr(nl, n)(x, [1, 2], keepdims=True),
            lambda x, w, f=f: f(x, axis=both, keepdims=True),
        )
    cases["var"] = (lambda x, w: nl.var(x, 2), lambda x, w: x.var(2, keepdims=True))
    cases["all"] = (lambda x, w: nl.all(x, 2), lambda x, w: x.all(2))
    cases["softmax"] = (
        lambda x, w: nl.softmax(x, [1, 2]),
        lambda x, w: special.softmax(x, axis=both),
    )
    cases["softmax of parts"] = (
        lambda x, w: nl.softmax(x),
        lambda x, w: special.softmax(x, axis=-1),
    )
    cases["rms_norm"] = (
        lambda x, w: nl.rms_norm(x, w, 2, 8),
        lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w,
    )
    check(cases, X, Y, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
def test_where_and_movement():
    cases = {
        "where": (
            lambda x, y: nl.where(nl.greater(x, 0.0), x, y),
            lambda x, y: np.where(x > 0, x, y),
        ),
        "where number": (
            lambda x, y: nl.where(nl.greater(x, 0.0), x, -1.0),
            lambda x, y: np.where(x > 0, x, -1),
        ),
        "transpose": (
            lambda x, y: nl.transpose(x[:, 0]),
            lambda x, y: x[:, 0].T,
        ),
        "broadcast": (
            lambda x, y: nl.broadcast_to(x[0:1, 0:1], (5, 3, 8)),
            lambda x, y: np.broadcast_to(x[:1, :1], (5, 3, 8)),
        ),
        "expand": (lambda x, y: nl.expand_dims(x, 1), lambda x, y: x[:, None]),
        "ones": (
            lambda x, y: nl.ones((2, 3), nl.float32),
            lambda x, y: np.ones((2, 3)),
        ),
        "full": (
            lambda x, y: nl.full((2, 3), 7, nl.int32),
            lambda x, y: np.full((2, 3), 7),
        ),
        "zeros_like": (lambda x, y: nl.zeros_like(x), lambda x, y: 0 * x),
        "constant": (
            lambda x, y: nl.load(nl.shared_constant(np.eye(3, dtype=F32))),
            lambda x, y: np.eye(3),
        ),
        "identity": (
            lambda x, y: nl.shared_identity_matrix(8, nl.float32),
            lambda x, y: np.eye(8),
        ),
    }
    check(cases, X, Y, eager=False)


@pytest.mark.slow
def test_matmul_and_transposed_load():
    a = RNG.normal(size=(64, 32)).astype(F32)
    b = RNG.normal(size=(32, 48)).astype(F32)
    tiles = {
        "matmul": (lambda x, y: nl.matmul(x, y), lambda x, y: x @ y),
        "transposed": (lambda x, y: nl.matmul(nl.copy(nl.transpose(x)), y, True),) * 2,
    }
    tiles["transposed"] = (tiles["transposed"][0], lambda x, y: x @ y)
    check(tiles, a, b, rtol=1e-4, atol=1e-5)

    @nki.jit
    def kernel(x):
        out = nl.ndarray((32, 64), x.dtype, nl.shared_hbm)
        nl.store(out, nl.load_transpose2d(x))
        return out

    half = a.astype(np.float16)
    np.testing.assert_array_equal(kernel(half), half.T)


@pytest.mark.slow
def test_gather_flattened():
    data = RNG.normal(size=(16, 32)).astype(F32)
    index = RNG.integers(0, 32, (16, 8)).astype(np.uint32)
    [found] = results_of([nl.gather_flattened], data, index)
    np.testing.assert_array_equal(found, np.take_along_axis(data, index.astype(int), 1))


@pytest.mark.slow
def test_rand_is_uniform_and_seeded():
    def kernel(seed):
        nl.random_seed(nl.load(seed))
        out = nl.ndarray((128, 64), nl.float32, nl.shared_hbm)
        nl.store(out, nl.rand((128, 64), nl.float32))
        return out

    seeds = [np.full((1, 1), n, np.uint32) for n in (3, 4)]
    one, other = (nki.jit(kernel)(s) for s in seeds)
    assert (one >= 0).all()
    assert (one <= 1).all()
    assert abs(one.mean() - 0.5) < 0.02
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(one, nki.jit(kernel)(seeds[0]))


@pytest.mark.slow
def test_dropout_zeroes_about_as_many_as_asked():
    ones = np.ones((128, 128), F32)
    [found] = results_of([lambda x: nl.dropout(x, 0.25)], ones)
    assert 0.2 < np.mean(found == 0) < 0.3


def test_device_print_prints_while_the_kernel_runs(capfd):
    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        nl.device_print("before", tile)
        nl.device_print("after", nl.multiply(tile, 2.0))
        return x

    x = np.array([[1.5, -2.0]], F32)
    kernel.trace(x)
    assert capfd.readouterr().out == ""
    for again in range(2):
        kernel(x + again)
        jax.effects_barrier()
        printed = capfd.readouterr().out
        assert f"before {x + again}" in printed
        assert f"after {2 * (x + again)}" in printed
    with jax.disable_jit():
        kernel(x)
    assert capfd.readouterr().out == f"before {x}\nafter {2 * x}\n"


def test_device_print_of_a_number_is_named():
    @nki.jit
    def kernel(x):
        nl.device_print("shape", 3)

    with pytest.raises(InvalidProgramError, match=r"nl\.device_print"):
        kernel(X)


def test_no_reorder_is_a_context():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        with nl.no_reorder():
            nl.store(out, nl.load(x))
        return out

    np.testing.assert_array_equal(kernel(X), X)


class Scale(nki.NKIObject):
    factor: float
    bias: float = 0.5
    steps = 2

    def applied(self, tile):
        for _ in range(self.steps):
            tile = nl.add(nl.multiply(tile, self.factor), self.bias)
        return tile


def test_objects_of_kernels():
    assert Scale(2.0) == Scale(factor=2.0, bias=0.5)
    assert Scale(2.0) != Scale(3.0)
    assert Scale().factor is None
    assert len({Scale(1.0), Scale(1.0)}) == 1
    with pytest.raises(TypeError, match="takes 3 fields"):
        Scale(1, 2, 3, 4)

    @nki.jit
    def kernel(x, scale):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nl.store(out, scale.applied(nl.load(x)))
        return {"x": out, "scale": (scale.steps, [out])}

    found = kernel(X, Scale(2.0))
    np.testing.assert_allclose(found["x"], (X * 2 + 0.5) * 2 + 0.5, rtol=1e-6)
    assert found["scale"][0] == 2
    assert isinstance(found["scale"][1], list)


@pytest.mark.parametrize(
    ("target", "partition_bytes"),
    [("trn1", 196_608), ("trn2", 229_376), ("trn3", 262_144)],
)
def test_tile_sizes(target, partition_bytes):
    seen = {}

    @nki.jit(target=target)
    def kernel(x):
        size = nl.tile_size
        seen.update(p=size.pmax, bank=size.psum_bank_fmax, banks=size.psum_num_banks)
        seen.update(s=size.gemm_stationary_fmax, m=size.gemm_moving_fmax)
        seen.update(sbuf=size.sbuf_size_bytes // size.pmax)
        return x

    kernel.trace(X)
    assert seen == dict(p=128, bank=512, banks=8, s=128, m=512, sbuf=partition_bytes)


def test_different_partitions_do_not_broadcast():
    with pytest.raises(InvalidProgramError, match="partitions must be equal"):
        results_of([lambda x, y: nl.add(x, y)], X, X[:2])


@pytest.mark.slow
def test_functions_are_operators():
    assert operators.op_name(nl.add) == "add"
    assert operators.op_name(nl.max) == "maximum"
    [found] = results_of([lambda x: _activated(x, nl.exp)], X.reshape(4, 24))
    np.testing.assert_allclose(found, np.exp(X.reshape(4, 24)), rtol=3e-6)


def _activated(x, op):
    out = nl.ndarray(x.shape, x.dtype)
    nisa.activation(out, op, x)
    return out
