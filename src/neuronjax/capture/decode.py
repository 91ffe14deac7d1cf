"""An MLIR module decoded once into an `ir.program.Program`.

Together with `capture.attributes` the only code that touches MLIR objects. It goes
through the public `jax.extend.mlir`. Every op keeps its name stack and the line of the
user's program it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from jax.extend.mlir import ir

from neuronjax.capture.attributes import decode_attribute, element_dtype
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.ir.collection import paused_collection
from neuronjax.ir.program import (
    Function,
    Location,
    Op,
    Program,
    Region,
    TensorType,
    Value,
)

# Frames of installed libraries are not the user's line; JAX has left out its own.
LIBRARY = ("site-packages", "dist-packages", "/neuronjax/")
_FUNCTION_ONLY = {"arg_attrs", "res_attrs", "function_type", "sym_name"}


@paused_collection()
def decode_module(module: Any, argument_names: Sequence[str] = ()) -> Program:
    """Decodes a module whose entry is the public function `main`.

    Args:
        module: an `ir.Module` of StableHLO, CHLO and func ops.
        argument_names: pytree paths of main's arguments; taken from the argument
            locations where empty.

    Raises:
        UnsupportedError: a dynamic shape, or a dtype outside the emulator's.
    """
    functions = {}
    locations: tuple[str, ...] = ()
    main = ""
    for op in module.body.operations:
        if op.operation.name != "func.func":
            continue
        name = op.attributes["sym_name"].value
        functions[name] = _Decoder().function(name, op)
        if name == "main" or not main:
            main = name
            locations = tuple(_argument_name(a) for a in op.arguments)
    if not functions:
        raise InvalidProgramError("the module holds no function")
    names = tuple(argument_names) or locations
    return Program(functions, main, names, text=lambda: str(module))


def _argument_name(argument: Any) -> str:
    location = argument.location
    return location.name_str if isinstance(location, ir.NameLoc) else ""


class _Decoder:
    """Holds the value table of one function."""

    def __init__(self) -> None:
        self._values: dict[Any, Value] = {}

    def function(self, name: str, op: Any) -> Function:
        return Function(name, self._region(op.regions[0]))

    def _value(self, value: Any) -> Value:
        new = Value(len(self._values), tensor_type(value.type))
        self._values[value] = new
        return new

    def _region(self, region: Any) -> Region:
        (block,) = region.blocks
        arguments = tuple([self._value(a) for a in block.arguments])
        operations = list(block.operations)
        ops = tuple([self._op(op) for op in operations[:-1]])
        results = tuple([self._values[v] for v in operations[-1].operands])
        return Region(arguments, ops, results)

    def _op(self, op: Any) -> Op:
        operation = op.operation
        name = operation.name
        location = decode_location(op.location)
        try:
            operands = tuple([self._values[v] for v in operation.operands])
            regions = tuple([self._region(r) for r in operation.regions])
            attributes = {
                key: decode_attribute(name, operation.attributes[key], key)
                for key in operation.attributes
                if key not in _FUNCTION_ONLY
            }
            results = tuple([self._value(r) for r in operation.results])
        except (UnsupportedError, NotImplementedError) as error:
            raise _placed(error, name, location) from error
        return Op(name, operands, results, attributes, regions, location)


def _placed(error: Exception, op: str, location: Location) -> Exception:
    if isinstance(error, UnsupportedError) and error.location is None:
        return UnsupportedError(
            error.what, op=op, location=location.source, remedy=error.remedy
        )
    return error


@lru_cache(maxsize=4096)
def tensor_type(mlir_type: Any) -> TensorType:
    """The static tensor type of an MLIR type.

    Raises:
        UnsupportedError: a dynamic dimension, a token, tuple or quantized type.
    """
    if not isinstance(mlir_type, ir.RankedTensorType):
        raise UnsupportedError(
            f"values of type {mlir_type} are not emulated",
            remedy="keep tokens, tuples and quantized types out of the program "
            "(ordered effects and host callbacks make tokens)",
        )
    if not mlir_type.has_static_shape:
        raise UnsupportedError(
            f"type {mlir_type} has a dynamic dimension",
            remedy="Trainium programs have static shapes: give every dimension a "
            "size, for jax.export by symbolic shapes refined before loading",
        )
    return TensorType(tuple(mlir_type.shape), _element(str(mlir_type.element_type)))


@cache
def _element(name: str) -> Any:
    return element_dtype(name)


def decode_location(location: Any) -> Location:
    """The name stack and the innermost frame that is the user's own."""
    scope = ""
    while isinstance(location, ir.NameLoc):
        scope = scope or location.name_str
        location = location.child_loc
    if isinstance(location, ir.FusedLoc):
        return decode_location(location.locations[0])
    file, line = _user_frame(location)
    return Location(scope, file, line)


@cache
def _is_library(file: str) -> bool:
    return any(part in file for part in LIBRARY)


def _user_frame(location: Any) -> tuple[str, int]:
    innermost = ("", 0)
    while True:
        caller = None
        if isinstance(location, ir.CallSiteLoc):
            location, caller = location.callee, location.caller
        while isinstance(location, ir.NameLoc):
            location = location.child_loc
        if isinstance(location, ir.FileLineColLoc):
            frame = (location.filename, location.start_line)
            if not _is_library(frame[0]):
                return frame
            innermost = innermost if innermost[0] else frame
        if caller is None:
            return innermost
        location = caller
