"""Collectives in programs: roundings counted, choices per call, refusals."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from neuronjax.errors import IntegersInFP32Warning, NeuronJaxError, UnsupportedError
from neuronjax.execution import exchange_fold as fold
from neuronjax.policy.scopes import collective_algorithm

TARGET = "trn2.48xlarge"
ROUNDINGS = dict(ring=63, kangaring=32, rdh=5, mesh=2, single_step_mesh=1)


def mapped(function: Callable[..., Any], devices: int = 4, **options: Any) -> Any:
    """`function` on the devices of an axis "x"."""
    mesh = nj.make_mesh((devices,), ("x",))
    specs: dict[str, Any] = dict(in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return nj.jit(jax.shard_map(function, mesh=mesh, **specs), target=TARGET, **options)


def psum(x: Any) -> Any:
    return lax.psum(x, "x")


def numbers(*shape: int, dtype: Any = jnp.bfloat16) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def plans(program: Any, *args: Any) -> list[str]:
    """The algorithms of the reductions of a program, in order."""
    text = program.lower(*args).compile().as_text()
    return [part.split("(")[0] for part in text.split("plan=")[1:]]


# -- roundings -------------------------------------------------------------------------


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Execution that counts: an element is how often it was rounded on its way.

    Where a rank stores partial sums it adds one to all of them, and a sum of partial
    sums is the largest.
    """

    def stored(self: fold.SumStorage, total: jax.Array, *where: Any) -> jax.Array:
        return (total + 1).astype(self.format.dtype)

    monkeypatch.setattr(fold.SumStorage, "stored", stored)
    monkeypatch.setattr(fold, "combiner", lambda op, zero: lax.max)


@pytest.mark.slow_cases("mesh")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in ("rdh", "mesh") else pytest.mark.slow)
        for n in ROUNDINGS
    ],
)
def test_roundings_counted_in_the_execution(name, counting):
    """64 ranks on 16 chips, as the documents say."""
    # A shape of its own: no other test meets what is compiled while it counts.
    zeros = np.zeros((64, 193), jnp.bfloat16)
    with collective_algorithm(name):
        found = mapped(psum, 64)(zeros)
    np.testing.assert_array_equal(found, np.full(zeros.shape, ROUNDINGS[name]))


@pytest.mark.slow
def test_every_count_gives_other_bits():
    x, found = numbers(64, 200), {}
    for name in ROUNDINGS:
        with collective_algorithm(name):
            found[name] = np.asarray(mapped(psum, 64)(x))
        assert (found[name] == found[name][0]).all()
    assert len({x.tobytes() for x in found.values()}) == len(ROUNDINGS)


# -- the choice for one call -----------------------------------------------------------


def scoped(x: Any) -> Any:
    with collective_algorithm("ring"):
        a = psum(x)
        with collective_algorithm("mesh"):
            b = psum(x)
        with collective_algorithm("auto"):
            c = psum(x)
    return a + b + c + psum(x)


def shared(x: Any) -> Any:
    """One function, called in two scopes."""
    inner = jax.jit(psum)
    with collective_algorithm("ring"):
        a = inner(x)
    with collective_algorithm("ring:2"):
        return a + inner(x)


@collective_algorithm("kangaring")
def decorated(x: Any) -> Any:
    return lax.scan(lambda c, row: (psum(c) + row, None), x[0], x)[0]


def differentiated(x: Any) -> Any:
    """The transpose of all_gather is psum_scatter."""

    def loss(x: Any) -> Any:
        with collective_algorithm("ring"):
            return jnp.sum(lax.all_gather(x, "x", tiled=True) ** 2)

    return jax.grad(loss)(x)


@pytest.mark.slow_except("scoped-expected0")
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (scoped, ["ring", "mesh", "rdh", "rdh"]),
        (shared, ["ring", "ring:2"]),
        (decorated, ["kangaring"]),
        (differentiated, ["ring"]),
    ],
)
def test_algorithm_scopes_choose_the_plan(function, expected):
    policy = nj.Policy(collective_algorithm="rdh")
    found = plans(mapped(function, policy=policy), numbers(16, 4))
    assert sorted(found) == sorted(expected)


@pytest.mark.slow
def test_a_scope_around_the_call():
    program, x = mapped(psum), numbers(4, 64)
    first = np.asarray(program(x))
    with collective_algorithm("ring"):
        assert plans(program, x) == ["ring"]
        assert (np.asarray(program(x)) != first).any()
    np.testing.assert_array_equal(program(x), first)


@pytest.mark.slow
def test_scopes_change_the_bits_of_their_call_alone():
    def both(x: Any) -> Any:
        with collective_algorithm("ring"):
            a = psum(x)
        return a, psum(x)

    x = numbers(4, 64)
    a, b = mapped(both)(x)
    np.testing.assert_array_equal(b, mapped(psum)(x))
    ring = nj.Policy(collective_algorithm="ring")
    np.testing.assert_array_equal(a, mapped(psum, policy=ring)(x))
    assert np.any(np.asarray(a) != np.asarray(b))


@pytest.mark.slow
def test_policy_rules_choose_algorithm_and_dtype():
    rule = nj.Rule(
        scope="named",
        collective_algorithm="ring:2",
        collective_reduce_dtype="float32",
    )

    def function(x: Any) -> Any:
        with jax.named_scope("named"):
            a = psum(x)
        return a + psum(x)

    policy = nj.Policy(rules=(rule,), collective_algorithm="mesh")
    program = mapped(function, policy=policy)
    assert plans(program, numbers(4, 4)) == ["ring:2", "mesh"]
    text = program.lower(numbers(4, 4)).compile().as_text()
    assert text.count("reduce_dtype=float32") == 1


@pytest.mark.slow
def test_reduce_dtype():
    """A ring in FP32 rounds once, at the end."""
    x = numbers(4, 64)
    policy = nj.Policy(collective_algorithm="ring", collective_reduce_dtype="float32")
    wide = x.astype(np.float32)
    ring = nj.Policy(collective_algorithm="ring")
    expected = np.asarray(mapped(psum, policy=ring)(wide)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(mapped(psum, policy=policy)(x), expected)


# -- integers --------------------------------------------------------------------------


def scatter(x: Any) -> Any:
    return lax.psum_scatter(x, "x", tiled=True)


LARGE = np.full((4, 4), 2**24 + 1, np.int32)


@pytest.mark.slow
def test_integers_through_fp32():
    policy = nj.Policy(integer_path="fp32")
    assert (np.asarray(mapped(psum, policy=policy)(LARGE)) == 4 * 2**24).all()
    most = mapped(lambda x: lax.pmax(x, "x"), policy=policy)
    assert (np.asarray(most(LARGE)) == 2**24).all()


def test_integers_as_stablehlo_has_them():
    policy = nj.Policy(integer_path="exact")
    with warnings.catch_warnings():
        warnings.simplefilter("error", IntegersInFP32Warning)
        got = mapped(psum, policy=policy)(LARGE)
    assert (np.asarray(got) == 4 * (2**24 + 1)).all()


@pytest.mark.slow
def test_integers_are_what_the_chip_makes_of_them():
    """In FP32 over devices, exactly on one, and the user hears of it."""
    both = mapped(lambda x: (lax.psum(x, "x"), x + x))
    with pytest.warns(IntegersInFP32Warning, match="int32.*integer_path") as caught:
        total, twice = both(LARGE)
    assert caught[0].filename == __file__
    assert (np.asarray(total) == 4 * 2**24).all()
    assert (np.asarray(twice) == 2 * LARGE).all()


@pytest.mark.slow
def test_a_line_warns_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for rows in (4, 8, 12):
            mapped(lambda x: lax.pmin(x, "x"))(np.ones((rows, 2), np.int32))
    assert len([w for w in caught if w.category is IntegersInFP32Warning]) == 1


@pytest.mark.parametrize("dtype", [np.int8, np.uint16])
def test_narrow_integers_are_exact(dtype):
    """FP32 holds them; beyond their range they wrap around."""
    x = np.full((4, 4), np.iinfo(dtype).max, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", IntegersInFP32Warning)
        got = np.asarray(mapped(psum)(x))
    np.testing.assert_array_equal(got, x * dtype(4))


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (psum, "EVRF061"),
        (lambda x: lax.pmax(x, "x"), "EVRF061"),
        (scatter, "EVRF063"),
    ],
)
def test_integers_refused(function, code):
    x = np.ones((16, 4), np.int32)
    policy = nj.Policy.from_flags("--implicit-integer-downcast=none")
    with pytest.raises(UnsupportedError, match=rf"{code}: .* int32") as caught:
        mapped(function, policy=policy)(x)
    assert "test_spmd_programs.py" in str(caught.value)
    for other in (x.astype(np.int8), x.astype(np.float32)):
        mapped(function, policy=policy).lower(other)
    mapped(function, policy=nj.Policy(integer_path="fp32")).lower(x)


# -- one device ------------------------------------------------------------------------

ONE = dict(
    all_reduce=psum,
    pmax=lambda x: lax.pmax(x, "x"),
    reduce_scatter=scatter,
    all_gather=lambda x: lax.all_gather(x, "x", tiled=True),
    all_to_all=lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True),
    permute=lambda x: lax.ppermute(x, "x", [(0, 0)]),
    nobody=lambda x: lax.ppermute(x, "x", []),
    index=lambda x: x + lax.axis_index("x"),
    loop=lambda x: lax.fori_loop(0, 2, lambda i, y: psum(y) * 2, x),
    pair=lambda x: sum(lax.psum((x, x * 2), "x")),
)


@pytest.mark.slow_except("all_to_all")
@pytest.mark.parametrize("name", ONE)
def test_one_device_is_a_group_of_one(name):
    """JAX writes collectives over a mesh of one device outside of any mesh."""
    function, x = ONE[name], numbers(4, 3, dtype=jnp.float32)
    policy = nj.Policy(collective_reduce_dtype="bfloat16", integer_path="fp32")
    of_one = mapped(function, 1, policy=policy)
    assert "sdy.manual_computation" not in str(of_one.lower(x).program)
    mesh = nj.make_mesh((2, 1), ("y", "x"))
    specs: dict[str, Any] = dict(in_specs=P("y"), out_specs=P("y"), check_vma=False)
    among_two = jax.shard_map(function, mesh=mesh, **specs)
    expected = nj.jit(among_two, target=TARGET, policy=policy)(np.concatenate([x, x]))
    found = of_one(x)
    np.testing.assert_array_equal(found, np.asarray(expected)[:4])
    with jax.disable_jit():
        np.testing.assert_array_equal(of_one(x), found)


def test_no_device_beside_the_one():
    text = str(mapped(psum, 1).lower(np.ones((4, 2), np.float32)).program)
    assert "dense<0> : tensor<1x1xi64>" in text
    for old, new, words in (
        (
            "dense<0> : tensor<1x1xi64>",
            "dense<[[0, 1]]> : tensor<1x2xi64>",
            "device 1 is not in the mesh of 1 devices",
        ),
        ("num_partitions = 1", "num_partitions = 2", "is a collective outside"),
    ):
        with pytest.raises(NeuronJaxError, match=words):
            nj.load(text.replace(old, new).encode(), target=TARGET)
