"""Decodes an MLIR module into an `ir.program.Program` for the later stages.

This module and `capture.attributes` read MLIR objects through the public
`jax.extend.mlir`. Every op keeps its name stack and the line of the user's source from
which it comes.
"""

from __future__ import annotations

import itertools
import re
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jax.extend.mlir import ir

from neuronjax.capture.attributes import (
    complex_elements,
    decode_attribute,
    element_dtype,
    meshes,
    shardings_of,
)
from neuronjax.errors import InvalidProgramError, NeuronJaxError, UnsupportedError
from neuronjax.ir.collection import no_collection
from neuronjax.ir.program import (
    Function,
    Location,
    Op,
    Program,
    Region,
    TensorType,
    Value,
)

# Stack frames in these paths are not the user's; JAX has already left out its own.
_PYTHON = (sysconfig.get_path("stdlib"), "<frozen ")
_EMULATOR = str(Path(__file__).parent.parent) + "/"
LIBRARY = ("site-packages", "dist-packages", "/neuronjax/", *_PYTHON)
_CALL = ".__call__"
_FUNCTION_ONLY = {"arg_attrs", "res_attrs", "function_type", "sym_name"}


@no_collection()
def decode_module(
    module: Any, argument_names: Sequence[str] = (), file: str = "-"
) -> Program:
    """Decode a module whose entry is `main`, or its only public function.

    Args:
        module: an `ir.Module` of StableHLO, CHLO and func ops.
        argument_names: pytree paths of main's arguments; taken from the argument
            locations if empty.
        file: the file name for locations in the module's own text.

    Raises:
        UnsupportedError: a dynamic shape, or a dtype outside the emulator's.
        InvalidProgramError: no function, or several of which none is main.
    """
    by_name = {
        op.attributes["sym_name"].value: op
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    for name, op in by_name.items():
        if op.is_external:
            raise InvalidProgramError(
                f"function {name} has no body", remedy="save the whole program"
            )
    main = _entry(by_name)
    names = tuple(argument_names) or _argument_names(by_name[main])
    locations: dict[Any, Location] = {}  # each is decoded only once
    functions = {
        name: Function(name, _Decoder(file, locations).region(op.regions[0]))
        for name, op in by_name.items()
    }
    functions = _with_lent_lines(functions)
    body = functions[main].body
    given, count = module.operation.attributes, "mhlo.num_partitions"
    return Program(
        functions,
        main,
        names,
        text=lambda: str(module),
        meshes=meshes(module.body.operations),
        argument_shardings=shardings_of(
            by_name[main], "arg_attrs", len(body.arguments)
        ),
        result_shardings=shardings_of(by_name[main], "res_attrs", len(body.results)),
        partitions=ir.IntegerAttr(given[count]).value if count in given else None,
    )


def _with_lent_lines(functions: Mapping[str, Function]) -> dict[str, Function]:
    """Return the functions with `is_lent` set on ops that have the line of a call. If
    an op of a library's function has no line of the user, JAX gives it the line of the
    first call, although all calls share the function."""
    calls: dict[str | None, set[str]] = {}
    for op in itertools.chain(*(f.walk() for f in functions.values())):
        calls.setdefault(op.callee, set()).add(op.location.source)
    return {
        name: Function(name, _lent(f.body, calls.get(name, set()) - {""}))
        for name, f in functions.items()
    }


def _lent(region: Region, lines: Collection[str]) -> Region:
    if not lines:
        return region
    ops = [
        replace(
            op,
            location=replace(op.location, is_lent=op.location.source in lines),
            regions=tuple(_lent(inner, lines) for inner in op.regions),
        )
        for op in region.ops
    ]
    return replace(region, ops=tuple(ops))


def _entry(functions: Mapping[str, Any]) -> str:
    if "main" in functions:
        return "main"
    public = [
        name
        for name, op in functions.items()
        if "sym_visibility" not in op.attributes
        or op.attributes["sym_visibility"].value == "public"
    ]
    if len(public) != 1:
        raise InvalidProgramError(
            f"the module has no function main, and {len(public)} functions are public"
            + (f": {', '.join(public[:8])}" if public else ""),
            remedy="name the entry function main, or make all others private",
        )
    return public[0]


# Parts of a pytree path in a location: params['w'], batch[0], state.mu.
_PATH_PART = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|(\d+))\]|\.([A-Za-z_]\w*)")


def _argument_names(function: Any) -> tuple[str, ...]:
    """Return the pytree path of each argument, "params/w", or "arg0" if it has none."""
    names = (
        a.location.name_str
        if isinstance(a.location, ir.NameLoc)
        else f"arg{a.arg_number}"
        for a in function.arguments
    )
    return tuple(
        _PATH_PART.sub(lambda m: "/" + next(filter(None, m.groups()), ""), name)
        for name in names
    )


class _Decoder:
    def __init__(self, file: str, locations: dict[Any, Location]) -> None:
        self._file, self._locations = file, locations
        self._values: dict[Any, Value] = {}
        # Not functools.cache: an MLIR object keeps its context and constants alive.
        self._types: dict[Any, TensorType] = {}
        self._attributes: dict[tuple[str, str, Any], Any] = {}

    def _value(self, value: Any) -> Value:
        mlir_type = value.type
        known = self._types.get(mlir_type)
        if known is None:
            known = self._types[mlir_type] = tensor_type(mlir_type)
        new = self._values[value] = Value(len(self._values), known)
        return new

    def region(self, region: Any) -> Region:
        blocks = list(region.blocks)
        if len(blocks) != 1:
            raise UnsupportedError(
                f"a region has {len(blocks)} blocks; only one is supported",
                remedy="write control flow as stablehlo.while, case or if",
            )
        block = blocks[0]
        arguments = tuple([self._value(a) for a in block.arguments])
        operations = list(block.operations)
        ops = tuple([self._op(op) for op in operations[:-1]])
        results = tuple([self._values[v] for v in operations[-1].operands])
        return Region(arguments, ops, results)

    def _op(self, op: Any) -> Op:
        operation = op.operation
        name = operation.name
        location = self._location(op.location)
        try:
            operands = tuple([self._values[v] for v in operation.operands])
            regions = tuple([self.region(r) for r in operation.regions])
            attributes = self._attributes_of(operation, name)
            results = tuple([self._value(r) for r in operation.results])
        except NeuronJaxError as error:
            if error.location is not None:  # the error of an inner op
                raise
            raise error.changed(op=name, location=location.source) from error
        return Op(name, operands, results, attributes, regions, location)

    def _location(self, location: Any) -> Location:
        """Return a decoded location; the file "-" is replaced by the module's own."""
        key = location.attr
        if key not in self._locations:
            found = decode_location(location)
            own = replace(found, file=self._file) if found.file == "-" else found
            self._locations[key] = own
        return self._locations[key]

    def _attributes_of(self, operation: Any, op: str) -> dict[str, Any]:
        """Return an op's attributes by name; equal attributes are decoded once."""
        attributes, decoded = operation.attributes, {}
        for key in attributes:
            if key in _FUNCTION_ONLY:
                continue
            try:
                attribute = attributes[key]
            except TypeError:  # MLIR's Python has no class for complex elements
                decoded[key] = complex_elements(operation.get_asm())
                continue
            known = (op, key, attribute)
            if known not in self._attributes:
                self._attributes[known] = decode_attribute(op, attribute, key)
            decoded[key] = self._attributes[known]
        return decoded


def tensor_type(mlir_type: Any) -> TensorType:
    """Return the static tensor type of an MLIR type. Refuse dynamic dimensions, tokens,
    tuples and quantized types."""
    if not isinstance(mlir_type, ir.RankedTensorType):
        raise UnsupportedError(
            f"values of type {mlir_type} are not emulated",
            remedy="keep tokens, tuples and quantized types out of the program "
            "(ordered effects and host callbacks make tokens)",
        )
    if not mlir_type.has_static_shape:
        raise UnsupportedError(
            f"type {mlir_type} has a dynamic dimension",
            remedy="give every dimension a size when you save the program, because "
            "Trainium programs have static shapes",
        )
    element = element_dtype(str(mlir_type.element_type))
    return TensorType(tuple(mlir_type.shape), element)


def decode_location(location: Any) -> Location:
    """Return an op's name stack, user's line, and functions. The line is that of the
    innermost frame outside of libraries, or if all frames are in libraries, of the
    innermost frame outside of neuronjax."""
    scope = ""
    while not scope and isinstance(location, ir.NameLoc):
        scope, location = location.name_str, location.child_loc
    if isinstance(location, ir.FusedLoc):
        return decode_location(location.locations[0])
    innermost: _Frame | None = None
    own: _Frame | None = None
    inside: list[_Frame] = []
    lines: dict[str, None] = {}
    is_inside = True
    for frame in _frames(location):
        is_ours = frame.file.startswith(_EMULATOR)
        innermost = innermost or (None if is_ours else frame)
        if own is None and not is_library(frame.file):
            own = frame
        # The callers of the emulator do not belong to the program.
        is_inside = is_inside and not is_ours
        if is_inside:
            inside.append(frame)
            if not is_library(frame.file):
                lines[f"{frame.file}:{frame.line}"] = None
        elif own is not None:
            break
    found = own or innermost or _Frame("", "", 0)
    functions = tuple(filter(None, map(_named, reversed(inside))))
    return Location(scope, found.file, found.line, functions, callers=tuple(lines)[1:])


@cache
def is_library(file: str) -> bool:
    return any(part in file for part in LIBRARY)


class _Frame(NamedTuple):
    """A frame of an op's stack; `function` is the qualified name."""

    function: str
    file: str
    line: int


def _frames(location: Any) -> Iterator[_Frame]:
    """Yield the frames of a location, the innermost first. The callee of a call site
    may be a call site itself, as in loops since JAX 0.12."""
    pending = [location]
    while pending:
        found, function = pending.pop(), ""
        while isinstance(found, ir.NameLoc):
            function, found = found.name_str, found.child_loc
        if isinstance(found, ir.CallSiteLoc):
            pending += (found.caller, found.callee)
        elif isinstance(found, ir.FileLineColLoc):
            yield _Frame(function, found.filename, found.start_line)


@cache
def _named(frame: _Frame) -> str:
    """Return the name of a frame's function for reports: "loss_fn", "Model.encode", or
    "Attention" for `Attention.__call__`. Return "" for functions without a name, and
    for library functions other than a layer's `__call__`."""
    name = frame.function.rpartition("<locals>.")[2]
    is_layer = name.endswith(_CALL) and not name.startswith("_")
    if name.startswith("<") or (is_library(frame.file) and not is_layer):
        return ""
    return name.removesuffix(_CALL)
