"""A program with a numerical fault on one line, and its twin without it.

Both are written as one program. The statement with the fault ends with `# fault`; other
statements that the healthy twin lacks end with `# -`, on their first line if they have
a body; and a line `# + ...` is a line of the twin:

    @fault("overflow", policy="fp16")
    @source("reports of norms that are Inf")
    @inputs("64x32 *300 @7")
    def norm_of_squares_in_half(x):
        half = x.astype(jnp.float16)  # -
        squares = half * half  # fault
        # + squares = x * x
        return jnp.sqrt(jnp.sum(squares, axis=-1).astype(jnp.float32))

If the twin contains the faulty statement too and differs elsewhere, the statement ends
with `# here`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from benchmarks.faults.data import made

#: Kinds of faults as an analyst would name them, with their meanings.
KINDS = {
    "overflow": "a finite value leaves the format's range: Inf, or saturated",
    "underflow": "a nonzero value becomes zero or subnormal",
    "non-finite": "an Inf or NaN is made of finite values by an invalid operation "
    "(0/0, Inf - Inf, log of a negative)",
    "absorption": "an addend that is not zero changes nothing, or hardly: lost updates",
    "stagnation": "a running sum stops growing, or loses its small addends",
    "cancellation": "nearly equal numbers are subtracted, the rounding before it stays",
    "singular": "a function is evaluated beside its singularity, where it amplifies",
    "integer": "integers wrap around, or a float no longer holds them exactly",
    "saturation": "a scale is zero, infinite or clipped, or values clip at the limit "
    "of an 8- or 4-bit format",
    "coarse": "a format without the digits that are needed: steps, equal neighbours",
    "uniform": "an output that should vary is flat or one-hot (softmax, gates, ranks)",
    "stale-scale": "a scale of an earlier tensor no longer fits",
    "other": "none of these",
}


_MARK = re.compile(r"# (fault|here)$")
_ABSENT = re.compile(r"# (fault|-)$")
_TWIN = re.compile(r"(\s*)# \+ (.*)")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A faulty program and its healthy twin.

    Attributes:
        name: unique in the whole set, words joined by "-".
        kinds: names of `KINDS`, the best first; several if each would be right.
        faulty: a function of arrays and pytrees with one line that ends with "# fault"
            or "# here"; the fault occurs in the computation of this line.
        healthy: the same mathematics as a careful author writes it.
        arguments: a function that makes the arguments, small and seeded.
        policy: a preset of `neuronjax.Policy`, or a policy.
        target: the chip; MX formats need "trn3".
        source: the kind of bug report or the literature on which the case is based.
    """

    name: str
    kinds: tuple[str, ...]
    faulty: Callable[..., Any]
    healthy: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    policy: Any
    source: str
    target: str = "trn2"

    @property
    def line(self) -> tuple[str, int]:
        """The (file, number) of the faulty line."""
        lines, first = inspect.getsourcelines(self.faulty)
        marked = [n for n, text in enumerate(lines) if _MARK.search(text.rstrip())]
        if len(marked) != 1:
            raise ValueError(
                f"{self.name}: {len(marked)} lines end with '# fault' or '# here'"
            )
        return inspect.getsourcefile(self.faulty) or "", first + marked[0]

    @property
    def places(self) -> tuple[str, ...]:
        """The `file:line` of every line of the faulty statement."""
        path, number = self.line
        lines, first = inspect.getsourcelines(self.faulty)
        at = number - first + 1
        inner = _innermost(ast.parse("".join(lines)), at)
        is_block = hasattr(inner, "body")
        numbers = [at] if is_block else range(inner.lineno, _end(inner) + 1)
        return tuple(f"{path}:{first + n - 1}" for n in numbers)


def fault(
    *kinds: str, policy: Any = "bf16", target: str = "trn2"
) -> Callable[[Callable[..., Any]], Fault]:
    """Return a decorator that makes a `Fault`, above `source` and `inputs`."""

    def decorate(program: Any) -> Fault:
        return Fault(
            name=program.__name__.replace("_", "-"),
            kinds=kinds,
            faulty=program,
            healthy=_twin(program),
            arguments=program.arguments,
            policy=policy,
            source=program.source,
            target=target,
        )

    return decorate


def source(text: str) -> Callable[[Any], Any]:
    """Return a decorator that records the bug report or literature behind a program."""

    def decorate(program: Any) -> Any:
        program.source = text
        return program

    return decorate


def inputs(
    *trees: Any, by: Callable[[], tuple[Any, ...]] | None = None
) -> Callable[[Any], Any]:
    """Return a decorator that gives a program its arguments.

    Args:
        *trees: one pytree for each argument; its leaves are texts of `data`, functions
            that make an array, or arrays. One text may contain several arguments,
            separated by "; ".
        by: a function that returns such pytrees, if they depend on each other.
    """

    def decorate(program: Any) -> Any:
        program.arguments = lambda: _made(by() if by else trees)
        return program

    return decorate


def _made(trees: Iterable[Any]) -> tuple[Any, ...]:
    parted = (t.split("; ") if isinstance(t, str) else [t] for t in trees)
    return tuple(made(tree) for part in parted for tree in part)


def faults_in(package: str, path: Iterable[str]) -> tuple[Fault, ...]:
    """Return the faults of all modules of a package."""
    names = sorted(module.name for module in iter_modules(path))
    modules = [import_module(f"{package}.{name}") for name in names]
    return tuple(
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Fault)
    )


def _twin(program: Callable[..., Any]) -> Callable[..., Any]:
    """Return the healthy program, compiled on the lines of the faulty one."""
    lines, first = inspect.getsourcelines(program)
    code = compile(
        "\n" * (first - 1) + "\n".join(_twin_lines(lines)),
        inspect.getsourcefile(program) or "",
        "exec",
    )
    names: dict[str, Any] = {}
    exec(code, program.__globals__, names)
    return names[program.__name__]


def _twin_lines(lines: list[str]) -> list[str]:
    whole = ast.parse("".join(lines)).body[0]
    out = [_TWIN.sub(r"\1\2", text.rstrip()) for text in lines]
    out[: whole.lineno - 1] = [""] * (whole.lineno - 1)  # the decorators
    for number, text in enumerate(lines, 1):
        if _ABSENT.search(text.rstrip()):
            inner = _innermost(whole, number)
            out[inner.lineno - 1 : _end(inner)] = [""] * (
                _end(inner) - inner.lineno + 1
            )
    return out


def _innermost(tree: ast.AST, number: int) -> ast.stmt:
    """Return the innermost statement around a line."""
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
    around = (s for s in statements if s.lineno <= number <= _end(s))
    return max(around, key=lambda s: s.lineno)


def _end(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno
