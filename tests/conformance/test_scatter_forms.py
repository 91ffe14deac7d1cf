"""Every form of scatter.

Integers against the StableHLO reference interpreter, what it leaves open against a loop
in NumPy. Many forms share one module: compiling is what takes time.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from tests.conformance import bits, modules
from tests.conformance.modules import DTYPES, ints, some
from tests.oracles import floats
from tests.oracles.movement import ScatterNumbers, scatter

I32 = np.int32


def scatter_text(
    inputs: tuple, indices: Any, updates: tuple, numbers: ScatterNumbers, body: str
) -> str:
    """The op as text; `body` reads %x0, %u0, ... and defines what it returns."""
    count = len(inputs)
    operands = ", ".join(f"%{i}" for i in range(2 * count + 1))
    scalars = [f"tensor<{modules.element_type(a.dtype)}>" for a in (*inputs, *updates)]
    names = [f"%x{i}" for i in range(count)] + [f"%u{i}" for i in range(count)]
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, scalars, strict=True))
    fields = ", ".join(
        f"{name} = {list(value)}" if isinstance(value, tuple) else f"{name} = {value}"
        for name, value in dataclasses.asdict(numbers).items()
        if value != ()
    )
    types = ", ".join(map(modules.tensor, (*inputs, indices, *updates)))
    results = ", ".join(map(modules.tensor, inputs))
    return (
        f'%r{f":{count}" if count > 1 else ""} = "stablehlo.scatter"({operands}) <{{'
        f"scatter_dimension_numbers = #stablehlo.scatter<{fields}>, "
        "indices_are_sorted = true, unique_indices = true}> ({\n"
        f"^bb0({arguments}):\n{body}\n}}) : ({types}) -> ({results})"
    )


@dataclasses.dataclass(frozen=True)
class Scatter:
    """A scatter: its text, and the same computation on NumPy scalars."""

    name: str
    inputs: tuple[np.ndarray, ...]
    indices: np.ndarray
    updates: tuple[np.ndarray, ...]
    numbers: ScatterNumbers
    text: str
    body: Any
    before: str = ""

    def form(self) -> modules.Form:
        parts = (self.inputs, self.indices, self.updates, self.numbers)
        body = self.before + scatter_text(*parts, self.text)
        arrays = (*self.inputs, self.indices, *self.updates)
        return modules.form(self.name, arrays, self.inputs, body)

    def expected(self) -> list[np.ndarray]:
        parts = (self.inputs, self.indices, self.updates, self.numbers)
        with np.errstate(over="ignore"):
            return scatter(*parts, self.body)


def returns(*names: str, dtype: str = "i32") -> str:
    types = ", ".join([f"tensor<{dtype}>"] * len(names))
    return f"stablehlo.return {', '.join(names)} : {types}"


def op(name: str, *operands: str, dtype: str = "i32") -> str:
    return f"%{name[:2]} = stablehlo.{name} {', '.join(operands)} : tensor<{dtype}>\n"


SUBTRACT = op("subtract", "%x0", "%u0") + returns("%su")
ASSIGN = returns("%u0")
ROWS = ScatterNumbers(
    update_window_dims=(1,),
    inserted_window_dims=(0,),
    scatter_dims_to_operand_dims=(0,),
    index_vector_dim=1,
)
COLUMNS = ScatterNumbers(  # the index vector in front, its dimensions exchanged
    update_window_dims=(1,),
    inserted_window_dims=(0,),
    scatter_dims_to_operand_dims=(1, 0),
    index_vector_dim=0,
)
POINTS = ScatterNumbers(
    inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), index_vector_dim=1
)
BATCHED = ScatterNumbers(
    update_window_dims=(2,),
    inserted_window_dims=(1,),
    input_batching_dims=(0,),
    scatter_indices_batching_dims=(1,),
    scatter_dims_to_operand_dims=(1,),
    index_vector_dim=2,
)


def general_scatters() -> list[Scatter]:
    rng = np.random.default_rng(1)
    table, updates = ints(rng, 5, 3), ints(rng, 6, 3)
    rows = np.array([[1], [4], [1], [-1], [5], [1]], I32)
    pairs = np.array([[0, 1, 5, 1, 0], [4, 0, 1, 0, 3]], I32)
    subtract = lambda x, u: (x - u,)  # noqa: E731
    scale = "%c = stablehlo.constant dense<3> : tensor<i32>\n"
    return [
        Scatter("rows", (table,), rows, (updates,), ROWS, SUBTRACT, subtract),
        Scatter(
            "columns",
            (table,),
            pairs,
            (ints(rng, 5, 2),),
            COLUMNS,
            SUBTRACT,
            subtract,
        ),
        Scatter(
            "batched",
            (ints(rng, 2, 5, 3),),
            rng.integers(-1, 6, (4, 2)).astype(I32),
            (ints(rng, 4, 2, 3),),
            BATCHED,
            SUBTRACT,
            subtract,
        ),
        Scatter(
            "two_at_once",
            (table, table[::-1].copy()),
            rows,
            (updates, ints(rng, 6, 3)),
            ROWS,
            op("add", "%x0", "%u1")
            + op("maximum", "%x1", "%u0")
            + returns("%ma", "%ad"),
            lambda x0, x1, u0, u1: (max(x1, u0), x0 + u1),
        ),
        Scatter(
            "captured",
            (table,),
            rows,
            (updates,),
            ROWS,
            op("multiply", "%x0", "%c") + op("add", "%mu", "%u0") + returns("%ad"),
            lambda x, u: (x * I32(3) + u,),
            before=scale,
        ),
        Scatter(
            "last_wins", (table,), rows, (updates,), ROWS, ASSIGN, lambda x, u: (u,)
        ),
        Scatter(
            "xor",
            (table,),
            rows,
            (updates,),
            ROWS,
            op("xor", "%x0", "%u0") + returns("%xo"),
            lambda x, u: (x ^ u,),
        ),
        Scatter(
            "no_updates",
            (table,),
            rows[:0],
            (updates[:0],),
            ROWS,
            SUBTRACT,
            subtract,
        ),
        Scatter(
            "whole_tensor",
            (table,),
            np.zeros(0, I32),
            (ints(rng, 5, 3),),
            ScatterNumbers(update_window_dims=(0, 1)),
            SUBTRACT,
            subtract,
        ),
    ]


@pytest.mark.slow
def test_general_scatters():
    cases = general_scatters()
    text, arrays = modules.module([c.form() for c in cases])
    expected = [x for c in cases for x in c.expected()]
    names = modules.labels([c.form() for c in cases])
    outputs = modules.run(text, *arrays)
    for name, got, want, spec in zip(
        names, outputs, expected, modules.reference(text, *arrays), strict=True
    ):
        floats.same_bits(want, spec, f"oracle, {name}")
        floats.same_bits(got, want, name)


def test_windows_that_do_not_fit_are_dropped_whole():
    rng = np.random.default_rng(2)
    table, updates = ints(rng, 6, 4), ints(rng, 7, 3, 2)
    corners = np.array([[0, 0], [3, 2], [4, 2], [3, 3], [-1, 0], [2, 1], [5, 5]], I32)
    numbers = ScatterNumbers(
        update_window_dims=(1, 2),
        scatter_dims_to_operand_dims=(0, 1),
        index_vector_dim=1,
    )
    bodies = {"subtract": SUBTRACT, "add": op("add", "%x0", "%u0") + returns("%ad")}
    functions = {"subtract": lambda x, u: (x - u,), "add": lambda x, u: (x + u,)}
    cases = [
        Scatter(name, (table,), corners, (updates,), numbers, bodies[name], function)
        for name, function in functions.items()
    ]
    text, arrays = modules.module([c.form() for c in cases])
    for case, got in zip(cases, modules.run(text, *arrays), strict=True):
        floats.same_bits(got, case.expected()[0], case.name)


@pytest.mark.slow
def test_every_dtype_and_every_integer_dtype_of_indices():
    rng = np.random.default_rng(3)
    cases = []
    for dtype in DTYPES:
        table, updates = some(rng, (5, 3), dtype), some(rng, (4, 3), dtype)
        name, short = f"assign_{dtype.name}", modules.element_type(dtype)
        rows = np.array([[2], [0], [2], [7]], I32)
        body = returns("%u0", dtype=short)
        assign = lambda x, u: (u,)  # noqa: E731
        cases.append(Scatter(name, (table,), rows, (updates,), ROWS, body, assign))
        if dtype.kind not in "iu":
            continue
        far = np.iinfo(dtype).max
        where = np.array([[2], [0], [far], [np.iinfo(dtype).min]], dtype)
        long, updates = ints(rng, 100, 3), ints(rng, 4, 3)
        both = ((ASSIGN, assign), (SUBTRACT, lambda x, u: (x - u,)))
        for body, function in both[dtype.itemsize in (2, 4) :]:
            name = f"indices_{dtype.name}_{len(cases)}"
            cases.append(
                Scatter(name, (long,), where, (updates,), ROWS, body, function)
            )
    text, arrays = modules.module([c.form() for c in cases])
    for case, got in zip(cases, modules.run(text, *arrays), strict=True):
        floats.same_bits(got, case.expected()[0], case.name)


@pytest.mark.slow
def test_a_body_on_narrow_floats_rounds_every_update():
    rng = np.random.default_rng(4)
    table, updates = (some(rng, (n,), np.dtype(ml_dtypes.bfloat16)) for n in (3, 40))
    rows = rng.integers(0, 3, (40, 1)).astype(I32)
    body = op("subtract", "%x0", "%u0", dtype="bf16") + returns("%su", dtype="bf16")
    rounded = lambda x, u: ((np.float32(x) - np.float32(u)),)  # noqa: E731
    case = Scatter("bf16", (table,), rows, (updates,), POINTS, body, rounded)
    text, arrays = modules.module([case.form()])
    floats.same_bits(
        modules.run_both_ways(text, *arrays)[0], case.expected()[0], "bf16"
    )


@pytest.mark.slow
def test_scatters_of_jax():
    rng = np.random.default_rng(5)
    x, i = rng.standard_normal((6, 4)).astype(np.float32), np.array([4, 0, 4, 9, -1])
    mask = rng.integers(0, 2, (6, 4)).astype(bool)
    n = ints(rng, 6, 4)

    def program(x, n, mask, i):
        rows = x[:5]
        return (
            x.at[i].apply(lambda v: jnp.where(v > 0, v * 2, -v)),
            n.at[i].apply(lambda v: v ^ 5),
            mask.at[i].set(~mask[:5]),
            mask.at[i].max(mask[:5]),
            jax.vmap(lambda a, b, j: a.at[j].set(b))(x[:5], rows[:, 0], i),
            jax.vmap(lambda a, j: a.at[j].min(3))(n[:5], i),
            n.at[i.astype(jnp.uint8), 1:3].mul(3, mode="drop"),
            lax.scatter_sub(n, i[:, None].astype(jnp.int16), n[:5], SUB),
        )

    SUB = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    arguments = (x, n, mask, i.astype(I32))
    bits.assert_same(nj.jit(program)(*arguments), jax.jit(program)(*arguments))
