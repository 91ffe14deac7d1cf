"""Instructions as text: engine, name, types, attributes, label and source line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from neuronjax.ir.instruction import Block, Buffer, Instruction, InstructionProgram

#: A function that formats a `file:line`.
Place = Callable[[str], str]


def instruction_text(program: InstructionProgram, place: Place = str) -> str:
    """Return one line per instruction; blocks of control flow are indented."""
    lines = ["main:", *_block(program.main, "  ", place)]
    for name, block in program.functions.items():
        lines += [f"{name}:", *_block(block, "  ", place)]
    return "\n".join(lines) + "\n"


def _block(block: Block, indent: str, place: Place) -> Iterator[str]:
    if block.arguments:
        yield f"{indent}arguments {', '.join(map(_buffer, block.arguments))}"
    for instruction in block.instructions:
        yield indent + _line(instruction, place)
        for nested in instruction.blocks:
            yield indent + "  {"
            yield from _block(nested, indent + "    ", place)
            yield indent + "  }"
    results = ", ".join(f"%{view.buffer.number}" for view in block.results)
    yield f"{indent}return {results}"


def _line(i: Instruction, place: Place) -> str:
    results = ", ".join(map(_buffer, i.results))
    operands = ", ".join(f"%{view.buffer.number}" for view in i.operands)
    head = f"{results} = {i.engine}.{i.name}({operands})"
    told = {k: v for k, v in i.attributes().items() if not is_block(v)}
    if "int" not in results:
        told.pop("float_to_int", None)
    attributes = " ".join(f"{k}={_short(v)}" for k, v in told.items())
    written = _rounding(i)
    where = f" {place(i.location.source)}" if i.location.source else ""
    return " ".join(filter(None, [head, attributes, written])) + f"  # {i.label}{where}"


def _rounding(i: Instruction) -> str:
    written = (("write", i.write_format, None), ("rounding", i.rounding, "rne"))
    fields = (*written, ("overflow", i.overflow, "ieee"))
    return " ".join(f"{name}={x}" for name, x, usual in fields if x != usual)


def _buffer(buffer: Buffer) -> str:
    return f"%{buffer.number}:{buffer.type}"


def is_block(value: Any) -> bool:
    """Return whether an attribute is a block, or several blocks."""
    return isinstance(value, Block) or (
        isinstance(value, tuple) and bool(value) and isinstance(value[0], Block)
    )


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return str(value.item()) if value.size == 1 else f"<{value.size} values>"
    return str(value).replace(" ", "")
