"""The kinds of programs of the matrix: one small computation, placed in each of them.

The computation is a layer, `layer(w, a)`, and a *core*, the variance of numbers around
3,000. A core is healthy, or it has a fault at a line that is marked in this file: it
cancels (`faulty`), or Trainium's compiler refuses it (`refused`). A kind places a core
in a program: in a loop, on the devices of a mesh, in a file, behind a kernel. NumPy
computes the answer of every program in float64.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

import neuronjax as nj
import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki

Core = Callable[[jax.Array], jax.Array]
DEVICES = 4
#: The number of the program's call, for stochastic rounding.
SEED = 3
FILE = Path(__file__)


# -- the computation -------------------------------------------------------------------


def layer(w: Any, a: Any) -> Any:
    return jnp.tanh(a @ w).mean()


def healthy(x: jax.Array) -> jax.Array:
    centred = x - x.mean()
    return (centred * centred).mean()  # HEALTHY


def faulty(x: jax.Array) -> jax.Array:
    return (x * x).mean() - x.mean() ** 2  # FAULT


def refused(x: jax.Array) -> jax.Array:
    best = x.ravel().argmax().astype(x.dtype)  # REFUSED
    return healthy(x) + 0.0 * best


CORES: dict[str, Core] = {"healthy": healthy, "faulty": faulty, "refused": refused}


def line_of(marker: str) -> str:
    """Return the place of a marked line of this file, "programs.py:46"."""
    lines = FILE.read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if line.endswith(f"# {marker}"))
    return f"{FILE.name}:{number}"


def arrays() -> tuple[Any, ...]:
    """Return weights, the inputs of the layer, and the numbers of the core, a row for
    every device."""
    draw = np.random.default_rng(7)
    w = draw.normal(size=(32, 4)) / 4
    a = draw.normal(size=(DEVICES, 2, 32))
    x = draw.normal(size=(DEVICES, 64)) + 3000
    return tuple(jnp.asarray(each, jnp.float32) for each in (w, a, x))


# -- what NumPy says -------------------------------------------------------------------


class Answer(NamedTuple):
    """The result and its gradient with respect to the numbers of the core, float64."""

    value: float
    gradient: np.ndarray


def _layer64(w: Any, a: Any) -> float:
    return np.tanh(np.asarray(a, np.float64) @ np.asarray(w, np.float64)).mean()


def whole(w: Any, a: Any, x: Any) -> Answer:
    """The variance of all numbers."""
    x = np.asarray(x, np.float64)
    return Answer(_layer64(w, a) + x.var(), 2 * (x - x.mean()) / x.size)


def rows(w: Any, a: Any, x: Any) -> Answer:
    """The mean of the variances of the rows."""
    x = np.asarray(x, np.float64)
    centred = x - x.mean(1, keepdims=True)
    return Answer(_layer64(w, a) + x.var(1).mean(), 2 * centred / x.size)


def halves(w: Any, a: Any, x: Any) -> Answer:
    """The mean of the variances of the halves of rows."""
    x = np.asarray(x, np.float64)
    found = rows(w, a, x.reshape(2 * len(x), -1))
    return Answer(found.value, found.gradient.reshape(x.shape))


def constant(w: Any, a: Any, x: Any) -> Answer:
    """`rows` of a program that is not differentiable in `x`."""
    return Answer(rows(w, a, x).value, np.zeros(np.shape(x)))


# -- on one device ---------------------------------------------------------------------


def plain(core: Core) -> Callable[..., Any]:
    def program(w: Any, a: Any, x: Any) -> Any:
        return layer(w, a) + core(x)

    return program


class Batch(NamedTuple):
    a: Any
    x: Any


def pytrees(core: Core) -> Callable[..., Any]:
    def program(params: dict, batch: Batch) -> Any:
        parts = [layer(params["w"], batch.a), core(batch.x)]
        return {"loss": parts[0] + parts[1], "parts": parts}

    return program


def updated(core: Core) -> Callable[..., Any]:
    """The numbers of the core are given away, and come back updated."""

    def program(w: Any, a: Any, x: Any) -> Any:
        return plain(core)(w, a, x), x + 1

    return program


class NnxLayer(nnx.Module):
    def __init__(self, w: Any) -> None:
        self.w = nnx.Param(w)

    def __call__(self, a: Any) -> Any:
        return layer(self.w[...], a)


class EquinoxLayer(eqx.Module):
    w: Any
    layer: Callable[..., Any] = eqx.field(static=True)

    def __call__(self, a: Any) -> Any:
        return self.layer(self.w, a)


def modules(core: Core) -> Callable[..., Any]:
    def program(model: Any, a: Any, x: Any) -> Any:
        return model(a) + core(x)

    return program


def scan(core: Core) -> Callable[..., Any]:
    def program(w: Any, a: Any, x: Any) -> Any:
        def turn(total: Any, each: Any) -> Any:
            return total + (layer(w, each[0]) + core(each[1])) / DEVICES, None

        return lax.scan(turn, jnp.float32(0), (a, x))[0]

    return program


def loop(core: Core) -> Callable[..., Any]:
    """A loop of which JAX has no derivative."""

    def program(w: Any, a: Any, x: Any) -> Any:
        x = lax.stop_gradient(x)

        def turn(state: Any) -> Any:
            n, total = state
            return n + 1, total + core(x[n]) / DEVICES

        start = jnp.int32(0), jnp.float32(0)
        total = lax.while_loop(lambda state: state[0] < DEVICES, turn, start)[1]
        return layer(w, a) + total

    return program


def cond(core: Core) -> Callable[..., Any]:
    def program(w: Any, a: Any, x: Any) -> Any:
        return layer(w, a) + lax.cond(x[0, 0] > 0, core, lambda x: x.sum(), x)

    return program


def nested(core: Core) -> Callable[..., Any]:
    def program(w: Any, a: Any, x: Any) -> Any:
        def turn(total: Any, row: Any) -> Any:
            def twice(row: Any) -> Any:
                parts = row.reshape(2, -1)
                return lax.fori_loop(0, 2, lambda n, t: t + core(parts[n]) / 2, 0.0)

            each = lax.cond(row[0] > 0, twice, lambda row: row.sum(), row)
            return total + each / DEVICES, None

        return layer(w, a) + lax.scan(turn, jnp.float32(0), x)[0]

    return program


def custom_vjp(core: Core) -> Callable[..., Any]:
    function = jax.custom_vjp(core)
    function.defvjp(
        lambda x: (core(x), x), lambda x, g: (2 * g * (x - x.mean()) / x.size,)
    )
    return plain(function)


def remat(core: Core) -> Callable[..., Any]:
    return plain(jax.checkpoint(core))


def inner_jit(core: Core) -> Callable[..., Any]:
    return plain(nj.jit(core))


def _same(value: Any) -> Any:
    return value


def callback(core: Core) -> Callable[..., Any]:
    def program(w: Any, a: Any, x: Any) -> Any:
        value = lax.stop_gradient(layer(w, a))
        same = jax.pure_callback(_same, value, value, vmap_method="sequential")
        return same + core(x)

    return program


@nki.jit(target="trn2")
def twice(x: Any) -> Any:
    """Two times a tile."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nl.store(out, tile)
    return out


twice.defvjp(lambda x: (twice(x), None), lambda _, g: (2 * g,))


def kernel(core: Core) -> Callable[..., Any]:
    def program(w: Any, a: Any, x: Any) -> Any:
        return layer(w, a) + core(twice(x)) / 4

    return program


def narrow_weights(core: Core) -> Callable[..., Any]:
    """The weights are a `SparseArray` or an `MXArray`."""

    def program(w: Any, a: Any, x: Any) -> Any:
        dense = w.todense() if isinstance(w, nj.SparseArray) else w.dequantize()
        return layer(dense, a) + core(x)

    return program


# -- on a mesh -------------------------------------------------------------------------


def _mesh() -> Any:
    return nj.make_mesh((DEVICES,), ("dp",))


def _weight(device: Any) -> Any:
    """Return numbers that differ from device to device; their mean is 1."""
    return (device + 1) / 2.5


def _psum(value: Any) -> Any:
    return lax.psum(value, "dp") / DEVICES


def _psum_scatter(value: Any) -> Any:
    """Every device gets the sum, times a weight of its own."""
    parts = value * _weight(jnp.arange(DEVICES, dtype=jnp.float32))
    own = lax.psum_scatter(parts, "dp", tiled=True) / DEVICES
    return lax.pmean(own.sum(), "dp")


def _all_gather(value: Any) -> Any:
    return lax.pmean(lax.all_gather(value, "dp").mean(), "dp")


def _all_to_all(value: Any) -> Any:
    """Device d gets from all the value times the weight of d."""
    parts = value * _weight(jnp.arange(DEVICES, dtype=jnp.float32))
    return lax.pmean(lax.all_to_all(parts, "dp", 0, 0, tiled=True).mean(), "dp")


def _ppermute(value: Any) -> Any:
    around = [(n, (n + 1) % DEVICES) for n in range(DEVICES)]
    return lax.pmean(lax.ppermute(value, "dp", around), "dp")


def spread(collective: Callable[..., Any]) -> Callable[[Core], Callable[..., Any]]:
    """Return the kind whose devices have a row each, joined by a collective."""

    def placed(core: Core) -> Callable[..., Any]:
        def device(w: Any, a: Any, x: Any) -> Any:
            return collective(layer(w, a) + core(x))

        specs = P(), P("dp"), P("dp")
        return jax.shard_map(device, mesh=_mesh(), in_specs=specs, out_specs=P())

    return placed


def spread_scan(core: Core) -> Callable[..., Any]:
    """A collective in every turn of a loop."""

    def device(w: Any, a: Any, x: Any) -> Any:
        def turn(total: Any, half: Any) -> Any:
            return total + lax.pmean(core(half), "dp") / 2, None

        start = lax.pmean(layer(w, a), "dp")
        return lax.scan(turn, start, x.reshape(2, -1))[0]

    specs = P(), P("dp"), P("dp")
    return jax.shard_map(device, mesh=_mesh(), in_specs=specs, out_specs=P())


def two_axes(core: Core) -> Callable[..., Any]:
    """Rows over one axis; the halves of a row, and the weights' columns, over two."""
    mesh = nj.make_mesh((DEVICES, 2), ("dp", "tp"))

    def device(w: Any, a: Any, x: Any) -> Any:
        return lax.pmean(layer(w, a) + core(x), ("dp", "tp"))

    specs = P(None, "tp"), P("dp"), P("dp", "tp")
    return jax.shard_map(device, mesh=mesh, in_specs=specs, out_specs=P())


def one_device(core: Core) -> Callable[..., Any]:
    """What `pmap` takes: the program of one device."""

    def program(w: Any, a: Any, x: Any) -> Any:
        return lax.pmean(layer(w, a) + core(x), "dp")

    return program


# -- in a file -------------------------------------------------------------------------


def _exported(function: Callable[..., Any], arguments: Any) -> bytes:
    exported = jax.export.export(jax.jit(function), platforms=["cpu"])(*arguments)
    return bytes(exported.serialize(vjp_order=1))


def text(function: Callable[..., Any]) -> bytes:
    """Return the StableHLO of a function, as text with its lines."""
    lowered = jax.jit(function).trace(*arrays()).lower(lowering_platforms=("cpu",))
    return lowered.as_text(debug_info=True).encode()


def blob(function: Callable[..., Any]) -> bytes:
    """Return the `jax.export` artifact of a function, with its derivative."""
    return _exported(function, arrays())


def symbolic_blob(function: Callable[..., Any]) -> bytes:
    """Return an artifact for any number of rows."""
    w, a, x = arrays()
    scope = jax.export.SymbolicScope()
    types = [
        jax.ShapeDtypeStruct(
            jax.export.symbolic_shape(
                f"b, {', '.join(map(str, each.shape[1:]))}", scope=scope
            ),
            each.dtype,
        )
        for each in (a, x)
    ]
    return _exported(function, (w, *types))


def loaded_inside(core: Core) -> Callable[..., Any]:
    """A loaded program that is called inside a function."""
    *_, x = arrays()
    return plain(nj.load(_exported(core, (x,))))


# -- the kinds -------------------------------------------------------------------------

FP8 = dict(auto_cast="matmult", auto_cast_type="fp8")
DELAYED = nj.Policy(**FP8, scaling="delayed", amax_history_length=4)
STOCHASTIC = nj.Policy(
    auto_cast="matmult", auto_cast_type="bf16", rounding="stochastic", seed=0
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of program.

    Attributes:
        title: what docs call it.
        of: places a core in a program.
        answer: what NumPy says of it.
        arranged: the arguments of a call, from those of `arrays`.
        scalar: the result that is the answer, of what a call returns.
        numbers: the leaf of the last argument that the core reads.
        policy: the numerics.
        target: the machine.
        options: further keywords of `nj.jit`.
        file: writes the program to bytes, of a kind that is loaded.
        mapped: whether it is one of `nj.pmap`.
        state: whether calls hand on an amax history.
        errors: what Trainium's compiler refuses of it, by the rules of `nj.check`.
        rtol: how far from NumPy a right result may be.
    """

    title: str
    of: Callable[[Core], Callable[..., Any]] = plain
    answer: Callable[..., Answer] = whole
    arranged: Callable[..., tuple] = lambda *arrays: arrays
    scalar: Callable[[Any], Any] = lambda result: result
    numbers: Callable[[Any], Any] = lambda argument: argument
    policy: str | nj.Policy = "bf16"
    target: str = "trn2.48xlarge"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    file: Callable[..., bytes] | None = None
    mapped: bool = False
    state: bool = False
    errors: tuple[str, ...] = ()
    rtol: float = 5e-3

    def arguments(self) -> tuple:
        """Return fresh arguments of a call."""
        return self.arranged(*arrays())

    def saved(self, core: str = "healthy") -> bytes:
        """Return the file of a program that is loaded."""
        assert self.file is not None
        return self.file(self.of(CORES[core]))

    def emulated(self, core: str = "healthy", **options: Any) -> Any:
        """Return the program, emulated or loaded, as every verb takes it.

        Args:
            core: of `CORES`.
            **options: keywords of `nj.jit` that replace the kind's own.
        """
        setting = {"target": self.target, "policy": self.policy, **options}
        if self.file:
            return nj.load(self.saved(core), **setting)
        function = self.of(CORES[core])
        if self.mapped:
            axes = dict(in_axes=(None, 0, 0), out_axes=None, devices=DEVICES)
            return nj.pmap(function, "dp", **axes, **setting)
        step = nj.jit(function, **{**self.options, **setting})
        if self.state:
            history = step.init_amax_history(*self.arguments())
            step = step.with_amax_history(history)
        return step.with_rounding_seed(SEED) if self.policy is STOCHASTIC else step

    def value(self, outputs: Any) -> Any:
        """Return the answer among the outputs of a call."""
        return self.scalar(outputs[0] if self.state else outputs)

    def expected(self) -> Answer:
        """Return what NumPy says of the arguments."""
        w, a, x = arrays()
        narrow = self.arranged(w, a, x)[0]
        if isinstance(narrow, nj.SparseArray):
            w = narrow.todense()
        if isinstance(narrow, nj.MXArray):
            w = narrow.dequantize()
        return self.answer(w, a, x)


def _sharded() -> dict[str, Any]:
    specs = P(), P("dp"), P("dp")
    return {"in_shardings": tuple(NamedSharding(_mesh(), spec) for spec in specs)}


def _with_weights(make: Callable[..., Any]) -> Callable[..., tuple]:
    return lambda w, a, x: (make(w), a, x)


KINDS: dict[str, Kind] = {
    "arrays": Kind(title="function of arrays"),
    "pytrees": Kind(
        title="pytrees",
        of=pytrees,
        arranged=lambda w, a, x: ({"w": w}, Batch(a, x)),
        scalar=lambda result: result["loss"],
        numbers=lambda batch: batch.x,
    ),
    "nnx": Kind(title="Flax NNX module", of=modules, arranged=_with_weights(NnxLayer)),
    "equinox": Kind(
        title="Equinox module",
        of=modules,
        arranged=_with_weights(lambda w: EquinoxLayer(w, layer)),
    ),
    "scan": Kind(title="`scan`", of=scan, answer=rows),
    "while": Kind(title="`while_loop`", of=loop, answer=constant),
    "cond": Kind(title="`cond`", of=cond, errors=("traced-cond",)),
    "nested": Kind(
        title="`fori_loop` in `cond` in `scan`",
        of=nested,
        answer=halves,
        errors=("traced-cond",),
    ),
    "custom_vjp": Kind(title="`custom_vjp`", of=custom_vjp),
    "remat": Kind(title="`jax.checkpoint`", of=remat),
    "psum": Kind(title="`shard_map`, `psum`", of=spread(_psum), answer=rows),
    "psum_scatter": Kind(
        title="`shard_map`, `psum_scatter`", of=spread(_psum_scatter), answer=rows
    ),
    "all_gather": Kind(
        title="`shard_map`, `all_gather`", of=spread(_all_gather), answer=rows
    ),
    "all_to_all": Kind(
        title="`shard_map`, `all_to_all`", of=spread(_all_to_all), answer=rows
    ),
    "ppermute": Kind(
        title="`shard_map`, `ppermute`", of=spread(_ppermute), answer=rows
    ),
    "mesh_scan": Kind(
        title="`shard_map`, `pmean` in `scan`", of=spread_scan, answer=halves
    ),
    "pmap": Kind(title="`nj.pmap`", of=one_device, answer=rows, mapped=True),
    "in_shardings": Kind(title="`in_shardings`", options=_sharded()),
    "two_axes": Kind(title="a mesh of two axes", of=two_axes, answer=halves),
    "stablehlo": Kind(title="loaded StableHLO", file=text),
    "export_blob": Kind(title="loaded `jax.export` artifact", file=blob),
    "symbolic": Kind(title="loaded, symbolic batch", file=symbolic_blob),
    "loaded_inside": Kind(title="loaded, called inside a function", of=loaded_inside),
    "inner_jit": Kind(title="`nj.jit` inside", of=inner_jit),
    "kernel": Kind(title="NKI kernel inside", of=kernel),
    "sparse": Kind(
        title="16:4 sparse weights",
        of=narrow_weights,
        arranged=_with_weights(lambda w: nj.sparsify(w, "4:16", axis=0)),
        policy=nj.Policy(auto_cast="matmult", auto_cast_type="bf16", sparsity="4:16"),
    ),
    "mx": Kind(
        title="MX weights",
        of=narrow_weights,
        arranged=_with_weights(lambda w: nj.quantize_mx(w, "mxfp8_e4m3", axis=0)),
        target="trn3-ultraserver-gen1",
        policy="mxfp8",
        rtol=2e-2,
    ),
    "delayed": Kind(title="delayed scaling", policy=DELAYED, state=True, rtol=2e-2),
    "delayed_mesh": Kind(
        title="delayed scaling on a mesh",
        of=spread(_psum),
        answer=rows,
        policy=DELAYED,
        state=True,
        rtol=2e-2,
    ),
    "stochastic": Kind(title="stochastic rounding", policy=STOCHASTIC),
    "donated": Kind(
        title="donated arguments",
        of=updated,
        scalar=lambda result: result[0],
        options={"donate_argnums": 2},
    ),
    "callback": Kind(
        title="`pure_callback` on the host",
        of=callback,
        policy=nj.Policy(auto_cast="matmult", auto_cast_type="bf16", callbacks="host"),
        errors=("host-callback",),
    ),
}


@functools.cache
def program(kind: str, core: str = "healthy") -> Any:
    """Return a program of a kind; the same object in all cells, which share what was
    compiled."""
    return KINDS[kind].emulated(core)


def __getattr__(name: str) -> Any:
    """Return a program by its name, for the command line: `programs.py:scan_faulty`."""
    kind, _, core = name.rpartition("_")
    if kind not in KINDS or core not in CORES:
        raise AttributeError(name)
    step = program(kind, core)
    step.example_args = KINDS[kind].arguments
    return step
