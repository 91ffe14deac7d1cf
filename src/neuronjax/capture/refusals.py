"""Why JAX could not lower a function for platform "neuron", in the user's words.

Its message names the primitive; the user's line is looked up in the jaxpr. Linear
algebra that other platforms take from LAPACK or cuSOLVER has a rule (`host_calls`), and
so have callbacks (`callbacks`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any

from neuronjax.capture.decode import is_library
from neuronjax.capture.mesh_refusals import of_mesh
from neuronjax.errors import (
    InvalidProgramError,
    NeuronJaxError,
    UnimplementedError,
    UnsupportedError,
)
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
    "pallas_call": "pl.pallas_call(..., interpret=True) makes JAX's own operations of "
    "the kernel, which are emulated; or write the kernel with neuronjax.nki",
}


def refusal(closed_jaxpr: Any, error: Exception) -> NeuronJaxError:
    """The named error for what `lower` raised.

    Args:
        closed_jaxpr: the traced function.
        error: JAX's NotImplementedError, ValueError or IndexError.
    """
    if named := of_mesh(error) or _wrong_devices(closed_jaxpr.jaxpr):
        return named
    if named := _algorithm(closed_jaxpr.jaxpr, str(error)):
        return named
    name = _primitive(str(error))
    wanted = name or _TRANSFERS
    located = equations(closed_jaxpr.jaxpr)
    hits = (hit for hit in located if re.search(wanted, str(hit[0].primitive)))
    equation, source = next(hits, (None, None))
    if equation is None:
        remedy = "move what the message names out of the emulated function"
        if "was exported for platforms" in str(error):
            remedy = "call nj.load(exported.serialize()) in place of exported.call"
        return UnimplementedError(
            f"JAX cannot lower this function for platform neuron: {error}",
            remedy=remedy,
        )
    found = str(equation.primitive)
    return UnsupportedError(
        "JAX has no lowering of this primitive for platform neuron",
        op=found,
        location=source,
        remedy=_REMEDIES.get(found, "compute it outside the emulated function"),
    )


def _algorithm(jaxpr: Any, message: str) -> NeuronJaxError | None:
    """The named error of a dot whose algorithm JAX finds no use for."""
    match = re.search(r"dot algorithm '(\w+)'", message)
    if match is None:
        return None
    for equation, source in equations(jaxpr):
        if getattr(equation.params.get("precision"), "name", None) == match[1]:
            return InvalidProgramError(
                message,
                op=str(equation.primitive),
                location=source,
                remedy="cast the operands to what it names, or use another algorithm",
            )
    return None


def _wrong_devices(jaxpr: Any) -> NeuronJaxError | None:
    """The named error of the first collective whose ranks or groups cannot be."""
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
            return InvalidProgramError(fault, op=op, location=source, remedy=remedy)
    return None


def _primitive(message: str) -> str:
    match = re.search(r"primitive '([^']+)'", message)
    return f"^{re.escape(match[1])}$" if match else ""


def equations(jaxpr: Any, outer: str | None = None) -> Iterator[tuple[Any, str | None]]:
    """Every equation of a jaxpr and of those inside it, with the user's line.

    Equations inside a jitted library function may have none of their own: they get that
    of the call.
    """
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
    """`file:line` of the innermost frame that is not a library's."""
    trace = equation.source_info.traceback
    for frame in getattr(trace, "frames", ()):
        if not is_library(frame.file_name):
            return f"{frame.file_name}:{frame.line_num}"
    return None
