"""Reads and rewrites MLIR modules, and reads protobuf messages.

The processes that parse and partition programs import this file too, from the folder of
their scripts, so it imports jaxlib but not jax.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

from jaxlib.mlir import ir


def found(module: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    """Return the operations for which `wanted` is true, in program order."""
    ops = []

    def visit(op: Any) -> ir.WalkResult:
        if wanted(op):
            ops.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return ops


def is_main(op: Any) -> bool:
    """Return whether an operation is the function main."""
    is_function = op.operation.name == "func.func"
    return is_function and ir.StringAttr(op.attributes["sym_name"]).value == "main"


def shardings(function: Any, attribute: str) -> dict[int, Any]:
    """Return the shardings of arguments ("arg_attrs") or results ("res_attrs") that
    have one, by index."""
    name, given = "sdy.sharding", function.attributes
    listed = given[attribute] if attribute in given else ()
    return {n: each[name] for n, each in enumerate(listed) if name in each}


def replace(
    op: Any, name: str, attributes: dict[str, Any], results: list[Any] | None = None
) -> None:
    """Replace an op by one of another name; `results` are types of results that nothing
    reads, in place of those of the op."""
    new = ir.Operation.create(
        name,
        results=[r.type for r in op.results] if results is None else results,
        operands=list(op.operands),
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    for old, result in zip(op.results, new.results, strict=results is None):
        old.replace_all_uses_with(result)
    op.erase()


def bytecode(module: Any) -> bytes:
    """Return a module as MLIR bytecode."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def protobuf_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of a message's length-delimited fields, without
    those of nested messages. Stop where the bytes are not a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                _, at = _varint(data, at)
            case 1 | 5:
                at += 8 if tag & 7 == 1 else 4
            case 2:
                length, at = _varint(data, at)
                if at + length > len(data):
                    return
                yield tag >> 3, data[at : at + length]
                at += length
            case _:
                return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at] if at < len(data) else 0
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            break
    return value, at
