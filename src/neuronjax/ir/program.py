"""A captured program: StableHLO ops as frozen dataclasses.

This is the first of the two vocabularies (the second is `ir.instruction`). Names,
operand order and attribute meanings are StableHLO's own (docs/spec.md of
openxla/stablehlo); MLIR objects do not appear. `capture` makes a `Program` and
`lowering` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from neuronjax.errors import NeuronJaxError
from neuronjax.ir.name_stack import read_name_stack

E = TypeVar("E", bound=NeuronJaxError)
_PACKAGE = f"{Path(__file__).parents[1]}/"


@dataclass(frozen=True, slots=True)
class TensorType:
    """A static shape and an element type (a numpy or ml_dtypes dtype)."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size_bytes(self) -> int:
        """The size of all elements in bytes; each takes one byte or more."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.dtype.name])


#: The module of an op without a name, a parameter or a function.
TOP = "(top)"
#: A position in a list, in a module's path, that differs from call to call.
ANY = "*"


def _inner_module(inner: str, outer: str) -> str:
    """Return the module of a callee's op, in which the call's module replaces `ANY`."""
    own, given = inner.split("/"), outer.split("/")
    alike = len(own) >= len(given) and all(
        a in (ANY, b) for a, b in zip(own, given, strict=False)
    )
    if ANY in own and alike:
        return "/".join([*given, *own[len(given) :]])
    return outer if outer.startswith(f"{inner}/") else inner or outer


def is_backward_scope(scope: str) -> bool:
    """Return whether ops of this name stack run in the backward pass. This includes a
    rematerialized forward pass."""
    return "transpose(" in scope


def is_forward_scope(scope: str) -> bool:
    """Return whether ops of this name stack are differentiated."""
    return "jvp(" in scope and not is_backward_scope(scope)


def is_cotangent_scope(scope: str) -> bool:
    """Return whether ops of this name stack compute gradients. The name "transpose"
    alone is not enough: a rematerialized forward pass is under the transpose scope of
    the backward pass that needs it."""
    return is_backward_scope(scope) and "rematted_computation" not in scope


@dataclass(frozen=True, slots=True)
class Location:
    """The place in the user's program from which an op comes.

    For an op of a callee it is the place in the callee; `inside` adds that of the call.
    """

    scope: str = ""  # the JAX name stack, "jit(step)/transpose(jvp(mlp))/dot_general"
    file: str = ""  # the user's source file, or "" if JAX recorded none
    line: int = 0  # its line, from 1; 0 if there is none
    #: The functions that led here, the outermost first: "GPT", "Block".
    functions: tuple[str, ...] = ()
    #: The part of the model that it belongs to; "" if parts were not added, see
    #: `ir.model_parts`.
    module: str = ""
    phase: str = ""  # "forward", "backward" or "optimizer"; "" if unknown
    #: Whether `file` and `line` are those of a call of the function that contains the
    #: op, because the op has none of its own. At another call `inside` replaces them by
    #: that call's.
    is_lent: bool = False
    #: The user's lines that called the function of this line, the innermost first,
    #: "train.py:40"; JAX keeps at most ten.
    callers: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """`file:line`, or "" if unknown."""
        return f"{self.file}:{self.line}" if self.file else ""

    def inside(self, call: Location) -> Location:
        """Return the location of a callee's op that was reached by this call."""
        known = self if self.file and not self.is_lent else call
        lines = (known.source, *known.callers, call.source, *call.callers)
        return Location(
            scope="/".join(filter(None, (call.scope, self.scope))),
            file=known.file,
            line=known.line,
            functions=(not self.is_lent and self.functions) or call.functions,
            module=_inner_module(self.module, call.module),
            phase=self.phase or call.phase,
            is_lent=known.is_lent,
            callers=tuple(dict.fromkeys(filter(None, lines)))[1:],
        )

    @property
    def part(self) -> str:
        """The module; else the classes, else the innermost function, else `TOP`."""
        classes = "/".join(read_name_stack(self.scope).classes)
        return self.module or classes or next(iter(self.functions[::-1]), TOP)

    @property
    def label(self) -> str:
        """The module and the pass, "mlp (backward)", by which reports group ops."""
        return f"{self.part} ({self.phase})" if self.phase else self.part


@dataclass(frozen=True, slots=True)
class Mesh:
    """Devices along named axes (`sdy.mesh`)."""

    axes: tuple[tuple[str, int], ...]  # (name, size), slowest first
    #: The device at every position, row-major; () for 0, 1, 2, ...
    device_ids: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return prod(size for _, size in self.axes)


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor is split over the axes of a mesh (`sdy.sharding`).

    An axis is written as its name, and a part of an axis as sdy prints it: "x:(1)2"."""

    mesh: str | Mesh  # its name in `Program.meshes`, or a mesh of its own
    #: For every dimension, the axes over which it is split, slowest first.
    dimensions: tuple[tuple[str, ...], ...]
    replicated: tuple[str, ...] = ()  # axes over which it is not split, and must not be
    unreduced: tuple[str, ...] = ()  # axes over which it still has to be reduced


@dataclass(frozen=True, slots=True)
class AxisGroups:
    """Groups of devices that differ only in their position along some axes."""

    mesh: str | Mesh  # its name in `Program.meshes`, or a mesh of its own
    #: Slowest first, which is the order of the ranks of a group; as in `Sharding`.
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An SSA value; identity is the object itself."""

    number: int
    type: TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A block of ops with its arguments and the operands of its terminator."""

    arguments: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Value, ...]


#: Ops that call a function, and the attribute that names it.
CALLEES = {"func.call": "callee", "stablehlo.composite": "decomposition"}
CHOICES = ("stablehlo.case", "stablehlo.if")
#: Ops whose regions are parts of the program; regions of all other ops are combiners.
CONTROL_FLOW = ("stablehlo.while", *CHOICES, "sdy.manual_computation")


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One StableHLO, CHLO or `func.call` op."""

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attributes: Mapping[str, Any]
    regions: tuple[Region, ...]
    location: Location

    @property
    def callee(self) -> str | None:
        """The function that the op calls, or None."""
        attribute = CALLEES.get(self.name)
        return None if attribute is None else self.attributes[attribute]

    def error(self, kind: type[E], what: str, remedy: str) -> E:
        """Return an error about this op with the user's line. For a call that `pmap` or
        `jit` made, this is the first user line inside."""
        places = (op.location for op in self.walk())
        lines = (p.source for p in places if not p.file.startswith(_PACKAGE))
        source = next(filter(None, lines), None)
        return kind(what, op=self.name, location=source, remedy=remedy)

    def walk(self) -> Iterator[Op]:
        """Yield this op and every op nested in its regions."""
        yield self
        for region in self.regions:
            for op in region.ops:
                yield from op.walk()


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of the module; private ones are reached by `func.call`."""

    name: str
    body: Region

    def walk(self) -> Iterator[Op]:
        """Yield every op of the body, nested ones included."""
        for op in self.body.ops:
            yield from op.walk()


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A captured module."""

    functions: Mapping[str, Function]  # the functions by name; `main` is the entry
    main: str
    #: The pytree path of each argument of main, "state/params/w".
    argument_names: tuple[str, ...]
    #: Returns the StableHLO text on demand (it costs more than decoding).
    text: Any = field(default=None, repr=False)
    #: The meshes of the module, by name.
    meshes: Mapping[str, Mesh] = field(default_factory=dict)
    #: The sharding of each argument of main, or None.
    argument_shardings: tuple[Sharding | None, ...] = ()
    #: The sharding of each result of main, or None.
    result_shardings: tuple[Sharding | None, ...] = ()
    #: The number of devices that run it; None if the module does not say.
    partitions: int | None = None
    #: Whether its locations have module and phase; see `ir.model_parts`.
    has_parts: bool = False

    @property
    def entry(self) -> Function:
        return self.functions[self.main]

    def walk(self) -> Iterator[Op]:
        """Yield every op of every function."""
        for function in self.functions.values():
            yield from function.walk()

    def holds_complex(self) -> bool:
        """Return whether any value is complex (fast: every program is asked)."""
        regions = [function.body for function in self.functions.values()]
        for region in regions:
            for value in region.arguments:
                if value.type.dtype.kind == "c":
                    return True
            for op in region.ops:
                for value in op.results:
                    if value.type.dtype.kind == "c":
                        return True
                if op.regions:
                    regions.extend(op.regions)
        return False

    def __str__(self) -> str:
        return self.text() if self.text else f"<program {self.main}>"
