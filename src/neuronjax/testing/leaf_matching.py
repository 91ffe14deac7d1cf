"""The matching of today's arrays with the stored ones, even if their names changed.

A refactoring may rename an attribute, and JAX then passes the arrays in another order.
So leaves are matched by position, or by name if that gives fewer differences; then
leaves whose name is only in one of the two lists are matched in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neuronjax.testing.bits import LeafDifference


@dataclass(frozen=True, kw_only=True)
class LeafMatch:
    """Today's leaves matched with stored ones."""

    differences: tuple[LeafDifference, ...] = ()  # the largest first
    #: For every leaf of today, the index of its stored leaf; empty if counts differ.
    order: tuple[int, ...] = ()
    renamed: tuple[str, ...] = ()  # new names, such as "p/fc1 -> p/fc2"

    @property
    def are_types_equal(self) -> bool:
        """Whether all leaves match in number, dtype and shape."""
        return not any(leaf.what for leaf in self.differences)


def match(
    what: str,
    then: Sequence[str],
    now: Sequence[str],
    differ: Callable[[int, int], LeafDifference | None],
) -> LeafMatch:
    """Match leaves of a kind, such as "arguments", by the paths of the stored leaves
    and of today's. `differ` returns the difference of two of them, by index."""
    if len(then) != len(now):
        sides = ("without", then, now), ("with", now, then)
        lists = ((word, [p for p in a if p not in b]) for word, a, b in sides)
        names = "; ".join(f"{how} {', '.join(paths)}" for how, paths in lists if paths)
        counts = f"{len(now)}, expected {len(then)}: {names}"
        return LeafMatch(differences=(LeafDifference(path=what, what=counts),))
    orders = []
    for order in dict.fromkeys((tuple(range(len(now))), _by_name(then, now))):
        leaves = [leaf for n, i in enumerate(order) if (leaf := differ(i, n))]
        pairs = ((then[i], now[n]) for n, i in enumerate(order))
        renamed = tuple(f"{old} -> {new}" for old, new in pairs if old != new)
        ordered = sorted(leaves, key=lambda leaf: leaf.badness, reverse=True)
        found = LeafMatch(differences=tuple(ordered), order=order, renamed=renamed)
        orders.append(found)
    return min(orders, key=lambda each: len(each.differences))


def _by_name(then: Sequence[str], now: Sequence[str]) -> tuple[int, ...]:
    if len(set(then)) < len(then) or len(set(now)) < len(now):
        return tuple(range(len(now)))  # names are ambiguous
    places = {path: n for n, path in enumerate(then)}
    unmatched = (n for path, n in places.items() if path not in now)
    return tuple(places[path] if path in places else next(unmatched) for path in now)
