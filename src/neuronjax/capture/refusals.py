"""Why JAX could not lower a function for platform "neuron", in the user's words.

Its message names the primitive; the user's line is looked up in the jaxpr. Linear
algebra that other platforms take from LAPACK or cuSOLVER has a rule (`host_calls`), and
so have callbacks (`callbacks`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from neuronjax.capture.decode import LIBRARY
from neuronjax.errors import NeuronJaxError, UnimplementedError, UnsupportedError

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
        error: JAX's NotImplementedError or ValueError.
    """
    if named := explicit_mesh(error):
        return named
    name = _primitive(str(error))
    wanted = name or _TRANSFERS
    located = equations(closed_jaxpr.jaxpr)
    hits = (hit for hit in located if re.search(wanted, str(hit[0].primitive)))
    equation, source = next(hits, (None, None))
    if equation is None:
        return UnimplementedError(
            f"JAX cannot lower this function for platform neuron: {error}",
            remedy="move what the message names out of the emulated function",
        )
    found = str(equation.primitive)
    return UnsupportedError(
        "JAX has no lowering of this primitive for platform neuron",
        op=found,
        location=source,
        remedy=_REMEDIES.get(found, "compute it outside the emulated function"),
    )


_EXPLICIT = re.compile("specs passed to shard_map|device assignment .* of the mesh")


def explicit_mesh(error: Exception) -> NeuronJaxError | None:
    """The named error where JAX wants devices for a mesh that has none.

    Axes of type Explicit make the sharding of an array part of its type, and arguments
    of a captured function have none.
    """
    if not _EXPLICIT.search(str(error)):
        return None
    return UnsupportedError(
        f"shard_map over a mesh with Explicit axes: {error}",
        remedy="use neuronjax.make_mesh, whose axes are Auto, or AbstractMesh with "
        "axis_types=(AxisType.Auto, ...)",
    )


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
    traceback = equation.source_info.traceback
    for frame in getattr(traceback, "frames", ()):
        if not any(part in frame.file_name for part in LIBRARY):
            return f"{frame.file_name}:{frame.line_num}"
    return None
