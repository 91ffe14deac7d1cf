"""Nobody reads the private attributes of another file's class.

`value._name` is allowed only in a file that itself defines `_name`: as a method, an
attribute that it assigns, a field, or a name of the module. Nothing is executed; the
files are parsed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "neuronjax"
FILES = sorted(PACKAGE.rglob("*.py"))
OWN = ("self", "cls")

# Names with an underscore that belong to others, and why they are used.
OF_OTHERS = {
    "_replace": "a public method of named tuples",
    "_asdict": "a public method of named tuples",
    "_exit": "os._exit, which ends a forked child without its parent's clean-up",
    "_getframe": "sys._getframe, the only way to a caller's line that costs nothing",
    "_cache_size": "of what jax.jit returns: whether it ran, which nothing else says",
    "_impl": "the implementation of a key's dtype, which JAX shows nowhere else",
    "_lowerings": "MLIR's table of lowerings, which has no reader",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(tree: ast.AST) -> set[str]:
    """The names that a file gives to functions, classes, attributes and variables."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def foreign(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of every private attribute that is not the file's own."""
    tree = ast.parse(source)
    own = defined(tree) | set(OF_OTHERS)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            # What a class inherits it may use.
            inherited = isinstance(node.value, ast.Name) and node.value.id in OWN
            if node.attr not in own and not inherited:
                yield node.lineno, node.attr


def test_private_attributes_are_read_where_they_are_defined():
    found = {path: list(foreign(path.read_text())) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_tables_hold_nothing_that_is_gone():
    text = "".join(path.read_text() for path in FILES)
    assert [name for name in OF_OTHERS if f".{name}" not in text] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x._y", [(1, "_y")]),
        ("_y = 1\nx._y", []),
        ("class A:\n    def _y(self): ...\nx._y", []),
        ("self._y", []),
        ("x.__class__", []),
        ("t._replace(a=1)", []),
    ],
)
def test_the_rule(source, found):
    assert list(foreign(source)) == found
