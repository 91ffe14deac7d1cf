"""Programs of many devices, run: against JAX on as many host devices, and formulas.

JAX's results come from one child process, whose host pretends to be eight devices. Data
are small integers, so that every order of additions gives the same sums; what an order
does to others is tested where plans and their executor are.
"""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

import neuronjax as nj
from neuronjax.errors import InvalidProgramError, UnimplementedError

DEVICES = 8
TARGET = "trn2.48xlarge"
BOTH = ("x", "y")


def integers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    random = np.random.default_rng(sum(shape))
    return random.integers(-8, 8, shape).astype(dtype)


class Mapped(NamedTuple):
    """A function of one device's arrays, for `shard_map` over x=4, y=2."""

    function: Callable[..., Any]
    arguments: tuple
    in_specs: Any = P("x", "y")
    out_specs: Any = P("x", "y")
    around: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda f: f
    check_vma: bool = False


SQUARE = integers(16, 16)


def _loss(w: Any, x: Any) -> Any:
    return lax.pmean(jnp.sum((x @ w) ** 2), BOTH)


def _scanned(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        carry = lax.ppermute(carry, "x", [(i, (i + 1) % 4) for i in range(4)]) + row
        return carry, lax.psum(carry, "y")

    return lax.scan(step, x[0], x)


def _branches(x: Any) -> Any:
    first = lax.axis_index("x") == 0
    return lax.cond(lax.psum(x.sum(), BOTH) > 0, lambda: x + first, lambda: x - 1)


GRADIENT = dict(
    arguments=(integers(16, 4), integers(8, 16)),
    in_specs=(P(), P(BOTH)),
    check_vma=True,
)
SHARDED: dict[str, Mapped] = {
    "psum": Mapped(lambda x: lax.psum(x, "x"), (SQUARE,)),
    "psum of two trees": Mapped(
        lambda x: lax.psum({"a": x, "b": (x * 2, x[0, 0])}, BOTH),
        (SQUARE,),
        out_specs=P(),
    ),
    "psum of booleans": Mapped(
        lambda x: lax.psum(x > 0, BOTH), (SQUARE,), out_specs=P()
    ),
    "psum of BF16": Mapped(lambda x: lax.psum(x, "y"), (SQUARE.astype(jnp.bfloat16),)),
    "psum of integers": Mapped(lambda x: lax.psum(x, "y"), (SQUARE.astype(np.int8),)),
    "psum of complex numbers": Mapped(
        lambda x: lax.psum(x, "y"), (SQUARE * np.complex64(1 + 2j),)
    ),
    "groups": Mapped(
        lambda x: lax.psum(x, "x", axis_index_groups=[[3, 1], [0, 2]]), (SQUARE,)
    ),
    "pmax, pmin": Mapped(lambda x: (lax.pmax(x, "x"), lax.pmin(x, BOTH)), (SQUARE,)),
    "pmean": Mapped(lambda x: lax.pmean(x, BOTH), (SQUARE,)),
    "all_gather": Mapped(
        lambda x: (
            lax.all_gather(x, "x"),
            lax.all_gather(x, "y", axis=1, tiled=True),
            lax.all_gather(x, ("y", "x"), tiled=True),
        ),
        (SQUARE,),
        out_specs=(P(None, "x", "y"), P("x", "y"), P("x", "y")),
    ),
    "psum_scatter": Mapped(
        lambda x: (
            lax.psum_scatter(x, "x"),
            lax.psum_scatter(x, "y", scatter_dimension=1, tiled=True),
        ),
        (SQUARE,),
        out_specs=(P(), P("x", "y")),
    ),
    "all_to_all": Mapped(
        lambda x: (
            lax.all_to_all(x, "x", 0, 1),
            lax.all_to_all(x, ("x", "y"), 1, 0, tiled=True),
        ),
        (integers(16, 16),),
        out_specs=P("x", "y"),
    ),
    "permutation of some": Mapped(
        lambda x: lax.ppermute(x, "x", [(0, 1), (3, 0)]), (SQUARE,)
    ),
    "axis_index": Mapped(
        lambda x: x + 10 * lax.axis_index("x") + lax.axis_index("y"), (SQUARE,)
    ),
    "loop with collectives": Mapped(
        _scanned, (integers(16, 4),), out_specs=(P(BOTH), P("x", "y"))
    ),
    "branches with collectives": Mapped(_branches, (SQUARE,)),
    "a matmul with its sums": Mapped(
        lambda a, b: lax.psum(a @ b, "y"),
        (integers(8, 16), integers(16, 4)),
        in_specs=(P("x", "y"), P("y")),
        out_specs=P("x"),
    ),
    "value_and_grad inside": Mapped(
        jax.value_and_grad(_loss), out_specs=P(), **GRADIENT
    ),
    "value_and_grad around": Mapped(
        _loss, out_specs=P(), around=jax.value_and_grad, **GRADIENT
    ),
    "vmap around": Mapped(
        lambda x: lax.psum(x, "x") + lax.axis_index("y"),
        (integers(3, 8, 8),),
        around=jax.vmap,
    ),
}


def _parts(w: Any, batch: Any, *, k: Any) -> Any:
    return {"a": w * batch["x"] + k, "n": lax.pmean(batch["x"], "d")}, batch["y"]


def _norms(x: Any, power: int) -> Any:
    return lax.psum(x**power, "d")


class PMapped(NamedTuple):
    """A function for `pmap`, and what it is called with."""

    function: Callable[..., Any]
    arguments: tuple
    options: dict[str, Any]
    keywords: dict[str, Any] | None = None


BATCH = {"x": integers(8), "y": integers(2, 8, 5)}
EIGHT = integers(8, 3)
PMAPPED: dict[str, PMapped] = {
    "defaults": PMapped(lambda x: x * 2, (EIGHT,), {}),
    "a collective": PMapped(lambda x: lax.psum(x, "d"), (EIGHT,), {"axis_name": "d"}),
    "an axis without size": PMapped(lambda x, y: (y, x[0]), (EIGHT, EIGHT[:, 0]), {}),
    "axes as trees": PMapped(
        _parts,
        (np.float32(2), BATCH),
        {
            "axis_name": "d",
            "in_axes": (None, {"x": 0, "y": 1}),
            "out_axes": ({"a": 0, "n": None}, 1),
        },
        {"k": EIGHT},
    ),
    "a static argument": PMapped(
        _norms, (EIGHT, 3), {"axis_name": "d", "static_broadcasted_argnums": 1}
    ),
}


def _mesh(kind: str) -> Any:
    if kind == "emulated":
        return nj.make_mesh((4, 2), BOTH)
    return jax.make_mesh((4, 2), BOTH, axis_types=(AxisType.Auto,) * 2)


def _sharded(name: str, kind: str, wrap: Callable[..., Any] = jax.jit) -> Any:
    case = SHARDED[name]
    function = jax.shard_map(
        case.function,
        mesh=_mesh(kind),
        in_specs=case.in_specs,
        out_specs=case.out_specs,
        check_vma=case.check_vma,
    )
    return case.around(wrap(function))(*case.arguments)


def _pmapped(name: str, pmap: Callable[..., Any]) -> Any:
    case = PMAPPED[name]
    return pmap(case.function, **case.options)(*case.arguments, **(case.keywords or {}))


def _numpy(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


# -- JAX's own results -----------------------------------------------------------------


def _write_references() -> None:
    """What the child process does."""
    found = {name: _numpy(_sharded(name, "host")) for name in SHARDED}
    found |= {f"pmap: {name}": _numpy(_pmapped(name, jax.pmap)) for name in PMAPPED}
    sys.stdout.buffer.write(pickle.dumps(found))


@pytest.fixture(scope="module")
def references() -> dict[str, list[np.ndarray]]:
    """Leaves of the results, by case; of pmap as "pmap: ..."."""
    flags = f"--xla_force_host_platform_device_count={DEVICES}"
    root = Path(__file__).parents[2]
    code = "from tests.api import test_pmap; test_pmap._write_references()"
    path = os.pathsep.join([str(root), *filter(None, sys.path)])
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return pickle.loads(done.stdout)


def assert_equal(tree: Any, expected: list[np.ndarray]) -> None:
    for x, e in zip(_numpy(tree), expected, strict=True):
        assert x.dtype == e.dtype
        np.testing.assert_array_equal(x, e)


def quick(names: Iterable[str], *slow: str) -> list:
    """Parameters, of which some are slow: others cover them."""
    return [pytest.param(n, marks=pytest.mark.slow) if n in slow else n for n in names]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", quick(SHARDED, "pmean", "groups", "psum of integers", "psum of booleans")
)
def test_shard_map(name, references):
    jit = functools.partial(nj.jit, target=TARGET)
    assert_equal(_sharded(name, "emulated", jit), references[name])


@pytest.mark.parametrize(
    "name", quick(PMAPPED, "defaults", "an axis without size", "a static argument")
)
def test_pmap(name, references):
    pmap = functools.partial(nj.pmap, target=TARGET)
    assert_equal(_pmapped(name, pmap), references[f"pmap: {name}"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    quick(["psum", "psum_scatter", "loop with collectives"], "psum", "psum_scatter"),
)
def test_op_by_op(name):
    jit = functools.partial(nj.jit, target=TARGET)
    compiled = _sharded(name, "emulated", jit)
    with jax.disable_jit():
        assert_equal(_sharded(name, "emulated", jit), _numpy(compiled))


@pytest.mark.slow
def test_the_fold_of_the_policy():
    """Rank 0 owns the first element on a ring, so its sum starts at rank 1."""
    random = np.random.default_rng(0)
    x = random.standard_normal((4, 4)).astype(jnp.bfloat16)
    ring = nj.Policy(collective_algorithm="ring")
    summed = nj.pmap(lambda x: lax.psum(x, "d"), "d", policy=ring)(x)
    expected = [
        functools.reduce(lambda a, b: a + b, np.roll(x[:, owner], -owner - 1))
        for owner in range(4)
    ]
    np.testing.assert_array_equal(summed, np.broadcast_to(expected, (4, 4)))
    left = nj.Policy(collective_algorithm="left_fold")
    other = nj.pmap(lambda x: lax.psum(x, "d"), "d", policy=left)(x)
    assert np.any(np.asarray(other) != np.asarray(summed))


# -- pmap ------------------------------------------------------------------------------


def test_a_training_step():
    """Gradients of replicated parameters are not summed: the user does."""

    @functools.partial(nj.pmap, axis_name="d", in_axes=(None, 0), devices=4)
    def step(w, x):
        gradient = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
        return gradient, lax.psum(gradient, "d")

    w, x = integers(3), integers(4, 5, 3)
    own, summed = step(w, x)
    expected = np.stack([2 * d.T @ (d @ w) for d in x])
    np.testing.assert_array_equal(own, expected)
    np.testing.assert_array_equal(summed, np.broadcast_to(expected.sum(0), (4, 3)))


@pytest.mark.slow
def test_grad_and_vmap_around_pmap():
    mapped = nj.pmap(lambda w, x: lax.psum(w * x, "d"), "d", in_axes=(None, 0))
    w, x = integers(3), integers(4, 3)
    gradient = jax.grad(lambda w: mapped(w, x)[0].sum())(w)
    np.testing.assert_array_equal(gradient, x.sum(0))
    batched = jax.vmap(mapped, in_axes=(0, None))(integers(2, 3), x)
    assert batched.shape == (2, 4, 3)


def test_a_decorator_with_options():
    @nj.pmap(axis_name="d", devices=[0, 1], donate_argnums=0, policy="bf16")
    def double(x):
        """Twice."""
        return 2 * x

    np.testing.assert_array_equal(double(jnp.ones((2, 3))), np.full((2, 3), 2))
    assert double.__doc__ == "Twice."
    assert "cc.spmd" in double.lower(jnp.ones((2, 3))).compile().as_text()


@pytest.mark.parametrize("devices", [2, range(2), [0, 1]], ids=str)
def test_devices_are_a_number_or_a_sequence(devices):
    mapped = nj.pmap(identity, devices=devices)
    with pytest.raises(InvalidProgramError, match="pmap over 2 devices"):
        mapped(EIGHT)


@pytest.mark.slow
def test_keys_are_mapped():
    keys = jax.random.split(jax.random.key(0), 4)

    def draw(key):
        return jax.random.bits(key, (3,))

    np.testing.assert_array_equal(nj.pmap(draw)(keys), jax.vmap(draw)(keys))


def identity(x: Any) -> Any:
    return x


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "fewer than devices": (
        lambda: nj.pmap(identity, devices=4)(EIGHT),
        "pmap over 4 devices: .* differ: x 8",
    ),
    "different sizes": (
        lambda: nj.pmap(lambda x, y: x)(EIGHT, EIGHT[:2]),
        "lengths of the mapped axes differ: x 8, y 2",
    ),
    "a name in a tree": (
        lambda: nj.pmap(lambda x, y: x)(EIGHT, {"a": [EIGHT[:2]]}),
        "y/a/0 2",
    ),
    "nothing mapped": (
        lambda: nj.pmap(identity, in_axes=None)(EIGHT),
        "no argument has a mapped axis",
    ),
    "no such axis": (
        lambda: nj.pmap(identity, in_axes=2)(EIGHT),
        r"axis 2 of argument x, of shape \(8, 3\)",
    ),
    "too few in_axes": (
        lambda: nj.pmap(lambda x, y: x, in_axes=(0,))(EIGHT, EIGHT),
        "in_axes is no pytree prefix",
    ),
    "no prefix": (
        lambda: nj.pmap(identity, in_axes={"a": 0})(EIGHT),
        "in_axes is no pytree prefix",
    ),
    "no prefix of results": (
        lambda: nj.pmap(identity, out_axes={"a": 0})(EIGHT[:4]),
        "out_axes is no pytree prefix",
    ),
    "negative": (lambda: nj.pmap(identity, out_axes=-1), "out_axes holds -1"),
    "past the end": (
        lambda: nj.pmap(identity, out_axes=2)(EIGHT[:4]),
        r"out_axes is 2 for a result of shape \(3,\)",
    ),
    "two sizes": (
        lambda: nj.pmap(identity, devices=4, axis_size=8),
        "axis_size=8 over 4 devices",
    ),
    "more than the target has": (
        lambda: nj.pmap(identity)(EIGHT),
        "8 devices, but target trn2 has 4",
    ),
    "no mesh": (lambda: nj.make_mesh((2, 2), ("a",)), r"shape \(2, 2\)"),
    "an axis twice": (lambda: nj.make_mesh((2, 2), ("a", "a")), "'a', 'a'"),
    "no devices": (lambda: nj.make_mesh((0,), ("a",)), r"shape \(0,\)"),
}


@pytest.mark.parametrize("name", CALLS)
def test_illegal_calls(name):
    call, words = CALLS[name]
    with pytest.raises(InvalidProgramError, match=words):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: nj.pmap(identity, devices=[1, 0]),
        lambda: nj.pmap(nj.pmap(identity))(integers(2, 2)),
        lambda: nj.replicate(EIGHT, [0, 2]),
        lambda: nj.replicate(EIGHT, jax.devices()),
    ],
    ids=["devices in another order", "nested", "some devices", "the host's devices"],
)
def test_unimplemented_calls(call):
    with pytest.raises(UnimplementedError):
        call()


# -- devices ---------------------------------------------------------------------------


def test_make_mesh():
    mesh = nj.make_mesh((4, 2), ("dp", "tp"))
    assert mesh.shape == {"dp": 4, "tp": 2}
    assert mesh.axis_types == (AxisType.Auto,) * 2


@pytest.mark.parametrize(
    ("target", "lnc", "count"),
    [
        ("trn2", None, 4),
        ("trn2", 1, 8),
        ("trn2.48xlarge", None, 64),
        ("trn1.32xlarge", None, 32),
    ],
)
def test_local_device_count(target, lnc, count):
    assert nj.local_device_count(target, lnc=lnc) == count


@pytest.mark.parametrize("devices", [4, range(4), [0, 1, 2, 3]], ids=str)
def test_replicate(devices):
    tree = {"w": integers(2, 3), "n": 1.5}
    copies = nj.replicate(tree, devices)
    assert jax.tree.map(jnp.shape, copies) == {"w": (4, 2, 3), "n": (4,)}
    assert_equal(nj.unreplicate(copies), _numpy(jax.tree.map(jnp.asarray, tree)))
