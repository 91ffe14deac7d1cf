"""A captured program: StableHLO ops as frozen dataclasses.

This is the first of the two vocabularies (the second is `ir.instruction`). Names,
operand order and attribute meanings are StableHLO's own (docs/spec.md of
openxla/stablehlo); MLIR objects do not appear. A `Program` is produced by `capture` and
read by `lowering`.
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
        """Of all elements, each of at least a byte."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.dtype.name])


#: The module of an op that no name, parameter or function tells.
TOP = "(top)"
#: In a module's path, a place in a list that differs from call to call.
ANY = "*"


def _inner_module(inner: str, outer: str) -> str:
    """The module of a callee's op; its `ANY` are what they are at this call, and so is
    what all calls have in common."""
    own, given = inner.split("/"), outer.split("/")
    alike = len(own) >= len(given) and all(
        a in (ANY, b) for a, b in zip(own, given, strict=False)
    )
    if ANY in own and alike:
        return "/".join([*given, *own[len(given) :]])
    return outer if outer.startswith(f"{inner}/") else inner or outer


def is_backward_scope(scope: str) -> bool:
    """Whether ops of this name stack run in the backward pass, a rematerialised forward
    pass included."""
    return "transpose(" in scope


def is_forward_scope(scope: str) -> bool:
    """Whether ops of this name stack are what is differentiated."""
    return "jvp(" in scope and not is_backward_scope(scope)


def is_cotangent_scope(scope: str) -> bool:
    """Whether ops of this name stack compute gradients.

    The name "transpose" alone is not enough: a rematerialised forward pass sits under
    the transpose scope of the backward pass that asked for it.
    """
    return is_backward_scope(scope) and "rematted_computation" not in scope


@dataclass(frozen=True, slots=True)
class Location:
    """Where an op comes from.

    Inside a callee it says what the callee alone knows; `inside` adds that of the call.

    Attributes:
        scope: the JAX name stack, "jit(step)/transpose(jvp(mlp))/dot_general".
        file: the user's source file, or "" where JAX recorded none.
        line: its line, from 1; 0 where there is none.
        functions: the functions that led here, the outermost first: "GPT", "Block".
        module: which part of the model it belongs to; "" where that was not asked for,
            see `ir.model_parts`.
        phase: "forward", "backward" or "optimizer"; "" where that cannot be told.
        is_lent: whether the line is that of a call of the function that the op is in,
            so that another call lends its own.
    """

    scope: str = ""
    file: str = ""
    line: int = 0
    functions: tuple[str, ...] = ()
    module: str = ""
    phase: str = ""
    is_lent: bool = False

    @property
    def source(self) -> str:
        """`file:line`, or "" when unknown."""
        return f"{self.file}:{self.line}" if self.file else ""

    def inside(self, call: Location) -> Location:
        """That of a callee's op, where this call has led to it."""
        known = self if self.file and not self.is_lent else call
        return Location(
            scope="/".join(filter(None, (call.scope, self.scope))),
            file=known.file,
            line=known.line,
            functions=(not self.is_lent and self.functions) or call.functions,
            module=_inner_module(self.module, call.module),
            phase=self.phase or call.phase,
            is_lent=known.is_lent,
        )

    @property
    def part(self) -> str:
        """The module as reports name it; without one the class, function or `TOP`."""
        classes = "/".join(read_name_stack(self.scope).classes)
        return self.module or classes or next(iter(self.functions[::-1]), TOP)

    @property
    def label(self) -> str:
        """The module and the pass, "mlp (backward)": a group of every report."""
        return f"{self.part} ({self.phase})" if self.phase else self.part


@dataclass(frozen=True, slots=True)
class Mesh:
    """Devices along named axes (`sdy.mesh`).

    Attributes:
        axes: (name, size), slowest first.
        device_ids: the device at every place, row-major; () for 0, 1, 2, ...
    """

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The number of devices."""
        return prod(size for _, size in self.axes)


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor is split over the axes of a mesh (`sdy.sharding`).

    An axis is given by its name; part of one as sdy prints it, "x:(1)2".

    Attributes:
        mesh: its name in `Program.meshes`, or a mesh of the sharding's own.
        dimensions: for every dimension the axes that it is split over, slowest first.
        replicated: axes over which it is not split, and must not be.
        unreduced: axes over which it is yet to be reduced.
    """

    mesh: str | Mesh
    dimensions: tuple[tuple[str, ...], ...]
    replicated: tuple[str, ...] = ()
    unreduced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AxisGroups:
    """Groups of devices that differ in their place along some axes alone.

    Attributes:
        mesh: its name in `Program.meshes`, or a mesh of its own.
        axes: slowest first, which is the order of the ranks of a group; as in
            `Sharding`.
    """

    mesh: str | Mesh
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
#: Ops whose regions are parts of the program; those of all others are combiners.
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
        """The function that it calls, if it calls one."""
        attribute = CALLEES.get(self.name)
        return None if attribute is None else self.attributes[attribute]

    def error(self, kind: type[E], what: str, remedy: str) -> E:
        """An error of some kind about this op, with the user's line: of a call that
        `pmap` or `jit` made, the first one inside."""
        places = (op.location for op in self.walk())
        lines = (p.source for p in places if not p.file.startswith(_PACKAGE))
        source = next(filter(None, lines), None)
        return kind(what, op=self.name, location=source, remedy=remedy)

    def walk(self) -> Iterator[Op]:
        """This op and every op nested in its regions."""
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
        """Every op of the body, nested ones included."""
        for op in self.body.ops:
            yield from op.walk()


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A captured module.

    Attributes:
        functions: by name; `main` is the entry.
        argument_names: the pytree path of each argument of main, "state/params/w".
        text: produces the StableHLO text on demand (it costs more than decoding).
        meshes: the meshes of the module, by name.
        argument_shardings: of each argument of main; None where it says nothing.
        result_shardings: of each result of main.
        partitions: how many devices run it; None where the module does not say.
        has_parts: whether its locations say module and phase; see `ir.model_parts`.
    """

    functions: Mapping[str, Function]
    main: str
    argument_names: tuple[str, ...]
    text: Any = field(default=None, repr=False)
    meshes: Mapping[str, Mesh] = field(default_factory=dict)
    argument_shardings: tuple[Sharding | None, ...] = ()
    result_shardings: tuple[Sharding | None, ...] = ()
    partitions: int | None = None
    has_parts: bool = False

    @property
    def entry(self) -> Function:
        return self.functions[self.main]

    def walk(self) -> Iterator[Op]:
        """Every op of every function."""
        for function in self.functions.values():
            yield from function.walk()

    def holds_complex(self) -> bool:
        """Tell whether any value is complex; every program is asked, so it is quick."""
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
