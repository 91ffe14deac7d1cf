"""The instructions of a program as a table: result, instruction, label, source line.

The label is "exact", "modelled", "checked on silicon" or "host". Blocks of control flow
are indented, and callees come last. The table has only attributes that change numbers;
`ir.text` has all.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from neuronjax.ir.instruction import Block, Instruction, InstructionProgram, Label
from neuronjax.ir.program import TensorType
from neuronjax.ir.vector_sums import VECTOR_TILE
from neuronjax.report.places import place
from neuronjax.report.tables import WORD, new_table

_SHOWN = 40
_STYLES: dict[Label, str] = {
    "exact": "green",
    "checked on silicon": "cyan",
    "modelled": "yellow",
    "host": "red",
}
#: Attributes that say more exactly than the name what an instruction does.
_KINDS = ("op", "function", "kind", "direction", "callee", "format", "pattern")
#: Attributes that change numbers, with the usual value, which is not shown.
_USUAL: dict[str, Any] = {
    "passes": 1,
    "rows_per_cell": 1,
    "group_rows": None,
    "tile": VECTOR_TILE,
    "accumulation": "systolic",
    "transcendentals": "exact",
    "integer_path": "exact",
    "float_to_int": "truncate",
    "rounding": "rne",
    "overflow": "ieee",
    "write_format": None,
}
_SHORT = {"bfloat": "bf", "float": "f", "uint": "u", "int": "i", "complex": "c"}

Row = tuple[str | Text, ...]


def program_table(name: str, program: InstructionProgram, setting: str) -> Group:
    """Return a table of the first instructions, and counts by engine and label."""
    every = list(program.walk())
    lines: list[Iterable[Row]] = [_block(program.main, 0)]
    for function, callee in program.functions.items():
        lines += [[("", Text(f"{function}:", "bold"), "", "")], _block(callee, 1)]
    found = list(itertools.islice(itertools.chain(*lines), _SHOWN + 1))
    table = new_table(
        f"{name} on {setting}: {len(every)} instructions",
        {
            "writes": WORD | {"max_width": 24},
            "instruction": WORD | {"ratio": 1},
            "label": WORD,
            "line": WORD | {"max_width": 18},
        },
        found[:_SHOWN],
        expand=True,
    )
    more = [Text("the rest, with attributes: lowered.as_text('instructions')", "dim")]
    engines = Counter(i.engine for i in every)
    labels: Counter[Label] = Counter(i.label for i in every)
    line = Text(", ".join(f"{engine} {n}" for engine, n in engines.most_common()))
    for label, n in labels.most_common():
        line.append_text(Text.assemble("; ", (label, _STYLES[label]), f" {n}"))
    return Group(table, *(more if len(found) > _SHOWN else ()), line)


def _block(block: Block, depth: int) -> Iterator[Row]:
    for i in block.instructions:
        written = ""
        if i.results:
            first, *others = i.results
            more = f" +{len(others)}" if others else ""
            written = f"%{first.number} {short_type(first.type)}{more}"
        line = place(i.location.source) if i.location.source else ""
        what = "  " * depth + f"{i.engine}.{i.name} {_told(i)}".rstrip()
        yield written, what, Text(i.label, _STYLES[i.label]), line
        for nested in i.blocks:
            yield from _block(nested, depth + 1)


def _told(i: Instruction) -> str:
    """Return operation, unusual attributes and operands of an instruction as text."""
    writing = {n: getattr(i, n) for n in ("rounding", "overflow", "write_format")}
    values = {**i.attributes(), **writing}
    kinds = [str(values[k]) for k in _KINDS if isinstance(values.get(k), str)]
    read = " ".join(f"%{view.buffer.number}" for view in i.operands)
    value = values.get("value")
    if isinstance(value, np.ndarray) and value.size == 1:
        kinds.append(f"{value.item():.6g}")
    known = ((k, usual) for k, usual in _USUAL.items() if k in values)
    unusual = [f"{k}={values[k]}" for k, usual in known if values[k] != usual]
    return " ".join(filter(None, [*kinds, *unusual, read]))


def short_type(type: TensorType) -> str:
    """Return a type as JAX writes it: `bf16[8,64]`."""
    name = re.sub(f"^({'|'.join(_SHORT)})", lambda m: _SHORT[m[0]], type.dtype.name)
    return f"{name}[{','.join(map(str, type.shape))}]"
