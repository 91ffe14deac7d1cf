"""Leaves are matched by position and by name, whichever leaves fewer differences."""

from __future__ import annotations

from neuronjax.testing.bits import LeafDifference
from neuronjax.testing.leaf_matching import match


def matched(then, now):
    """Match two dictionaries of path and value."""
    a, b = [*then.items()], [*now.items()]

    def differ(i, n):
        equal = a[i][1] == b[n][1]
        return None if equal else LeafDifference(path=b[n][0], differing=1, compared=1)

    return match("arguments", [*then], [*now], differ)


def test_equal_names_match_and_differ_by_value():
    found = matched({"a": 1, "b": 2}, {"a": 1, "b": 2})
    assert (found.differences, found.order, found.renamed) == ((), (0, 1), ())
    found = matched({"a": 1, "b": 2}, {"a": 1, "b": 3})
    assert [leaf.path for leaf in found.differences] == ["b"]


def test_renamed_leaves_are_matched_by_value_and_order():
    assert matched({"a": 1, "b": 2}, {"a": 1, "c": 2}).renamed == ("b -> c",)
    # And so another place.
    found = matched({"a": 1, "b": 2, "c": 3}, {"b": 2, "c": 3, "z": 1})
    assert (found.differences, found.order) == ((), (1, 2, 0))
    assert found.renamed == ("a -> z",)
    # Two names that were exchanged, with the values at their places.
    assert matched({"a": 1, "b": 2}, {"b": 1, "a": 2}).differences == ()


def test_other_numbers_of_leaves_name_the_missing_ones():
    found = matched({"a": 1, "b": 2}, {"a": 1})
    assert str(found.differences[0]) == "arguments: 1, expected 2: without b"
    assert not found.are_types_equal
    assert "without b; with c, d" in str(
        matched({"a": 1, "b": 2}, {"a": 1, "c": 1, "d": 2}).differences[0]
    )
