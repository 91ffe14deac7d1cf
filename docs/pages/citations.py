"""The keys of sources that stand in the comments beside the numbers of a module.

`hardware/chips.py` cites in comments ("# 128 x 224 KiB [A3]"), one beside every number,
which a test of the package sees to. Here they are read for the tables.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from types import ModuleType

_KEYS = re.compile(r"\[([A-Z][A-Z0-9/, ]*)\]")

Citations = Mapping[str, str]


def citations(module: ModuleType) -> dict[int, Citations]:
    """By the id of every object that the module assigns: field -> "[A3, H2]".

    What `dataclasses.replace` keeps has the citations of the original.
    """
    source = inspect.getsource(module)
    lines = source.splitlines()
    found: dict[str, Citations] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            (target,) = node.targets
            base = found.get(_base(node.value), {})
            own = dict(_own(node.value, lines))
            found[ast.unparse(target)] = {**base, **own}
    return {id(getattr(module, name)): cited for name, cited in found.items()}


def _base(call: ast.Call) -> str:
    """What `dataclasses.replace` starts from; nothing for another call."""
    return ast.unparse(call.args[0]) if call.args else ""


def _own(call: ast.Call, lines: list[str]) -> Iterator[tuple[str, str]]:
    for keyword in call.keywords:
        last = keyword.value.end_lineno or keyword.lineno
        comments = (line.partition("#")[2] for line in lines[keyword.lineno - 1 : last])
        texts = list(comments)
        keys = [key for text in texts for key in _KEYS.findall(text)]
        guess = ["assumption"] if "ASSUMPTION" in " ".join(texts) else []
        parts = dict.fromkeys(part.strip() for key in keys for part in key.split(","))
        if keyword.arg and (parts or guess):
            yield keyword.arg, f"[{', '.join([*parts, *guess])}]"
