"""Folding repeats: what is executed stays the same, in the same order."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, strategies as st

import neuronjax as nj
import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.execution.kernels import rolling
from neuronjax.execution.kernels.accesses import box, relative_elements
from neuronjax.execution.kernels.rolling import Node, roll, tabulate
from neuronjax.execution.kernels.splitting import (
    Counted,
    Dispatch,
    Element,
    KernelStep,
    Numbering,
    Repeat,
)
from neuronjax.execution.tiles.registry import Signature
from tests.execution.kernels.rolled import bodies, executed


def element(letter: str, value: int, numbering: Numbering) -> Element:
    signature = Signature(letter, "vector", (), (), (), "", False)
    step = KernelStep(signature, (), (), False)
    return Element(step, numbering.of(step), (value,))


def rolled(text: str) -> list[Node]:
    """Letters are signatures; the row is the position."""
    numbering = Numbering()
    elements = [element(c, n, numbering) for n, c in enumerate(text)]
    return [tabulate([e]) for e in roll(elements, numbering)]


def execution(nodes, instances) -> list[tuple[str, int]]:
    """(letter, row) in the order of execution."""
    found = []
    for instance in instances:
        for node in nodes:
            if isinstance(node.kind, KernelStep):
                row = int(node.ints[instance, 0])
                found.append((node.kind.signature.name, row))
            elif isinstance(node.kind, Dispatch):
                for n, ordinal in zip(node.kind.kinds, node.kind.ordinals, strict=True):
                    one = instance * node.kind.counts[n] + ordinal
                    found += execution([node.body[n]], [one])
            else:
                first = int(node.starts[instance])
                turns = range(first, first + int(node.counts[instance]))
                found += execution(node.body, turns)
    return found


NESTS = st.recursive(
    st.text("abc", min_size=1, max_size=4),
    lambda inner: st.tuples(
        st.lists(inner, min_size=1, max_size=3), st.integers(1, 5)
    ).map(lambda nest: "".join(nest[0]) * nest[1]),
    max_leaves=6,
)


@given(NESTS)
def test_the_order_of_execution_stays(text):
    text = text[:400]
    nodes = rolled(text)
    assert execution(nodes, [0]) == [(c, n) for n, c in enumerate(text)]


def test_nests_come_back():
    matmul = ("lr" + "m" * 1) * 8 + "cs"
    nodes = rolled("z" + matmul * 64)
    assert bodies(nodes) == 6
    assert [type(n.kind) for n in nodes] == [KernelStep, Repeat]
    assert nodes[1].counts.tolist() == [64]
    assert [len(n.ints) for n in nodes[1].body[1:]] == [64, 64]


def test_triangular_loops_fold():
    text = "".join("ab" * n + "c" for n in range(3, 40))
    nodes = rolled(text)
    assert bodies(nodes) == 3
    assert nodes[0].body[0].counts.tolist() == list(range(3, 40))


def test_long_sequences_are_quick():
    assert bodies(rolled(("x" + "ab" * 50 + "y" * 7) * 200)) == 4


def test_short_runs_are_left_alone():
    assert bodies(rolled("aabbcc")) == 6
    assert rolling.FEWEST_SAVED > 1


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 24]), st.integers(1, 6)),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 40),
)
def test_a_box_shows_the_elements_of_its_pattern(pairs, offset):
    """Slicing, skipping and transposing a dense array, in NumPy."""
    total, pattern = 240, tuple(pairs)
    elements = relative_elements(pattern) + offset
    found = box(total, pattern)
    if elements.max() >= total or found is None:
        return
    starts = found.starts(offset)
    if not found.fits(starts):
        return
    dense = np.arange(np.prod(found.sizes)).reshape(found.sizes)
    windows = zip(starts, found.extents, found.steps, strict=True)
    part = dense[tuple(slice(s, s + e, t) for s, e, t in windows)]
    used = [d for d in found.source if d is not None]
    part = part.reshape([part.shape[d] for d in sorted(used)])
    part = part.transpose([sorted(used).index(d) for d in used])
    shape = [n if d is not None else 1 for n, d in zip(found.shape, found.source)]
    shown = np.broadcast_to(part.reshape(shape), found.shape)
    np.testing.assert_array_equal(shown, elements)


def test_common_views_are_boxes():
    """Tiles of a matrix in HBM, columns of a tile, strided and permuted views."""
    for pattern in (
        ((1024, 128), (1, 512)),
        ((2048, 128), (16, 4), (1, 16)),
        ((2048, 128), (2, 1024)),
        ((2048, 128), (1, 16), (16, 128)),
        ((2048, 1), (0, 7), (1, 5)),
    ):
        assert box(2048 * 1024, pattern) is not None


def disordered(length: int, letters: str = "abcdef", seed: int = 0) -> str:
    """Nothing in it repeats for long."""
    return "".join(np.random.default_rng(seed).choice(list(letters), length))


@pytest.mark.parametrize("length", [300, 1500])
def test_a_long_list_of_a_few_kinds_is_dispatched(length):
    text = disordered(length)
    nodes = rolled(text)
    assert execution(nodes, [0]) == [(c, n) for n, c in enumerate(text)]
    assert [type(n.kind) for n in nodes] == [Dispatch]
    assert bodies(nodes) < 30  # letters, and runs of equal ones


def test_a_long_list_of_many_kinds_is_not():
    many = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    assert [type(n.kind) for n in rolled(many)] == [KernelStep] * 300


def test_a_dispatch_in_the_body_of_a_loop():
    numbering = Numbering()
    text = disordered(400)
    body = [element(c, n, numbering) for n, c in enumerate(text)]
    loop = Element(Counted(False, False, 1), -1, (0, 0, 2), turns=[body])
    (node,) = [tabulate([e]) for e in roll([loop], numbering)]
    assert isinstance(node.body[0].kind, Dispatch)
    assert execution(node.body, [0]) == [(c, n) for n, c in enumerate(text)]


OPERATORS = {"a": nl.add, "b": nl.multiply, "c": nl.subtract, "d": nl.maximum}


@nki.jit
def shuffled(x, order: str):
    """Some of four operations after another on some of four tiles, in any order."""
    tiles = [nl.load(x[32 * n : 32 * n + 32]) for n in range(4)]
    for n, letter in enumerate(order):
        to, one, other = n % 4, (n + 1) % 4, (3 * n + 2) % 4
        nisa.tensor_tensor(tiles[to], tiles[one], tiles[other], OPERATORS[letter])
        nisa.tensor_scalar(tiles[to], tiles[to], nl.minimum, 1.0 + n)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for n, tile in enumerate(tiles):
        nl.store(out[32 * n : 32 * n + 32], tile)
    return out


def dispatched() -> tuple[np.ndarray, str]:
    """Arguments of `shuffled` of which most instructions are dispatched."""
    x = np.random.default_rng(1).normal(size=(128, 4)).astype("float32")
    return x, disordered(160, "".join(OPERATORS), seed=2)


@pytest.mark.slow
def test_a_dispatched_kernel_computes_what_its_instructions_do():
    x, order = dispatched()
    found = shuffled(x, order)
    plan = shuffled.plan(x, order)
    assert bodies(plan.nodes) < 80 < executed(plan.nodes)
    assert any(isinstance(node.kind, Dispatch) for node in plan.nodes)
    with jax.disable_jit():
        np.testing.assert_array_equal(found, shuffled(x, order))
    functions = {"a": np.add, "b": np.multiply, "c": np.subtract, "d": np.maximum}
    tiles = list(x.reshape(4, 32, 4))
    for n, letter in enumerate(order):
        made = functions[letter](tiles[(n + 1) % 4], tiles[(3 * n + 2) % 4])
        tiles[n % 4] = np.minimum(made, np.float32(1 + n))
    np.testing.assert_array_equal(found, np.concatenate(tiles))


@pytest.mark.slow
def test_a_dispatched_kernel_in_a_program_computes_the_same():
    x, order = dispatched()

    def composed(y):
        return shuffled(y * 0.5, order).sum(1) / 3.0

    step = nj.jit(composed, target="trn3")
    compiled = np.asarray(step(2 * x))
    with jax.disable_jit():
        np.testing.assert_array_equal(compiled, np.asarray(step(2 * x)))
