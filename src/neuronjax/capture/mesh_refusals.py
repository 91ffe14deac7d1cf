"""Meshes, axes and shardings that JAX refuses while it traces, in the user's words.

JAX says well what is wrong, and where meshes of devices are meant advises what a mesh
of none cannot do. So its sentence is kept, and line and remedy are ours.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuronjax.capture.decode import is_library
from neuronjax.errors import (
    InvalidProgramError,
    NeuronJaxError,
    UnsupportedError,
    program_line,
)


@dataclass(frozen=True)
class _Refusal:
    """What JAX says, as a pattern, and what to do; the kind of error, and what is said
    in front."""

    pattern: str
    remedy: str
    kind: type[NeuronJaxError] = InvalidProgramError
    about: str = ""


_NO_MESH = (
    "call it in the block of `with jax.set_mesh(mesh):`, the mesh of jax.make_mesh, or "
    "in that of `with jax.sharding.use_abstract_mesh(mesh):`, of neuronjax.make_mesh"
)
_AUTO = (
    "use neuronjax.make_mesh, whose axes are Auto, or a mesh with "
    "axis_types=(AxisType.Auto, ...); arrays that lie on an Explicit mesh are "
    "arguments, and not closed over"
)
_REFUSALS = (
    _Refusal(
        r"^Resource axis: .* is not found in mesh",
        "name axes that the mesh has, or None, in the PartitionSpec",
    ),
    _Refusal(
        r"_specs refers to (?s:.)*Check the \w+ values passed to shard_map",
        "name axes of the mesh in in_specs and out_specs, with axis_names= of these",
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
        "give one sharding for all, or a tuple of one for each argument",
    ),
    _Refusal(
        r"evenly divide|should be divisible by",
        "shard dimensions that the axes of the mesh divide, or pad them",
    ),
    _Refusal(
        r"specs passed to shard_map|device assignment .* of the mesh",
        _AUTO,
        UnsupportedError,
        "arrays over a mesh with Explicit axes: ",
    ),
)


#: What JAX says of the place, or advises that a mesh without devices cannot do.
_ADVICE = re.compile(
    r"\s+(This error occurs at source|You can define|Use `jax\.set_mesh|Please |"
    r"Check the |`in_specs` is an optional)(?s:.)*"
)


def of_mesh(error: Exception) -> NeuronJaxError | None:
    """Return the named error where what JAX raises is about a mesh; else None."""
    return _unknown_axis(error) or _described(error)


def _described(error: Exception) -> NeuronJaxError | None:
    text = str(error)
    for known in _REFUSALS:
        if re.search(known.pattern, text):
            what = re.sub(r"\s+", " ", _ADVICE.sub("", text))
            return known.kind(
                known.about + what,
                location=_line(error),
                remedy=known.remedy,
            )
    return None


def _unknown_axis(error: Exception) -> NeuronJaxError | None:
    """The named error of a collective over an axis that no mesh around it has: JAX's
    NameError or, inside a shard_map, an AssertionError."""
    match = re.search(r"unbound axis name: (\w+)", str(error))
    axes = [match[1]] if match else _asserted_axes(error)
    if not axes:
        return None
    named = ", ".join(map(repr, axes))
    return InvalidProgramError(
        f"a collective over the axis {named}, which no mesh around it has",
        location=_line(error),
        remedy="name an axis of the mesh of the jax.shard_map around it, the axis_name "
        "of the neuronjax.pmap, or that of the jax.vmap",
    )


def _asserted_axes(error: Exception) -> Sequence[Any]:
    """The `axis_name`s given to a function of `jax.lax` whose checks ended in pvary's
    bare assertion about axes."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or frames[-1].f_code.co_name != "pvary":
        return ()
    given = (frame.f_locals.get("axis_name") for frame in frames)
    axes = next((axis for axis in given if axis is not None), ())
    return axes if isinstance(axes, tuple) else (axes,)


def _line(error: Exception) -> str | None:
    """The innermost line of the function being traced, or that of the call."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{f.filename}:{f.lineno}" for f in frames if not is_library(f.filename)]
    return lines[-1] if lines else program_line() or None
