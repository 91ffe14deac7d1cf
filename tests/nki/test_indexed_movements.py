"""Movements whose rows the run chooses, against an oracle of plain loops.

Every instruction of the DMA engines, gathering and scattering, by patterns that are
boxes of the memory and patterns that are none, indices within bounds and beyond."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from neuronjax.nki import isa as nisa, language as nl
from tests.oracles.indexed_movement import View, has_illegal, move

ROWS = [3, 0, 999, 7, 1, 2**31 + 5, 39, 4, 40, 5, 6, 8, 9, 10, 11, 12]  # of 40
LEGAL = [i % 40 for i in ROWS]


def column(values):
    return [[v] for v in values]


def columns(values, partitions):
    """[partitions, K] whose columns follow one another."""
    return np.reshape(values, (-1, partitions)).T.tolist()


class Case(NamedTuple):
    """A movement.

    Attributes:
        name: of the instruction.
        memory, target: the shape of dst's memory, and its view.
        source, view: the same of what is read.
        on_chip: which of the two memories is in SBUF: "", "dst" or "src".
        axes: of `dma_transpose`.
        dim: of the index.
        dtype: of both.
    """

    name: str
    memory: tuple
    target: View
    source: tuple
    view: View
    on_chip: str = "dst"
    axes: tuple | None = None
    dim: int = 0
    dtype: str = "float32"


def gathered(rows, *rest, stride=6, limit=40, offset=0):
    index = column(rows)
    return View([(stride, len(rows)), *rest], offset, index, stride, limit)


def dense(*shape):
    strides = [int(np.prod(shape[n + 1 :])) for n in range(len(shape))]
    return View([*zip(strides, shape, strict=True)])


def transposing(count, partitions, shape=(40, 24), values=None):
    """A gathering `dma_transpose` of `count` rows by an index [partitions, K]."""
    values = [*range(count)] if values is None else values
    index = columns(values, partitions)
    view = dense(count, *shape[1:])
    view = view._replace(chosen=index, stride=view.pattern[0][0], limit=shape[0])
    axes = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[len(shape)]
    out = tuple([(count, *shape[1:])[a] for a in axes])
    return Case("dma_transpose", out, dense(*out), shape, view, "dst", axes, 0, "int16")


def repeated(count, spoilt=()):
    found = [(7 * n + 3) % 40 for n in range(count)]
    for n in spoilt:
        found[n] = 77
    return found


CASES = {
    "gather": Case("dma_copy", (16, 6), dense(16, 6), (40, 6), gathered(ROWS, (1, 6))),
    "gather a part of rows": Case(
        "dma_copy", (16, 3), dense(16, 3), (40, 6), gathered(ROWS, (2, 3), offset=1)
    ),
    "gather pairs of rows": Case(
        "dma_copy", (16, 12), dense(16, 12), (40, 6), gathered(ROWS, (1, 12))
    ),
    "gather backwards": Case(
        "dma_copy", (16, 6), dense(16, 6), (40, 6), gathered(ROWS, (-1, 6), offset=5)
    ),
    "scatter": Case(
        "dma_copy", (40, 6), gathered(ROWS, (1, 6)), (16, 6), dense(16, 6), "src"
    ),
    "scatter a part of rows": Case(
        "dma_copy",
        (40, 6),
        gathered(ROWS, (3, 2), offset=2),
        (16, 6),
        View([(6, 16), (1, 2)]),
        "src",
    ),
    "scatter in HBM": Case(
        "dma_copy", (40, 6), gathered(ROWS, (1, 6)), (16, 6), dense(16, 6), ""
    ),
    "one row": Case(
        "dma_copy",
        (4, 6),
        dense(4, 6),
        (40, 6),
        View([(6, 4), (1, 6)], 0, 5, 6, 40),
    ),
    "the last rows": Case(
        "dma_copy",
        (4, 6),
        dense(4, 6),
        (40, 6),
        View([(6, 4), (1, 6)], 0, 38, 6, 40),
    ),
    "a row too far": Case(
        "dma_copy", (1, 6), dense(1, 6), (40, 6), View([(6, 1), (1, 6)], 0, 40, 6, 40)
    ),
    "a row before the first": Case(
        "dma_copy",
        (40, 6),
        View([(6, 2), (5, 2)], 0, -1, 6, 40),
        (2, 2),
        dense(2, 2),
        "src",
    ),
    "a column": Case(
        "dma_copy",
        (40, 2),
        dense(40, 2),
        (40, 6),
        View([(6, 40), (2, 2)], 0, 3, 1, 6),
        dim=1,
    ),
    "write a column": Case(
        "dma_copy",
        (40, 6),
        View([(6, 40), (1, 1)], 0, 5, 1, 6),
        (40, 1),
        dense(40, 1),
        "dst",
        dim=1,
    ),
    "write a column too far": Case(
        "dma_copy",
        (40, 6),
        View([(6, 40), (1, 1)], 0, 6, 1, 6),
        (40, 1),
        dense(40, 1),
        "dst",
        dim=1,
    ),
    "turn 16 rows": transposing(16, 16, values=ROWS),
    "turn 64 rows": transposing(64, 64, values=repeated(64, (3, 40))),
    "turn some of the rows": transposing(16, 32, values=repeated(32, (5, 20))),
    "turn columns of indices": transposing(256, 128, values=repeated(256, (2, 200))),
    "turn three dimensions": transposing(16, 16, (40, 3, 8), ROWS),
    "turn four dimensions": transposing(32, 32, (40, 1, 3, 8), repeated(32, (9,))),
    "add to a gather": Case(
        "dma_compute", (16, 6), dense(16, 6), (40, 6), gathered(ROWS, (1, 6))
    ),
    "add to a scatter": Case(
        "dma_compute", (40, 6), gathered(ROWS, (1, 6)), (16, 6), dense(16, 6), "src"
    ),
}
FEW = ("scatter in HBM", "write a column too far", "turn some of the rows")


def kernel(case, mode):
    """A kernel of dst's memory, src's memory and the index that leaves dst's."""

    def viewed(t, view, index):
        if view.chosen is None:
            return t.ap(view.pattern, offset=view.offset)
        how = "vector_offset" if isinstance(view.chosen, list) else "scalar_offset"
        how = {how: index, "indirect_dim": case.dim}
        return t.ap(view.pattern, offset=view.offset, **how)

    def placed(a, name):
        where = nl.sbuf if case.on_chip == name else nl.shared_hbm
        t = nl.ndarray(a.shape, a.dtype, buffer=where)
        nisa.dma_copy(t, a)
        return t

    @nki.jit(platform_target="trn2")
    def moving(memory, source, index):
        found = nl.ndarray(index.shape, index.dtype, buffer=nl.sbuf)
        nisa.dma_copy(found, index)
        t = placed(memory, "dst")
        dst = viewed(t, case.target, found)
        src = viewed(placed(source, "src"), case.view, found)
        if case.name == "dma_compute":
            nisa.dma_compute(dst, [dst, src], nl.add, oob_mode=mode)
        else:
            getattr(nisa, case.name)(dst, src, oob_mode=mode)
        out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, t)
        return out

    return moving


def arguments(case, rows=None):
    draw = np.random.default_rng(0)
    shapes = (case.memory, case.source)
    arrays = [draw.integers(1, 1000, shape).astype(case.dtype) for shape in shapes]
    index = next(v.chosen for v in (case.view, case.target) if v.chosen is not None)
    index = np.array(index if rows is None else rows)
    signed = index.ndim == 0
    return *arrays, index.reshape(-1, 1 if signed else index.shape[1]).astype(
        np.int32 if signed else np.uint32
    )


def expected(case, memory, source):
    add = case.name == "dma_compute"
    flat = (memory.ravel().tolist(), source.ravel().tolist())
    found = move(flat[0], case.target, flat[1], case.view, case.axes, add)
    return np.array(found, memory.dtype).reshape(memory.shape)


def illegal(case):
    sizes = [int(np.prod(case.memory)), int(np.prod(case.source))]
    views = zip((case.target, case.view), sizes, strict=True)
    return any(has_illegal(v, n) for v, n in views)


@pytest.mark.slow_except(*FEW)
@pytest.mark.parametrize("name", CASES)
def test_indices_out_of_bounds_are_skipped(name):
    case = CASES[name]
    given = arguments(case)
    made = kernel(case, nisa.oob_mode.skip)
    wanted = expected(case, *given[:2])
    np.testing.assert_array_equal(made(*given), wanted)
    with jax.disable_jit():
        np.testing.assert_array_equal(made(*given), wanted)


@pytest.mark.slow_except(*FEW)
@pytest.mark.parametrize("name", CASES)
def test_indices_out_of_bounds_are_errors_by_default(name):
    case = CASES[name]
    given = arguments(case)
    made = kernel(case, nisa.oob_mode.error)
    for eager in (False, True):
        with jax.disable_jit(eager):
            if not illegal(case):
                wanted = expected(case, *given[:2])
                np.testing.assert_array_equal(made(*given), wanted)
                continue
            with pytest.raises(InvalidProgramError, match="out of bounds"):
                made(*given)


def test_a_copy_takes_one_index_for_each_row():
    case = CASES["gather"]
    memory, source, index = arguments(case)
    made = kernel(case, nisa.oob_mode.skip)
    for count in (8, 17):
        rows = np.resize(index, (count, 1))
        with pytest.raises(InvalidProgramError, match=f"{count} indices for 16 rows"):
            made(memory, source, rows)
