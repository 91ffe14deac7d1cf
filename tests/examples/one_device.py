"""An SPMD program on one device: the shards in a Python loop, collectives in NumPy.

The program of `jax.shard_map` is read as JAX writes it (a jaxpr) and cut at its
collectives. What lies between two of them becomes a single-device `nj.jit` program,
called for one device after the other; a collective is messages between NumPy arrays,
by `tests.oracles.collectives`. A scan with collectives in it is a Python loop. Nothing
of neuronjax that knows of many devices is used.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal

import neuronjax as nj
from tests.oracles import collectives as oracle

#: Primitives that are their inner jaxpr: its name among the parameters.
INLINED = {
    "jit": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
#: One array per device.
Shards = list[np.ndarray]


def run(
    mapped: Callable[..., Any],
    *args: Any,
    target: str,
    policy: nj.Policy,
) -> Any:
    """What `nj.jit(mapped, ...)(*args)` has to return.

    Args:
        mapped: a `jax.shard_map`, of which nothing lies outside.
        args: its arguments, whole.
        target: of the programs; its chips have four logical cores.
        policy: of the programs; it names the collectives' algorithm.
    """
    closed, shapes = jax.make_jaxpr(mapped, return_shape=True)(*args)
    (equation,) = closed.jaxpr.eqns
    assert equation.primitive.name == "shard_map"
    assert list(equation.invars) == list(closed.jaxpr.invars)
    mesh = dict(equation.params["mesh"].shape)
    leaves = map(np.asarray, jax.tree.leaves(args))
    specs = equation.params["in_specs"]
    inputs = [cut(x, spec, mesh) for x, spec in zip(leaves, specs, strict=True)]
    devices = Devices(mesh=mesh, target=target, policy=policy)
    outputs = devices.run(_jaxpr(equation.params["jaxpr"]), inputs)
    specs = equation.params["out_specs"]
    whole = [join(x, spec, mesh) for x, spec in zip(outputs, specs, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(shapes), whole)


def _jaxpr(jaxpr: Any) -> Jaxpr:
    """Without constants, which these programs have none of."""
    if isinstance(jaxpr, Jaxpr):
        return jaxpr
    assert not jaxpr.consts
    return jaxpr.jaxpr


# ---- Whole arrays and their shards; devices in row-major order of the mesh.


def _slices(shape: Sequence[int], spec: Any, mesh: Mapping[str, int]) -> list[tuple]:
    """By device, the part of an array of this shape."""
    found = []
    for place in itertools.product(*map(range, mesh.values())):
        at = dict(zip(mesh, place, strict=True))
        part = [slice(None)] * len(shape)
        for dimension, name in enumerate(spec):
            if name is not None:
                size = shape[dimension] // mesh[name]
                part[dimension] = slice(size * at[name], size * (at[name] + 1))
        found.append(tuple(part))
    return found


def _names(spec: Any) -> list[Any]:
    """By dimension an axis or None; JAX also writes an axis as a tuple of one."""
    names = [n[0] if isinstance(n, tuple) and len(n) == 1 else n for n in spec]
    assert not any(isinstance(n, tuple) for n in names)
    return names


def cut(x: np.ndarray, spec: Any, mesh: Mapping[str, int]) -> Shards:
    return [x[part] for part in _slices(x.shape, _names(spec), mesh)]


def join(shards: Shards, spec: Any, mesh: Mapping[str, int]) -> np.ndarray:
    """All devices write, so that those with the same part have to agree."""
    names = _names(spec)
    shape = list(shards[0].shape)
    for dimension, name in enumerate(names):
        shape[dimension] *= mesh.get(name, 1)
    whole = np.zeros(shape, shards[0].dtype)
    parts = _slices(shape, names, mesh)
    for shard, part in zip(shards, parts, strict=True):
        whole[part] = shard
    for shard, part in zip(shards, parts, strict=True):
        assert shard.tobytes() == whole[part].tobytes(), "copies differ"
    return whole


# ---- A jaxpr in plain JAX: what runs between two collectives.


def evaluate(equations: Sequence[JaxprEqn], values: dict[Any, Any]) -> None:
    """Binds every equation again, outside of any mesh; `values` grows."""
    for e in equations:
        operands = [_read(values, v) for v in e.invars]
        results = _bind(e, operands)
        values.update(zip(e.outvars, results, strict=True))


def _read(values: Mapping[Any, Any], variable: Any) -> Any:
    return variable.val if isinstance(variable, Literal) else values[variable]


def _bind(e: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    name = e.primitive.name
    if name in INLINED:
        return _inner(_jaxpr(e.params[INLINED[name]]), operands)
    if name == "scan":
        return _scan(e, operands)
    results = e.primitive.bind(*operands, **e.params)
    return results if e.primitive.multiple_results else [results]


def _inner(jaxpr: Jaxpr, operands: Sequence[Any]) -> list[Any]:
    values = dict(zip(jaxpr.invars, operands, strict=True))
    evaluate(jaxpr.eqns, values)
    return [_read(values, v) for v in jaxpr.outvars]


def _scan(e: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    constants, carries, rows = _operands_of_scan(e, operands)
    body = _jaxpr(e.params["jaxpr"])

    def step(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        results = _inner(body, [*constants, *carry, *row])
        return results[: len(carry)], results[len(carry) :]

    length, reverse = e.params["length"], e.params["reverse"]
    carries, ys = jax.lax.scan(step, carries, rows, length, reverse)
    return [*carries, *ys]


def _operands_of_scan(e: JaxprEqn, operands: Sequence[Any]) -> tuple[list, list, list]:
    """(constants, carries, rows)."""
    if "ft_in" in e.params:  # since JAX 0.12
        constants, carries, _ = (len(part.vals) for part in e.params["ft_in"].unpack())
    else:
        constants, carries = e.params["num_consts"], e.params["num_carry"]
    found, rows = list(operands), constants + carries
    return found[:constants], found[constants:rows], found[rows:]


# ---- All devices.


def _has_collectives(e: JaxprEqn) -> bool:
    """Also in what it calls."""
    parameters = (getattr(p, "jaxpr", p) for p in e.params.values())
    inner = (p for p in parameters if isinstance(p, Jaxpr))
    return e.primitive.name in COLLECTIVES or any(
        _has_collectives(i) for jaxpr in inner for i in jaxpr.eqns
    )


@dataclasses.dataclass(kw_only=True)
class Devices:
    """Executes jaxprs on lists of shards."""

    mesh: Mapping[str, int]
    target: str
    policy: nj.Policy
    programs: dict[tuple[int, int], Any] = dataclasses.field(default_factory=dict)

    def run(self, jaxpr: Jaxpr, operands: Sequence[Shards]) -> list[Shards]:
        """The results of a jaxpr, each a list of shards."""
        values: dict[Any, Shards] = dict(zip(jaxpr.invars, operands, strict=True))
        waiting: list[JaxprEqn] = []
        for position, e in enumerate(jaxpr.eqns):
            if not _has_collectives(e):
                waiting.append(e)
                continue
            self._alone(waiting, jaxpr, position, values)
            waiting = []
            results = self._together(e, [self._shards(values, v) for v in e.invars])
            values.update(zip(e.outvars, results, strict=True))
        self._alone(waiting, jaxpr, len(jaxpr.eqns), values)
        return [self._shards(values, v) for v in jaxpr.outvars]

    @property
    def count(self) -> int:
        return int(np.prod(list(self.mesh.values())))

    def _shards(self, values: Mapping[Any, Shards], variable: Any) -> Shards:
        if isinstance(variable, Literal):
            dtype = variable.aval.dtype
            return [np.asarray(variable.val, dtype)] * self.count
        return values[variable]

    def _alone(
        self,
        waiting: list[JaxprEqn],
        jaxpr: Jaxpr,
        position: int,
        values: dict[Any, Shards],
    ) -> None:
        """Runs equations, which end at a position, on one device after the other."""
        if not waiting:
            return
        read = [v for v in _variables_read(waiting) if v in values]
        rest = [*_variables_read(jaxpr.eqns[position:]), *jaxpr.outvars]
        later = {v for v in rest if not isinstance(v, Literal)}
        kept = [v for e in waiting for v in e.outvars if v in later]

        def program(*arrays: Any) -> list[Any]:
            inside = dict(zip(read, arrays, strict=True))
            evaluate(waiting, inside)
            return [inside[v] for v in kept]

        key = id(jaxpr), position
        if key not in self.programs:
            jitted = nj.jit(program, target=self.target, policy=self.policy)
            # The jaxpr stays alive with it, so that its id is its own.
            self.programs[key] = jitted, jaxpr
        jitted, _ = self.programs[key]
        for v in kept:
            values[v] = []
        for d in range(self.count):
            results = jitted(*(values[v][d] for v in read))
            for v, x in zip(kept, results, strict=True):
                values[v].append(np.asarray(x))

    def _together(self, e: JaxprEqn, operands: list[Shards]) -> list[Shards]:
        name = e.primitive.name
        if name in INLINED:
            return self.run(_jaxpr(e.params[INLINED[name]]), operands)
        if name == "scan":
            return self._loop(e, operands)
        results = COLLECTIVES[name](self, e.params, *map(np.stack, operands))
        return [list(x) for x in results]

    def _loop(self, e: JaxprEqn, operands: list[Shards]) -> list[Shards]:
        constants, carries, rows = _operands_of_scan(e, operands)
        body = _jaxpr(e.params["jaxpr"])
        steps = range(e.params["length"])
        found: dict[int, list[Shards]] = {}
        for i in reversed(steps) if e.params["reverse"] else steps:
            own = [[x[i] for x in row] for row in rows]
            results = self.run(body, [*constants, *carries, *own])
            carries, found[i] = results[: len(carries)], results[len(carries) :]
        outputs = [
            [np.stack(column) for column in zip(*(found[i][k] for i in steps))]
            for k in range(len(found[0]))
        ]
        return [*carries, *outputs]

    def groups(self, axes: str | Sequence[str]) -> list[list[int]]:
        """The devices that talk to each other along some axes."""
        axes = (axes,) if isinstance(axes, str) else tuple(axes)
        numbers = np.arange(self.count).reshape(*self.mesh.values())
        last = [list(self.mesh).index(name) for name in axes]
        moved = np.moveaxis(numbers, last, range(-len(last), 0))
        size = np.prod([self.mesh[name] for name in axes])
        return moved.reshape(-1, int(size)).tolist()

    @property
    def algorithm(self) -> oracle.Algorithm:
        return oracle.Algorithm(name=self.policy.collective_algorithm, ranks_per_chip=4)


def _variables_read(equations: Sequence[JaxprEqn]) -> list[Any]:
    """Each once, in the order of their first use."""
    operands = (v for e in equations for v in e.invars)
    return list(dict.fromkeys(v for v in operands if not isinstance(v, Literal)))


# ---- Collectives: of x[device, ...].


def _psum(devices: Devices, params: Mapping[str, Any], *xs: np.ndarray) -> list:
    groups = devices.groups(params["axes"])
    return [oracle.all_reduce(x, groups, devices.algorithm) for x in xs]


def _reduce_scatter(devices: Devices, params: Mapping[str, Any], x: np.ndarray) -> list:
    assert params["tiled"]
    groups, dimension = devices.groups(params["axis_name"]), params["scatter_dimension"]
    return [oracle.reduce_scatter(x, groups, dimension, devices.algorithm)]


def _all_gather(devices: Devices, params: Mapping[str, Any], x: np.ndarray) -> list:
    assert params["tiled"]
    groups = devices.groups(params["axis_name"])
    return [oracle.all_gather(x, groups, params["all_gather_dimension"])]


def _all_to_all(devices: Devices, params: Mapping[str, Any], x: np.ndarray) -> list:
    assert params["tiled"]
    groups = devices.groups(params["axis_name"])
    split, concat = params["split_axis"], params["concat_axis"]
    return [oracle.all_to_all(x, groups, split, concat)]


def _ppermute(devices: Devices, params: Mapping[str, Any], x: np.ndarray) -> list:
    groups = devices.groups(params["axis_name"])
    pairs = [(group[a], group[b]) for group in groups for a, b in params["perm"]]
    return [oracle.collective_permute(x, pairs)]


def _axis_index(devices: Devices, params: Mapping[str, Any]) -> list:
    places = np.zeros(devices.count, np.int32)
    for group in devices.groups(params["axis_name"]):
        places[group] = np.arange(len(group))
    return [places]


COLLECTIVES: dict[str, Callable[..., list]] = {
    "psum": _psum,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "axis_index": _axis_index,
}
