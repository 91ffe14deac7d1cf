"""Hypothesis strategies for random well-typed programs.

Operations are rows of `operations`, what holds blocks is in `control`. A line draws an
operation and operands that are there; its type is what JAX infers, and a line that JAX
refuses, or that makes more than `MOST_ELEMENTS`, is left out. Carries and branch
results are fitted to their types by resizing and casting. Few shapes occur, for every
kernel of a run op by op is compiled once per shape.
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

from tests.fuzz.control import CONTROL, MOST_ELEMENTS
from tests.fuzz.operations import OPERATIONS, Operation
from tests.fuzz.program import TRANSFORMATIONS, Block, Line, Program, Value, kind_of
from tests.fuzz.types import (
    FLOATS,
    INTEGERS,
    SMALL_FLOATS,
    TARGETS,
    WIDE_INTEGERS,
    allowed,
)
from tests.fuzz.values import literal, random_array

SHAPES = ((), (5,), (3, 5), (1, 5), (5, 3), (2, 3, 5), (2, 1, 3, 5))
#: Blocks within blocks within the program.
DEEPEST = 2

Draw = Callable[[st.SearchStrategy[Any]], Any]


@functools.cache
def inferred(
    expression: str, types: tuple[tuple[str, tuple[int, ...]], ...], x64: bool
) -> tuple[str, tuple[int, ...]] | None:
    """(dtype, shape) of an expression in operands a, b, c; None where JAX refuses, and
    where it computes in float64 on the way, which no chip has."""

    def evaluate(*operands: Any) -> Any:
        names = dict(zip("abc", operands, strict=False))
        return eval(expression, {"jax": jax, "jnp": jnp, "lax": lax, **names})

    operands = [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in types]
    try:
        jaxpr = jax.make_jaxpr(evaluate)(*operands)
    except (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError):
        return None
    [out] = jaxpr.out_avals
    wide = x64 and "f64[" in str(jaxpr)
    return None if wide else (out.dtype.name, out.shape)


@dataclasses.dataclass
class Writer:
    """Lines as they are drawn, and the values that the next line may use."""

    draw: Draw
    names: Iterator[int]
    smooth: bool
    known: list[Value]
    types: frozenset[str]
    x64: bool
    wild: bool
    constants: Sequence[Value]
    lines: list[Line] = dataclasses.field(default_factory=list)
    used: set[str] = dataclasses.field(default_factory=set)
    depth: int = 0
    on_devices: bool = False
    #: Everything named since the first `shard_map`: it may be placed on the mesh, and
    #: JAX refuses to index such a value within another `shard_map`.
    placed: set[str] = dataclasses.field(default_factory=set)

    def name(self, prefix: str = "v") -> str:
        """A fresh identifier."""
        return f"{prefix}{next(self.names)}"

    def write(self, expression: str, values: Sequence[Value], *blocks: Block) -> None:
        """Adds a line."""
        line = Line(targets=tuple(values), expression=expression, blocks=blocks)
        self.lines.append(line)
        self.known += values
        self._place(values, "shard_map" in expression)

    def _place(self, values: Sequence[Value], starts: bool = False) -> None:
        if starts or self.placed:
            self.placed.update(v.name for v in values)

    def pick(self, values: Sequence[Value]) -> Value:
        """One of them, rather a late one."""
        back = st.integers(0, len(values) - 1)
        value = values[-1 - min(self.draw(back), self.draw(back))]
        self.used.add(value.name)
        return value

    def inside(self, extra: Sequence[Value]) -> Writer:
        """A writer of a block that sees these values and its parameters."""
        self._place(extra)
        return dataclasses.replace(
            self, known=[*self.known, *extra], lines=[], depth=self.depth + 1
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
        types = tuple((v.dtype, v.shape) for v in operands)
        found = inferred(template, types, self.x64)
        if found is None or found[0] not in self.types:
            return
        if not 0 < np.prod(found[1]) <= MOST_ELEMENTS:
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

    def literal(self) -> None:
        """A constant on a line of its own, inside of whatever block this is."""
        dtype = self.draw(st.sampled_from(sorted(self.types)))
        shape = self.draw(st.sampled_from(SHAPES))
        random = np.random.default_rng(self.draw(st.integers(0, 2**16)))
        text = literal(random_array(random, dtype, shape, self.wild))
        value = Value(name=self.name(), dtype=dtype, shape=shape, exact=True)
        self.write(f"jnp.asarray({text})", [value])

    # -- control flow ------------------------------------------------------------------

    def lines_of(self, fewest: int, most: int) -> None:
        """Draws that many lines; some of them control flow."""
        for _ in range(self.draw(st.integers(fewest, most))):
            kind = self.draw(st.integers(0, 11))
            if kind == 0:
                self.literal()
            elif self.depth < DEEPEST and kind >= 10:
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

    def block(
        self,
        parameters: Sequence[Value],
        results: Sequence[Value],
        seen: Sequence[Value] | None = None,
    ) -> Block:
        """A function of the parameters that returns values of the types of results; it
        closes over what is known here, or over `seen` alone."""
        outer = self if seen is None else dataclasses.replace(self, known=list(seen))
        inner = outer.inside(parameters)
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


# ---- Whole programs.


@st.composite
def programs(draw: Draw, fewest: int = 5, most: int = 40) -> Program:
    """Programs of that many lines; one of control flow counts once."""
    transformation = draw(st.sampled_from(list(TRANSFORMATIONS)))
    target = draw(st.sampled_from(TARGETS))
    # Two in eight each.
    wild, x64 = (draw(st.integers(0, 7)) >= 6 for _ in range(2))
    with jax.enable_x64(x64):
        return _drawn(draw, transformation, target, wild, x64, (fewest, most))


def _drawn(
    draw: Draw,
    transformation: str,
    target: str,
    wild: bool,
    x64: bool,
    lines: tuple[int, int],
) -> Program:
    floats = (*FLOATS, *SMALL_FLOATS[target])
    integers = (*INTEGERS, *(WIDE_INTEGERS if x64 else ()))
    wanted = [draw(st.sampled_from(floats)) for _ in range(draw(st.integers(1, 3)))]
    wanted += [draw(st.sampled_from(integers)) for _ in range(draw(st.integers(0, 2)))]
    wanted += ["bool"] * draw(st.integers(0, 1))
    inputs = _values(draw, wanted, "")
    every = (*floats, *integers, "bool")
    captured = [draw(st.sampled_from(every)) for _ in range(draw(st.integers(0, 3)))]
    constants = _values(draw, captured, "k")
    writer = Writer(
        draw=draw,
        names=itertools.count(),
        smooth="grad" in transformation,
        known=[*constants, *inputs],
        types=allowed(target, x64),
        x64=x64,
        wild=wild,
        constants=constants,
    )
    writer.lines_of(*lines)
    results = [v for v in writer.known if v.name not in writer.used]
    results = [v for v in results if v not in constants] or writer.known[-1:]
    block = Block(
        name="program",
        parameters=tuple(v.name for v in inputs),
        lines=tuple(writer.lines),
        results=tuple(v.name for v in results),
    )
    return Program(
        inputs=inputs,
        constants=constants,
        block=block,
        results=tuple(results),
        transformation=transformation,
        seed=draw(st.integers(0, 2**16)),
        wild=wild,
        target=target,
        x64=x64,
    )


def _values(draw: Draw, dtypes: Sequence[str], prefix: str) -> tuple[Value, ...]:
    """Exact values of these dtypes, named a, b, c, ... after the prefix."""
    return tuple(
        Value(
            name=prefix + letter,
            dtype=dtype,
            shape=draw(st.sampled_from(SHAPES)),
            exact=True,
        )
        for letter, dtype in zip(string.ascii_lowercase, dtypes, strict=False)
    )
