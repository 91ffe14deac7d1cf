"""Turns JAX's errors of tracing and lowering into errors with line and remedy.

During tracing JAX refuses meshes, axes and shardings. JAX's description of the fault is
kept, but line and remedy are replaced, because JAX's advice may not work for a mesh
without devices. An error of lowering for platform "neuron" names a primitive, whose
line is looked up in the jaxpr. `host_calls` has rules for callbacks, and for the linear
algebra that other platforms take from LAPACK or cuSOLVER.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from neuronjax import errors
from neuronjax.capture.decode import is_library
from neuronjax.ir.collective_set import (
    GROUPS_REMEDY,
    PAIRS_REMEDY,
    fault_of_groups,
    fault_of_pairs,
)

_TRANSFERS = "infeed|outfeed"
_OUTSIDE = "pass the values as arguments and return the results"
_REMEDIES = {
    **dict.fromkeys(_TRANSFERS.split("|"), _OUTSIDE),
    "pallas_call": "pl.pallas_call(..., interpret=True) turns the kernel into JAX's "
    "own operations, which are emulated; or write the kernel with neuronjax.nki",
}


def refusal(closed_jaxpr: Any, error: Exception) -> errors.NeuronJaxError:
    """Return the `NeuronJaxError` for a NotImplementedError, ValueError or IndexError
    of JAX's lowering."""
    jaxpr, text = closed_jaxpr.jaxpr, str(error)
    if named := of_mesh(error) or _wrong_devices(jaxpr) or _algorithm(jaxpr, text):
        return named
    match = re.search(r"primitive '([^']+)'", text)
    wanted = f"^{re.escape(match[1])}$" if match else _TRANSFERS
    hits = (hit for hit in equations(jaxpr) if re.search(wanted, str(hit[0].primitive)))
    equation, source = next(hits, (None, None))
    if equation is None:
        remedy = "move what the message names out of the emulated function"
        if "was exported for platforms" in text:
            remedy = "use nj.load(exported.serialize()) in place of exported.call"
        return errors.UnimplementedError(
            f"JAX cannot lower this function for platform neuron: {error}",
            remedy=remedy,
        )
    found = str(equation.primitive)
    return errors.UnsupportedError(
        "JAX has no lowering of this primitive for platform neuron",
        op=found,
        location=source,
        remedy=_REMEDIES.get(found, "compute it outside the emulated function"),
    )


def _algorithm(jaxpr: Any, message: str) -> errors.NeuronJaxError | None:
    """Return the error of a dot whose algorithm JAX cannot use for its operands."""
    match = re.search(r"dot algorithm '(\w+)'", message)
    if match is None:
        return None
    for equation, source in equations(jaxpr):
        if getattr(equation.params.get("precision"), "name", None) == match[1]:
            return errors.InvalidProgramError(
                message,
                op=str(equation.primitive),
                location=source,
                remedy="cast the operands to the named dtypes, or change the algorithm",
            )
    return None


def _wrong_devices(jaxpr: Any) -> errors.NeuronJaxError | None:
    """Return the error of the first collective whose ranks or groups are impossible."""
    sizes: dict[Any, int] = {}
    for equation, source in equations(jaxpr):
        given = equation.params
        sizes.update(getattr(given.get("mesh"), "shape", {}))
        axes = given.get("axis_name", given.get("axes", ()))
        axes = axes if isinstance(axes, tuple) else (axes,)
        devices = prod(sizes.get(axis, 1) for axis in axes)
        fault, remedy = "", ""
        if "perm" in given:
            fault, remedy = fault_of_pairs(given["perm"], devices), PAIRS_REMEDY
        elif (groups := given.get("axis_index_groups")) is not None:
            fault = fault_of_groups(groups, devices) if groups else "no groups"
            remedy = GROUPS_REMEDY
        if fault:
            op = str(equation.primitive)
            return errors.InvalidProgramError(
                fault, op=op, location=source, remedy=remedy
            )
    return None


def equations(jaxpr: Any, outer: str | None = None) -> Iterator[tuple[Any, str | None]]:
    """Yield every equation of a jaxpr and of jaxprs inside it, with the user's line.
    Equations of a jitted library function without a line get the line of its call."""
    for equation in jaxpr.eqns:
        source = source_line(equation) or outer
        yield equation, source
        for parameter in equation.params.values():
            items = parameter if isinstance(parameter, tuple | list) else [parameter]
            for item in items:
                inner = getattr(item, "jaxpr", item)
                if hasattr(inner, "eqns"):
                    yield from equations(inner, source)


def source_line(equation: Any) -> str | None:
    """Return `file:line` of the innermost frame that is not in a library."""
    trace = equation.source_info.traceback
    for frame in getattr(trace, "frames", ()):
        if not is_library(frame.file_name):
            return f"{frame.file_name}:{frame.line_num}"
    return None


# -- meshes ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Refusal:
    """A pattern in a message of JAX, and the remedy, class and prefix of our error."""

    pattern: str
    remedy: str
    kind: type[errors.NeuronJaxError] = errors.InvalidProgramError
    about: str = ""


_NO_MESH = (
    "call this inside `with jax.set_mesh(mesh):` if jax.make_mesh made the mesh, or "
    "inside `with jax.sharding.use_abstract_mesh(mesh):` if neuronjax.make_mesh made it"
)
_AUTO = (
    "use neuronjax.make_mesh, whose axes are Auto, or a mesh with "
    "axis_types=(AxisType.Auto, ...); pass arrays on an Explicit mesh as arguments, "
    "instead of closing over them"
)
_REFUSALS = (
    _Refusal(
        r"^Resource axis: .* is not found in mesh",
        "name axes that the mesh has, or None, in the PartitionSpec",
    ),
    _Refusal(
        r"_specs refers to (?s:.)*Check the \w+ values passed to shard_map",
        "in the specs, use only axes of the mesh, and of axis_names= if it is given",
    ),
    _Refusal(
        r"requires a non-empty mesh|context mesh cannot be|not under a mesh", _NO_MESH
    ),
    _Refusal(
        r"cannot contain axis names that are of type Auto",
        "use jax.lax.with_sharding_constraint, or a mesh with Explicit axes",
    ),
    _Refusal(
        r"is only valid for values of rank",
        "give a PartitionSpec no more entries than the array has dimensions",
    ),
    _Refusal(
        r"shardings specification must be a tree prefix",
        "give one sharding for all arguments, or a tuple with a sharding for each",
    ),
    _Refusal(
        r"evenly divide|should be divisible by",
        "pad sharded dimensions to multiples of the mesh axes' sizes",
    ),
    _Refusal(
        r"specs passed to shard_map|device assignment .* of the mesh",
        _AUTO,
        errors.UnsupportedError,
        "arrays on a mesh with Explicit axes are refused: ",
    ),
)


#: Matches the source line in JAX's text, and advice that is of no use without devices.
_ADVICE = re.compile(
    r"\s+(This error occurs at source|You can define|Use `jax\.set_mesh|Please |"
    r"Check the |`in_specs` is an optional)(?s:.)*"
)


def of_mesh(error: Exception) -> errors.NeuronJaxError | None:
    """Return a `NeuronJaxError` if JAX's exception is about a mesh, else None."""
    if unknown := _unknown_axis(error):
        return unknown
    text = str(error)
    for known in _REFUSALS:
        if re.search(known.pattern, text):
            what = re.sub(r"\s+", " ", _ADVICE.sub("", text))
            return known.kind(
                known.about + what, location=_line(error), remedy=known.remedy
            )
    return None


def _unknown_axis(error: Exception) -> errors.NeuronJaxError | None:
    """Return the error of an axis that no surrounding mesh has; None for other errors.
    JAX raises a NameError or, inside a shard_map, an AssertionError."""
    match = re.search(r"unbound axis name: (\w+)", str(error))
    axes = [match[1]] if match else _asserted_axes(error)
    if not axes:
        return None
    named = ", ".join(map(repr, axes))
    return errors.InvalidProgramError(
        f"no mesh around this collective has its axis {named}",
        location=_line(error),
        remedy="name an axis of the surrounding jax.shard_map's mesh, or the axis_name "
        "of the surrounding neuronjax.pmap or jax.vmap",
    )


def _asserted_axes(error: Exception) -> Sequence[Any]:
    """Return the `axis_name` of the `jax.lax` function in which `pvary` raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or frames[-1].f_code.co_name != "pvary":
        return ()
    given = (frame.f_locals.get("axis_name") for frame in frames)
    axes = next((axis for axis in given if axis is not None), ())
    return axes if isinstance(axes, tuple) else (axes,)


def _line(error: Exception) -> str | None:
    """Return the user's innermost line in a traceback, else the current call's."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{f.filename}:{f.lineno}" for f in frames if not is_library(f.filename)]
    return lines[-1] if lines else errors.program_line() or None
