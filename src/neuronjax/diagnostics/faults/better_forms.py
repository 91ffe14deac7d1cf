"""Formulas that lose digits or range, and equivalent functions that do not."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping

from neuronjax.diagnostics.op_records import CONSTANT
from neuronjax.ir.program import Op, Value
from neuronjax.ir.value_sources import ValueSources

#: Formula of a program -> what to write instead. A name in a formula matches any value,
#: but the same value wherever the name occurs. The first formula that matches counts.
FORMS: Mapping[str, str] = {
    "log(1 - 1 / (1 + exp(y)))": "jax.nn.log_sigmoid(-x) for log(1 - sigmoid(x))",
    "log(1 - logistic(x))": "jax.nn.log_sigmoid(-x) for log(1 - sigmoid(x))",
    "log(1 / (1 + exp(y)))": "jax.nn.log_sigmoid(x) for log(sigmoid(x))",
    "log(logistic(x))": "jax.nn.log_sigmoid(x) for log(sigmoid(x))",
    "log(exp(x) / sum(exp(x)))": "jax.nn.log_softmax(x) for log(softmax(x))",
    "log(exp(x) / sum(exp(x)) + c)": "jax.nn.log_softmax(x) for log(softmax(x) + c)",
    "log(1 - t * t)": "jnp.log1p(t) + jnp.log1p(-t) for log(1 - t * t), or, for "
    "t = tanh(x), 2 * (log(2) - x - jax.nn.softplus(-2 * x))",
    "log(1 + exp(x))": "jax.nn.softplus(x) for log(1 + exp(x))",
    "log(exp(x) + exp(y))": "jnp.logaddexp(x, y) for log(exp(x) + exp(y))",
    "log(sum(exp(x)))": "jax.nn.logsumexp(x) for log(sum(exp(x)))",
    "log(1 + x)": "jnp.log1p(x) for log(1 + x)",
    "exp(x) / sum(exp(x))": "jax.nn.softmax(x) for exp(x) / sum(exp(x))",
    "sum(x * x) / n - y * y": "jnp.var(x), which subtracts the mean before it squares",
    "exp(x) - 1": "jnp.expm1(x) for exp(x) - 1",
    "1 - exp(x)": "-jnp.expm1(x) for 1 - exp(x)",
    "1 - cos(x)": "2 * jnp.sin(x / 2) ** 2 for 1 - cos(x)",
    "sqrt(x * x + y * y)": "jnp.hypot(x, y) for sqrt(x * x + y * y)",
    "sqrt(sum(x * x))": "max(abs(x)) times the norm of x / max(abs(x))",
    "x * x - y * y": "(x - y) * (x + y) for x * x - y * y",
    "1 - x * x": "(1 - x) * (1 + x) for 1 - x * x",
    "sqrt(x) - sqrt(y)": "(x - y) / (sqrt(x) + sqrt(y)) for sqrt(x) - sqrt(y)",
}
_PARSED = {formula: ast.parse(formula, mode="eval").body for formula in FORMS}
#: Formula -> the only kinds of faults for which another form is advised. These formulas
#: are exact, but may overflow or underflow unless the maximum is subtracted first.
RANGES: Mapping[str, tuple[str, ...]] = {
    "exp(x) / sum(exp(x))": ("overflow", "non-finite"),
    "log(sum(exp(x)))": ("overflow", "underflow", "singular", "non-finite"),
}
_OPS: Mapping[str, str] = {
    "exp": "exponential",
    "cos": "cosine",
    "sum": "reduce",
    "Add": "add",
    "Sub": "subtract",
    "Mult": "multiply",
    "Div": "divide",
}
#: Names of ops and of JAX functions that solve linear equations.
SOLVING = frozenset(
    "cholesky triangular_solve solve inv lu lu_solve cho_solve det slogdet".split()
)
CONDITIONED = (
    "solve by QR or jnp.linalg.lstsq of the matrix itself, not of its square, or add a "
    "small number to the diagonal: a large condition number costs digits"
)
#: A formula may end at most this many ops after an op at fault.
_AHEAD = 12
#: Ops that move, repeat or round a value.
_KEEPS = CONSTANT - {"stablehlo.constant"}


def better_form(graph: ValueSources, ops: Collection[Op], scope: str, kind: str) -> str:
    """Return advice to rewrite the formula, or the solution of linear equations, that
    contains one of `ops`; "" if no advice fits a fault of `kind`. `scope` names the JAX
    functions around the ops."""
    inner = re.findall(r"\w+", scope.partition("/")[2])  # without the user's function
    names = {op.name.rpartition(".")[2] for op in ops} | set(inner)
    if names & SOLVING:
        return CONDITIONED
    ends = [*dict.fromkeys(v for op in ops for v in _ahead(graph, op))]
    for formula, written in FORMS.items():
        if kind not in RANGES.get(formula, (kind,)):
            continue
        if kind == "non-finite" and "exp" not in formula:
            continue  # a form without exp does not avoid Inf
        for value in ends:
            found = _match(graph, _PARSED[formula], value, {})
            if found is not None and not found.isdisjoint(ops):
                return f"write {written}"
    return ""


def _ahead(graph: ValueSources, op: Op) -> Iterator[Value]:
    level = [*op.results]
    for _ in range(_AHEAD):
        yield from level
        level = [reader for value in level for reader in graph.readers.get(value, ())]
        level = [*dict.fromkeys(level)][:_AHEAD]


def _match(
    graph: ValueSources, pattern: ast.expr, value: Value, names: dict[str, Value]
) -> set[Op] | None:
    """Return the ops that compute `value` if its formula is `pattern`, else None."""
    value = graph.origin(value, _KEEPS)
    if isinstance(pattern, ast.Name):
        return set() if names.setdefault(pattern.id, value) is value else None
    op = graph.makers.get(value)
    if op is None:
        return None
    if isinstance(pattern, ast.Constant):
        number = op.attributes.get("value")
        is_it = op.name == "stablehlo.constant" and (number == pattern.value).all()
        return set() if is_it else None
    if isinstance(pattern, ast.BinOp):
        name, parts = type(pattern.op).__name__, [pattern.left, pattern.right]
    else:
        assert isinstance(pattern, ast.Call)
        assert isinstance(pattern.func, ast.Name)
        name, parts = pattern.func.id, pattern.args
    given, short = [*op.operands], op.name.rpartition(".")[2]
    if short == "square":
        given, short = [*given, *given], "multiply"
    adds = [inner.name for region in op.regions for inner in region.ops]
    if short != _OPS.get(name, name) or (adds and adds != ["stablehlo.add"]):
        return None
    orders = [parts, parts[::-1]] if name in ("Add", "Mult") else [parts]
    for order in orders:
        found, known = {op}, dict(names)
        # `given` also has the initial value if the op is a reduce.
        for part, operand in zip(order, given, strict=False):
            inner = _match(graph, part, operand, known)
            if inner is None:
                break
            found |= inner
        else:
            names.update(known)
            return found
    return None
