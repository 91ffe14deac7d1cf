"""`BoxMap` finds what a walk over all boxes finds."""

import pytest
from hypothesis import given, settings, strategies as st

from neuronjax.timing.kernel_dependencies import BoxMap
from neuronjax.timing.kernel_operands import contains, overlap

SHAPE = (8, 3, 64)


def _ranges(size):
    pairs = st.tuples(st.integers(0, size - 1), st.integers(1, size))
    return pairs.map(lambda p: (p[0], min(size, p[0] + p[1])))


BOXES = st.none() | st.tuples(*map(_ranges, SHAPE))
STEPS = st.lists(st.tuples(st.sampled_from(["add", "add", "drop"]), BOXES), max_size=30)


@pytest.mark.slow
@given(steps=STEPS, asked=BOXES, shape=st.sampled_from([SHAPE, ()]))
@settings(max_examples=300, deadline=None)
def test_a_map_is_a_list_of_boxes(steps, asked, shape):
    found, expected = BoxMap(shape), []
    for entry, (what, b) in enumerate(steps):
        if what == "drop":
            found.drop_within(b)
            expected = [pair for pair in expected if not contains(b, pair[0])]
            continue
        found.add(b, entry)
        expected.append((b, entry))
    assert set(found.meeting(asked)) == {e for b, e in expected if overlap(b, asked)}
    assert set(found.entries()) == {e for _, e in expected}


def test_pieces_of_a_tile_are_found_in_a_cell_or_two():
    pieces = BoxMap((128, 4096))
    for n in range(32):
        pieces.add(((0, 128), (n * 128, n * 128 + 128)), n)
    assert pieces.meeting(((0, 128), (256, 384))) == [2]
    assert pieces.meeting(((0, 64), (300, 700))) == [2, 3, 4, 5]
    assert len(pieces._cells) == 32
