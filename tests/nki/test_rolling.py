"""Folding repeats: what is executed stays the same, in the same order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neuronjax.nki.execution import rolling
from neuronjax.nki.execution.accesses import box, relative_elements
from neuronjax.nki.execution.rolling import Node, roll, tabulate
from neuronjax.nki.execution.splitting import Element, Numbering, Repeat, Step
from neuronjax.nki.semantics.registry import Signature


def element(letter: str, value: int, numbering: Numbering) -> Element:
    signature = Signature(letter, "vector", (), (), (), "", False)
    step = Step(signature, (), (), False)
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
            if isinstance(node.kind, Step):
                row = int(node.ints[instance, 0])
                found.append((node.kind.signature.name, row))
            else:
                first = int(node.starts[instance])
                turns = range(first, first + int(node.counts[instance]))
                found += execution(node.body, turns)
    return found


def bodies(nodes) -> int:
    return sum(1 if isinstance(n.kind, Step) else bodies(n.body) for n in nodes)


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
    assert [type(n.kind) for n in nodes] == [Step, Repeat]
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
