"""The numbers on the source line of an op, before JAX rounds them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from neuronjax.errors import code_at

_NUMBER = re.compile(r"(?<![\w.])\d[\d_]*\.?\d*(?:e[+-]?\d+)?(?![\w.])")
_OPERATORS: dict[type[ast.operator], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FACTORS = ast.Mult | ast.Div | ast.Pow


class Written(NamedTuple):
    """The magnitude of a number on a source line, and whether it may be a factor."""

    value: float
    is_factor: bool


def numbers_of(source: str) -> Iterator[Written]:
    """Yield the numbers on the line `source` (`file:line`), and the values of
    expressions that contain only numbers, such as `2 / 3`."""
    code = code_at(source)
    try:
        tree = ast.parse(code.removesuffix(":"))
    except SyntaxError:  # the line is a part of a statement
        for token in _NUMBER.findall(code):
            yield Written(float(token), True)
        return
    factors = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, _FACTORS)
        for part in (node.left, node.right)
    }
    for node in ast.walk(tree):
        value = _value(node)
        if value is not None:
            yield Written(abs(value), node in factors)


def _value(node: ast.AST) -> float | None:
    if isinstance(node, ast.Constant):
        return float(node.value) if isinstance(node.value, int | float) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand)
        return None if value is None else -value
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        return None
    left, right = _value(node.left), _value(node.right)
    if left is None or right is None:
        return None
    try:
        value = _OPERATORS[type(node.op)](left, right)
    except ArithmeticError:
        return None
    return value if isinstance(value, float) else None  # a root may be complex
