"""Hypothesis strategies for random well-typed programs.

A line draws an operation and operands that are there; its type is what JAX infers, and
a line that JAX refuses, or that makes more than `MOST_ELEMENTS`, is left out. Carries
and branch results are fitted to their types by resizing and casting. Few shapes occur,
for every kernel of a run op by op is compiled once per shape.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import string
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from tests.fuzz.operations import FLOATS, INTEGERS, OPERATIONS, Operation
from tests.fuzz.program import TRANSFORMATIONS, Block, Line, Program, Value, kind_of

SHAPES = ((), (5,), (3, 5), (1, 5), (5, 3), (2, 3, 5), (2, 1, 3, 5))
MOST_ELEMENTS = 240
#: Blocks within blocks within the program.
DEEPEST = 2

Draw = Callable[[st.SearchStrategy[Any]], Any]


@functools.cache
def inferred(
    expression: str, types: tuple[tuple[str, tuple[int, ...]], ...]
) -> tuple[str, tuple[int, ...]] | None:
    """(dtype, shape) of an expression in operands a, b, c; None where JAX refuses."""

    def evaluate(*operands: Any) -> Any:
        names = dict(zip("abc", operands, strict=False))
        return eval(expression, {"jax": jax, "jnp": jnp, "lax": lax, **names})

    operands = [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in types]
    try:
        out = jax.eval_shape(evaluate, *operands)
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        return None
    return out.dtype.name, out.shape


@dataclasses.dataclass
class Writer:
    """Lines as they are drawn, and the values that the next line may use."""

    draw: Draw
    names: Iterator[int]
    smooth: bool
    known: list[Value]
    lines: list[Line] = dataclasses.field(default_factory=list)
    used: set[str] = dataclasses.field(default_factory=set)
    depth: int = 0

    def name(self, prefix: str = "v") -> str:
        """A fresh identifier."""
        return f"{prefix}{next(self.names)}"

    def write(self, expression: str, values: Sequence[Value], *blocks: Block) -> None:
        """Adds a line."""
        line = Line(targets=tuple(values), expression=expression, blocks=blocks)
        self.lines.append(line)
        self.known += values

    def pick(self, values: Sequence[Value]) -> Value:
        """One of them, rather a late one."""
        back = st.integers(0, len(values) - 1)
        value = values[-1 - min(self.draw(back), self.draw(back))]
        self.used.add(value.name)
        return value

    def inside(self, extra: Sequence[Value]) -> Writer:
        """A writer of a block that sees these values and its parameters."""
        return Writer(
            draw=self.draw,
            names=self.names,
            smooth=self.smooth,
            known=[*self.known, *extra],
            used=self.used,
            depth=self.depth + 1,
        )

    # -- operations --------------------------------------------------------------------

    def operation(self) -> None:
        """One line of the table, if operands for it are there."""
        group = self.draw(st.sampled_from(sorted(OPERATIONS)))
        row = self.draw(st.sampled_from(OPERATIONS[group]))
        firsts = [v for v in self.known if self._may_start(row, v)]
        if not firsts:
            return
        operands = [self.pick(firsts)]
        for letter in row.operands[1:]:
            others = [v for v in self.known if self._may_follow(row, v, letter)]
            if letter == row.operands[0]:
                others = [v for v in others if v.dtype == operands[0].dtype]
            elif len(operands) == 2 and letter == row.operands[1]:
                others = [v for v in others if v.dtype == operands[1].dtype]
            if not others:
                return
            operands.append(self.pick(others))
        self._apply(row, operands)

    def _needs_exact(self, row: Operation) -> bool:
        return row.exact == "needed" or (row.kink and self.smooth)

    def _may_start(self, row: Operation, value: Value) -> bool:
        lowest, highest = row.ranks
        in_range = lowest <= len(value.shape) <= highest and value.size > 0
        return in_range and self._may_follow(row, value, row.operands[0])

    def _may_follow(self, row: Operation, value: Value, letter: str) -> bool:
        if self._needs_exact(row) and not value.exact:
            return False
        return letter in (value.kind, "x") or (letter == "n" and value.kind != "b")

    def _apply(self, row: Operation, operands: Sequence[Value]) -> None:
        first = operands[0]
        chosen = {
            key: self.draw(st.sampled_from(list(choices(first))))
            for key, choices in row.choices.items()
        }
        chosen |= {"shape": first.shape, "dtype": first.dtype}
        fitted = [_broadcast(first, v) if row.broadcast else "{}" for v in operands]
        slots = dict(zip("abc", fitted, strict=False))
        template = row.expression.format(
            **{k: s.format(k) for k, s in slots.items()}, **chosen
        )
        found = inferred(template, tuple((v.dtype, v.shape) for v in operands))
        if found is None or not 0 < np.prod(found[1]) <= MOST_ELEMENTS:
            return
        names = {k: v.name for k, v in zip("abc", operands, strict=False)}
        expression = row.expression.format(
            **{k: s.format(names[k]) for k, s in slots.items()}, **chosen
        )
        dtype, shape = found
        exact = row.exact != "never" and all(v.exact for v in operands)
        exact |= kind_of(dtype) != "f"
        value = Value(name=self.name(), dtype=dtype, shape=shape, exact=exact)
        self.write(expression, [value])

    # -- control flow ------------------------------------------------------------------

    def lines_of(self, fewest: int, most: int) -> None:
        """Draws that many lines; some of them control flow."""
        for _ in range(self.draw(st.integers(fewest, most))):
            if self.depth < DEEPEST and self.draw(st.integers(0, 5)) == 5:
                kinds = sorted(set(CONTROL) - ({"while"} if self.smooth else set()))
                CONTROL[self.draw(st.sampled_from(kinds))](self)
            else:
                self.operation()

    def fitted(self, like: Value, values: Sequence[Value]) -> str:
        """An expression of the type of `like`, exact if that is, made of a value."""
        fitting = [
            v for v in values if v.kind == like.kind and (v.exact or not like.exact)
        ]
        if not fitting:
            return f"jnp.zeros({like.shape}, jnp.{like.dtype})"
        return _cast(self.pick(fitting), like.dtype, like.shape)

    def block(self, parameters: Sequence[Value], results: Sequence[Value]) -> Block:
        """A function of the parameters that returns values of the types of results."""
        inner = self.inside(parameters)
        inner.lines_of(1, 4)
        made = [*parameters, *(t for line in inner.lines for t in line.targets)]
        return Block(
            name=self.name("block"),
            parameters=tuple(p.name for p in parameters),
            lines=tuple(inner.lines),
            results=tuple(inner.fitted(r, made) for r in results),
        )

    def carries(self) -> tuple[list[Value], list[Value]]:
        """One to three known values, and parameters of their types."""
        count = self.draw(st.integers(1, 3))
        starts = [self.pick(self.known) for _ in range(count)]
        return starts, [self.like(v) for v in starts]

    def like(self, value: Value, shape: tuple[int, ...] | None = None) -> Value:
        """A parameter or result of that type; a float is no longer exact."""
        return dataclasses.replace(
            value,
            name=self.name(),
            shape=value.shape if shape is None else shape,
            exact=value.kind != "f",
        )


def _broadcast(first: Value, value: Value) -> str:
    """The operand itself, or resized where its shape does not broadcast."""
    try:
        shape = np.broadcast_shapes(first.shape, value.shape)
    except ValueError:
        return f"jnp.resize({{}}, {first.shape})"
    if np.prod(shape) > MOST_ELEMENTS:
        return f"jnp.resize({{}}, {first.shape})"
    return "{}"


def _cast(value: Value, dtype: str, shape: tuple[int, ...]) -> str:
    text = value.name
    if value.shape != shape:
        text = f"jnp.resize({text}, {shape})"
    return text if value.dtype == dtype else f"{text}.astype(jnp.{dtype})"


def _tuple(values: Sequence[Value | str]) -> str:
    names = [v if isinstance(v, str) else v.name for v in values]
    return f"({', '.join(names)},)"


def _scan(writer: Writer) -> None:
    starts, parameters = writer.carries()
    rows = [v for v in writer.known if v.shape and v.shape[0] in (2, 3, 5)]
    if not rows:
        return
    sequence = writer.pick(rows)
    row = dataclasses.replace(sequence, name=writer.name(), shape=sequence.shape[1:])
    out = writer.like(starts[0])
    block = writer.block([*parameters, row], [*parameters, out])
    step = f"lambda carry, x: (lambda r: (r[:-1], r[-1]))({block.name}(*carry, x))"
    reverse = writer.draw(st.booleans())
    stacked = writer.like(out, (sequence.shape[0], *out.shape))
    ends = [writer.like(v) for v in starts]
    if stacked.size > MOST_ELEMENTS:
        return
    inner = f"lax.scan({step}, {_tuple(starts)}, {sequence.name}, reverse={reverse})"
    writer.write(f"(lambda r: (*r[0], r[1]))({inner})", [*ends, stacked], block)


def _fori(writer: Writer) -> None:
    starts, parameters = writer.carries()
    counter = Value(name=writer.name("i"), dtype="int32", shape=(), exact=True)
    block = writer.block([counter, *parameters], parameters)
    count = writer.draw(st.integers(1, 3))
    step = f"lambda i, carry: {block.name}(i, *carry)"
    ends = [writer.like(v) for v in starts]
    writer.write(f"lax.fori_loop(0, {count}, {step}, {_tuple(starts)})", ends, block)


def _while(writer: Writer) -> None:
    """The number of rounds depends on the bits of an integer."""
    starts, parameters = writer.carries()
    counts = [v for v in writer.known if v.kind == "i"]
    if not counts:
        return
    limit = f"jnp.max({writer.pick(counts).name} & 3)"
    counter = Value(name=writer.name("i"), dtype="int32", shape=(), exact=True)
    block = writer.block([counter, *parameters], parameters)
    unfinished = f"lambda carry: carry[0] < {limit}"
    step = f"lambda carry: (carry[0] + 1, *{block.name}(*carry))"
    start = f"(jnp.int32(0), *{_tuple(starts)})"
    ends = [writer.like(v) for v in starts]
    writer.write(f"lax.while_loop({unfinished}, {step}, {start})[1:]", ends, block)


def _cond(writer: Writer) -> None:
    starts, parameters = writer.carries()
    tests = [v for v in writer.known if v.kind == "b"]
    test = f"jnp.any({writer.pick(tests).name})" if tests else "jnp.bool_(True)"
    yes, no = (writer.block(parameters, parameters) for _ in range(2))
    ends = [writer.like(v) for v in starts]
    call = f"lax.cond({test}, {yes.name}, {no.name}, *{_tuple(starts)})"
    writer.write(call, ends, yes, no)


def _switch(writer: Writer) -> None:
    starts, parameters = writer.carries()
    tests = [v for v in writer.known if v.kind == "i"]
    test = f"jnp.max({writer.pick(tests).name} & 3)" if tests else "1"
    blocks = [writer.block(parameters, parameters) for _ in range(3)]
    ends = [writer.like(v) for v in starts]
    branches = _tuple([block.name for block in blocks])
    index = f"jnp.asarray({test}, jnp.int32)"
    writer.write(f"lax.switch({index}, {branches}, *{_tuple(starts)})", ends, *blocks)


def _vmap(writer: Writer) -> None:
    batched = [v for v in writer.known if v.shape and 1 < v.shape[0] <= 5]
    if not batched:
        return
    value = writer.pick(batched)
    row = dataclasses.replace(value, name=writer.name(), shape=value.shape[1:])
    out = writer.like(row)
    block = writer.block([row], [out])
    ends = [writer.like(value)]
    writer.write(f"jax.vmap({block.name})({value.name})", ends, block)


def _called(transformation: str) -> Callable[[Writer], None]:
    def control(writer: Writer) -> None:
        starts, parameters = writer.carries()
        block = writer.block(parameters, parameters)
        ends = [writer.like(v) for v in starts]
        call = f"{transformation}({block.name})(*{_tuple(starts)})"
        writer.write(call, ends, block)

    return control


def _grad(writer: Writer) -> None:
    """The gradient of a block inside a program."""
    floats = [v for v in writer.known if v.kind == "f"]
    if not floats:
        return
    value = writer.pick(floats)
    parameter = writer.like(value)
    inner = dataclasses.replace(writer, smooth=True)
    block = inner.block([parameter], [parameter])
    total = f"lambda x: jnp.tanh({block.name}(x)[0]).astype(jnp.float32).sum()"
    ends = [writer.like(value)]
    writer.write(f"(jnp.tanh(jax.grad({total})({value.name})),)", ends, block)


CONTROL: dict[str, Callable[[Writer], None]] = {
    "scan": _scan,
    "fori": _fori,
    "while": _while,
    "cond": _cond,
    "switch": _switch,
    "vmap": _vmap,
    "jit": _called("jax.jit"),
    "checkpoint": _called("jax.checkpoint"),
    "grad": _grad,
}


# ---- Whole programs.


@st.composite
def programs(draw: Draw, fewest: int = 5, most: int = 40) -> Program:
    """Programs of that many lines; one of control flow counts once."""
    transformation = draw(st.sampled_from(list(TRANSFORMATIONS)))
    shapes = st.sampled_from(SHAPES)
    wanted = [draw(st.sampled_from(FLOATS)) for _ in range(draw(st.integers(1, 3)))]
    wanted += [draw(st.sampled_from(INTEGERS)) for _ in range(draw(st.integers(0, 2)))]
    wanted += ["bool"] * draw(st.integers(0, 1))
    inputs = tuple(
        Value(name=name, dtype=dtype, shape=draw(shapes), exact=True)
        for name, dtype in zip(string.ascii_lowercase, wanted, strict=False)
    )
    writer = Writer(
        draw=draw,
        names=itertools.count(),
        smooth="grad" in transformation,
        known=list(inputs),
    )
    writer.lines_of(fewest, most)
    results = [v for v in writer.known if v.name not in writer.used]
    results = results or writer.known[-1:]
    block = Block(
        name="program",
        parameters=tuple(v.name for v in inputs),
        lines=tuple(writer.lines),
        results=tuple(v.name for v in results),
    )
    return Program(
        inputs=inputs,
        block=block,
        results=tuple(results),
        transformation=transformation,
        seed=draw(st.integers(0, 2**16)),
    )
