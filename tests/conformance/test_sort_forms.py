"""Sorts by every kind of comparator, and selection of the largest.

Comparators of JAX's forms are sorted by integer keys, any other is executed; both
against the StableHLO reference interpreter, whose sort is stable.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from neuronjax.ir.block_set import SortBlock
from neuronjax.ir.instruction_set import Sort
from tests.conformance import bits, modules
from tests.oracles import floats


def sort_form(
    name: str, arrays: tuple, body: str, dimension: int = 0, stable: bool = True
) -> modules.Form:
    """A sort whose comparator reads %a0, %b0, %a1, ... and defines %less."""
    count = len(arrays)
    scalars = [f"tensor<{modules.element_type(a.dtype)}>" for a in arrays]
    names = [f"%{side}{i}: {t}" for i, t in enumerate(scalars) for side in "ab"]
    operands = ", ".join(f"%{i}" for i in range(count))
    types = ", ".join(map(modules.tensor, arrays))
    text = (
        f'%r{f":{count}" if count > 1 else ""} = "stablehlo.sort"({operands}) <{{'
        f"dimension = {dimension} : i64, is_stable = {str(stable).lower()}}}> ({{\n"
        f"^bb0({', '.join(names)}):\n{body}\nstablehlo.return %less : tensor<i1>\n"
        f"}}) : ({types}) -> ({types})"
    )
    return modules.form(name, arrays, arrays, text)


def compare(
    result: str, direction: str, a: str, b: str, dtype: str = "i32", kind: str = ""
) -> str:
    kind = kind or (
        "FLOAT" if "f" in dtype else "UNSIGNED" if dtype in ("i1", "ui8") else "SIGNED"
    )
    types = f"(tensor<{dtype}>, tensor<{dtype}>) -> tensor<i1>"
    return f"{result} = stablehlo.compare {direction}, {a}, {b}, {kind} : {types}\n"


def logic(result: str, name: str, *operands: str) -> str:
    return f"{result} = stablehlo.{name} {', '.join(operands)} : tensor<i1>\n"


def then(first: str, equal: str, rest: str) -> str:
    """first or (equal and rest)."""
    return logic("%both", "and", equal, rest) + logic("%less", "or", first, "%both")


LESS = compare("%less", "LT", "%a0", "%b0")
FIRST = compare("%first", "LT", "%a0", "%b0") + compare("%equal", "EQ", "%a0", "%b0")
SELECT = "%less = stablehlo.select %equal, %rest, %first : tensor<i1>, tensor<i1>\n"
UNLIKE = "%less = stablehlo.select %unlike, %first, %rest : tensor<i1>, tensor<i1>\n"
MAGNITUDE = "".join(
    f"%m{s} = stablehlo.abs %{s}0 : tensor<f32>\n"
    f"%k{s} = stablehlo.add %m{s}, %c : tensor<f32>\n"
    for s in "ab"
)


def inputs() -> tuple[np.ndarray, ...]:
    """Integers with many ties, integers, floats without NaN; all [6, 13]."""
    rng = np.random.default_rng(1)
    ties = rng.integers(-2, 3, (6, 13)).astype(np.int32)
    unlike = rng.permutation(78).reshape(6, 13).astype(np.int32)
    return ties, unlike, rng.standard_normal((6, 13)).round(1).astype(np.float32)


def by_keys() -> list[modules.Form]:
    """Comparators that are lexicographic."""
    ties, unlike, real = inputs()
    second = compare("%rest", "GT", "%a1", "%b1")
    constant = "%c = stablehlo.constant dense<1.0> : tensor<f32>\n"
    distinct = compare("%unlike", "NE", "%a0", "%b0")
    return [
        sort_form("ascending", (ties, unlike), LESS),
        sort_form("along_the_last", (ties, unlike), LESS, dimension=1),
        sort_form("swapped", (ties, unlike), compare("%less", "LT", "%b0", "%a0")),
        sort_form("or_equal", (unlike,), compare("%less", "GE", "%a0", "%b0")),
        sort_form("not_stable", (unlike,), LESS, stable=False),
        sort_form(
            "mixed", (ties, unlike), FIRST + second + then("%first", "%equal", "%rest")
        ),
        sort_form(
            "mixed_exchanged",
            (ties, unlike, real),
            FIRST
            + second
            + logic("%both", "and", "%rest", "%equal")
            + logic("%less", "or", "%both", "%first"),
        ),
        sort_form("by_select", (ties, unlike), FIRST + second + SELECT, dimension=1),
        sort_form("by_unequal", (ties, unlike), FIRST + second + distinct + UNLIKE),
        sort_form(
            "floats", (real, ties), compare("%less", "GT", "%a0", "%b0", "f32"), 1
        ),
        sort_form(
            "by_magnitude",
            (real, ties),
            constant + MAGNITUDE + compare("%less", "LT", "%ka", "%kb", "f32"),
        ),
        sort_form(
            "by_second", (ties, real), compare("%less", "LT", "%a1", "%b1", "f32"), 1
        ),
    ]


def by_blocks() -> list[modules.Form]:
    """Comparators that are not lexicographic in form, though strict weak orders."""
    ties, unlike, real = inputs()
    difference = (
        "%d = stablehlo.subtract %a0, %b0 : tensor<i32>\n"
        "%c = stablehlo.constant dense<0> : tensor<i32>\n"
    )
    below = compare("%less", "LT", "%d", "%c")
    at_least = compare("%at", "LE", "%b0", "%a0") + logic("%less", "not", "%at")
    case = (
        "%index = stablehlo.convert %equal : (tensor<i1>) -> tensor<i32>\n"
        '%less = "stablehlo.case"(%index) ({\nstablehlo.return %first : tensor<i1>\n},'
        " {\n" + compare("%in", "LT", "%a1", "%b1") + "stablehlo.return %in : "
        "tensor<i1>\n}) : (tensor<i32>) -> tensor<i1>\n"
    )
    return [
        sort_form("difference", (ties, unlike), difference + below),
        sort_form("difference_last", (ties, real), difference + below, dimension=1),
        sort_form("not_at_least", (ties, unlike, real), at_least, dimension=1),
        sort_form("branches", (ties, unlike), FIRST + case),
        sort_form("one_element", (ties[:1],), difference + below),
        sort_form("empty", (ties[:0],), difference + below),
    ]


@pytest.mark.slow_cases("blocks")
@pytest.mark.parametrize(
    ("forms", "cls"), [(by_keys, Sort), (by_blocks, SortBlock)], ids=["keys", "blocks"]
)
def test_sorts_are_those_of_the_reference(forms, cls):
    given = forms()
    text, arrays = modules.module(given)
    sorts = [i for i in modules.lowered(text).walk() if isinstance(i, Sort | SortBlock)]
    assert [type(i) for i in sorts] == [cls] * len(given)
    outputs, expected = modules.run(text, *arrays), modules.reference(text, *arrays)
    for name, got, want in zip(modules.labels(given), outputs, expected, strict=True):
        floats.same_bits(got, want, name)


def test_total_order():
    """In which the reference interpreter does not compare."""
    x = np.float32([1, -0.0, np.nan, 0, -np.nan, -np.inf, 1e-40, -1e-40, 0])
    order = np.arange(9, dtype=np.int32)
    less = compare("%less", "LT", "%a0", "%b0", "f32", "TOTALORDER")
    text, arrays = modules.module([sort_form("total", (x, order), less)])
    _, indices = modules.run(text, *arrays)
    floats.same_bits(indices, np.int32([4, 5, 7, 1, 3, 8, 6, 0, 2]), "indices")


@pytest.mark.slow
def test_what_looks_like_keys_is_executed():
    ties, unlike, _ = inputs()
    rest = compare("%rest", "LT", "%a1", "%b1")
    other_tie = (
        compare("%first", "LT", "%a0", "%b0")
        + compare("%equal", "EQ", "%a1", "%b1")
        + rest
        + then("%first", "%equal", "%rest")
    )
    unlike_sides = "%n = stablehlo.negate %b0 : tensor<i32>\n" + compare(
        "%less", "LT", "%a0", "%n"
    )
    not_strict = compare("%first", "LE", "%a0", "%b0") + (
        compare("%equal", "EQ", "%a0", "%b0") + rest + then("%first", "%equal", "%rest")
    )
    bodies = dict(other_tie=other_tie, unlike=unlike_sides, not_strict=not_strict)
    forms = [sort_form(n, (ties, unlike), b, 1) for n, b in bodies.items()]
    text, arrays = modules.module(forms)
    classes = [type(i) for i in modules.lowered(text).walk()]
    assert classes.count(SortBlock) == len(forms)
    outputs = modules.run(text, *arrays)
    for name, got in zip(modules.labels(forms)[1::2], outputs[1::2], strict=True):
        floats.same_bits(np.sort(got, 1), np.sort(unlike, 1), f"permutation, {name}")


@pytest.mark.slow
def test_a_long_sort_by_a_block():
    rng = np.random.default_rng(2)
    x, order = (
        rng.integers(-9, 9, 1000).astype(np.int32),
        np.arange(1000, dtype=np.int32),
    )
    body = (
        "%d = stablehlo.subtract %a0, %b0 : tensor<i32>\n"
        "%c = stablehlo.constant dense<0> : tensor<i32>\n"
    ) + compare("%less", "GT", "%d", "%c")
    text, arrays = modules.module([sort_form("long", (x, order), body)])
    values, indices = modules.run_both_ways(text, *arrays)
    expected = np.argsort(-x, kind="stable").astype(np.int32)
    floats.same_bits(indices, expected, "indices")
    floats.same_bits(values, x[expected], "values")


DTYPES = [
    *("int8", "uint32", "bool"),
    *("float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3"),
]


def values(name: str, shape: tuple[int, ...] = (3, 17)) -> np.ndarray:
    """Ties, both zeros, infinities and NaNs of both signs where there are any."""
    rng = np.random.default_rng(3)
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        few = np.array([ends.min, ends.max, 0, 1, ends.max // 2], dtype)
        return rng.choice(few, shape)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    few = np.float32([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, -np.nan, 0.5, 2])
    return rng.choice(few, shape).astype(dtype)


def same_trees(actual: Any, expected: Any) -> None:
    """Equal bits but those of NaNs, which leave an emulated program canonical."""
    wanted = bits.leaves(expected)
    for path, got in bits.leaves(actual).items():
        want = wanted[path]
        if "float8" in got.dtype.name:  # XLA's own sort changes the bits of their NaNs
            got, want = (np.where(np.isnan(v), 0, v) for v in (got, want))
        floats.same_bits(got, want, path)


@pytest.mark.slow
def test_sorts_of_jax_in_every_dtype():
    arrays = {name: jnp.asarray(values(name)) for name in DTYPES}

    def program(arrays: dict[str, Any]) -> dict[str, Any]:
        order = jnp.arange(51, dtype=jnp.int32).reshape(3, 17)
        return {
            name: (
                *lax.sort((x, order), num_keys=1, dimension=1),
                lax.sort((x[:, ::-1], order, x), num_keys=2, dimension=0),
            )
            for name, x in arrays.items()
        }

    same_trees(nj.jit(program)(arrays), jax.jit(program)(arrays))


@pytest.mark.slow
def test_jax_numpy_sorts():
    x, n = values("float32"), values("int8")

    def program(x, n):
        return (
            jnp.sort(x, descending=True),
            jnp.argsort(n, axis=0, descending=True),
            jnp.lexsort((n, x)),
            lax.sort((n < 0, x), num_keys=2),
        )

    same_trees(nj.jit(program)(x, n), jax.jit(program)(x, n))


@pytest.mark.slow
def test_top_k_is_in_total_order():
    few = [name for name in DTYPES if "float8" not in name and name != "bool"]
    arrays = {name: jnp.asarray(values(name)) for name in few}

    def program(arrays: dict[str, Any]) -> dict[str, Any]:
        return {name: lax.top_k(x, 9) for name, x in arrays.items()}

    same_trees(nj.jit(program)(arrays), jax.jit(program)(arrays))


@pytest.mark.slow
def test_top_k_in_narrow_dtypes():
    arrays, expected = {}, {}
    for name in ("float8_e5m2", "float8_e4m3", "bool"):
        x = np.sort(values(name, (40,)).astype(np.float32))
        expected[name] = x[~np.isnan(x)].astype(values(name).dtype)[::-1]
        arrays[name] = np.random.default_rng(4).permutation(expected[name])
    program = nj.jit(lambda arrays: jax.tree.map(lambda x: lax.top_k(x, 5), arrays))
    for name, (got, indices) in program(arrays).items():
        floats.same_bits(got, expected[name][:5], name)
        floats.same_bits(arrays[name][np.asarray(indices)], expected[name][:5], name)


@pytest.mark.slow
def test_approximate_top_k_is_exact():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((7, 300)).astype(np.float32)

    def program(x):
        return (
            lax.approx_max_k(x, 5),
            lax.approx_min_k(x, 3, reduction_dimension=0),
            lax.approx_min_k(x, 4, aggregate_to_topk=False),
        )

    largest, smallest, several = nj.jit(program)(x)
    best = np.argsort(-x, 1)[:, :5].astype(np.int32)
    floats.same_bits(largest[1], best, "largest")
    floats.same_bits(largest[0], np.take_along_axis(x, best, 1), "largest")
    least = np.argsort(x, 0)[:3].astype(np.int32)
    floats.same_bits(smallest[1], least, "smallest")
    floats.same_bits(np.asarray(several[0])[:, :4], np.sort(x, 1)[:, :4], "several")
