"""The order in which a function adds: its summation tree, found by probing.

The method is FPRev ("Revealing the order of floating-point summation", P. Xie et al.,
2024). Of n addends one is huge, another its negative, and all others are one unit. A
unit is lost in a partial sum with only one of the two huge addends, and survives if it
is added after both. So the sum counts the addends outside the smallest subtree with
both huge addends. The tree follows from these counts. The implementation is a black
box: an emulated chip, the host, or any function of an array.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.errors import InvalidProgramError

#: The index of an addend (a leaf), or a tuple of nodes, sorted by their first leaves.
Node = int | tuple["Node", ...]


@dataclass(frozen=True)
class SummationTree:
    """The tree of the additions that a sum consists of.

    Attributes:
        root: nested tuples of indices. A tuple of two is an addition; a longer tuple
            has addends that the implementation adds in one step.
        is_compensated: whether the error of an addition is restored later, as in
            Kahan's sum, or the sum has more bits than the dtype. The tree then has the
            order of additions, but the result is not rounded after each addition.
    """

    root: Node
    is_compensated: bool = False

    @property
    def addends(self) -> int:
        """Return the number of addends."""
        return len(_leaves(self.root))

    @property
    def depth(self) -> int:
        """Return the number of consecutive additions on the longest path."""
        return max(depth for _, depth in _nodes(self.root))

    @property
    def is_left_fold(self) -> bool:
        """Return whether the tree is ((0 + 1) + 2) + ..."""
        return self.root == left_fold(range(self.addends))

    def __str__(self) -> str:
        return _text(self.root) + ", compensated" * self.is_compensated


def left_fold(nodes: Sequence[Node]) -> Node:
    """Return the tree ((a + b) + c) + ... of the nodes a, b, c, ..."""
    total, *rest = nodes
    for node in rest:
        total = (total, node)
    return total


@dataclass(frozen=True)
class SummationProbe:
    """The values that addends take, and the number of units that a sum can count.

    Attributes:
        huge: a number that absorbs a unit when both are added.
        unit: the value of the addends that are counted.
        exact_units: the largest number of units whose sum is exact.
    """

    huge: float
    unit: float
    exact_units: int


#: Probes by dtype of addends and sums: `huge` is a power of two whose ULP exceeds the
#: sum of all units. Up to 2**p units are exact in a significand of p bits.
PROBES = {
    "float32": SummationProbe(huge=2.0**100, unit=1.0, exact_units=2**24),
    "bfloat16": SummationProbe(huge=2.0**100, unit=1.0, exact_units=2**8),
    "float16": SummationProbe(huge=2.0**15, unit=2.0**-14, exact_units=2**11),
}


def reveal_order(
    function: Callable[[np.ndarray], Any],
    addends: int,
    *,
    dtype: str = "float32",
    probe: SummationProbe | None = None,
) -> SummationTree:
    """Return the summation tree of a function that adds the elements of an array.

    The number of calls is between `addends - 1` (for a left fold) and addends^2 / 2. A
    dot product works too: let `function` multiply the array by ones. Narrow operands
    whose products are added in a wider format need another probe, such as
    `SummationProbe(240.0, 2.0**-9, 2**24)` for FP8 products in FP32.

    A compensated sum has the tree of the plain sum. A further call with three nonzero
    addends detects a compensated sum, if the tree has two consecutive additions that
    round to nearest and the probe's `huge` is at least `unit * exact_units`.

    Args:
        function: takes a NumPy array float64 [addends], which it may cast to `dtype`
            without rounding; returns the sum, a scalar.
        addends: number of addends, from 1.
        dtype: dtype of partial sums: float32, bfloat16 or float16.
        probe: the values to use, for other formats.

    Raises:
        InvalidProgramError: an unknown dtype, no addends, or results that no summation
            tree explains: the function does not add, or its order depends on values.
    """
    if probe is None and dtype not in PROBES:
        raise InvalidProgramError(
            f"no probe for sums in {dtype!r}",
            remedy=f"give a probe, or one of the dtypes {', '.join(PROBES)}",
        )
    if addends < 1:
        raise InvalidProgramError(
            f"the order of {addends} addends", remedy="give at least one addend"
        )
    prober = _Prober(function, addends, probe or PROBES[dtype])
    children = prober.build(list(range(addends)))
    root = children[0] if len(children) == 1 else tuple(children)
    return SummationTree(root, is_compensated=prober.is_compensated(root))


@dataclass(frozen=True)
class _Prober:
    function: Callable[[np.ndarray], Any]
    addends: int
    probe: SummationProbe

    def build(self, leaves: list[int], limit: int | None = None) -> list[Node]:
        """Split `leaves` among the children of a node of `limit` leaves. Return the
        children. Two leaves are in different children if their smallest common subtree
        has `limit` leaves. If `limit` is None, return a list with one tree."""
        first, *others = leaves
        node: Node = first
        rest: list[int] = []
        count = 1
        sizes = {other: self.common(first, other) for other in others}
        for size in sorted(set(sizes.values())):
            met = [other for other in others if sizes[other] == size]
            if size == limit:
                rest = met
                break
            count += len(met)
            if count != size:
                raise self._no_tree()
            node = (node, *self.build(met, size))
        return [node, *(self.build(rest, limit) if rest else [])]

    def common(self, i: int, j: int) -> int:
        """Return the number of leaves of the smallest subtree with `i` and `j`."""
        others = [k for k in range(self.addends) if k not in (i, j)]
        step = self.probe.exact_units
        blocks = [others[b : b + step] for b in range(0, len(others), step)]
        return self.addends - sum(self._surviving(i, j, block) for block in blocks)

    def _surviving(self, i: int, j: int, units: list[int]) -> int:
        """Return how many of `units` are outside the smallest subtree with i and j."""
        x = np.zeros(self.addends)
        x[units] = self.probe.unit
        x[i], x[j] = self.probe.huge, -self.probe.huge
        total = np.asarray(self.function(x))
        if total.shape:
            raise InvalidProgramError(
                f"the function returned an array of shape {total.shape}",
                remedy="return the sum, a scalar: f(x)[0] or f(x).reshape(())",
            )
        count = float(total) / self.probe.unit
        if not (0 <= count <= len(units) and count == int(count)):
            raise self._no_tree()
        return int(count)

    def is_compensated(self, root: Node) -> bool:
        """Return whether the sum keeps units that a plain sum in this order loses. The
        test adds two units to the number `exact_units * unit`, one after the other.
        Each unit is half a ULP, so a plain sum that rounds to nearest even or toward
        zero loses both."""
        large = self.probe.unit * self.probe.exact_units
        chosen = _one_after_the_other(root)
        if chosen is None or large > self.probe.huge:
            return False
        first, *later = chosen
        x = np.zeros(self.addends)
        x[first], x[later] = large, self.probe.unit
        return float(np.asarray(self.function(x))) != large

    def _no_tree(self) -> InvalidProgramError:
        return InvalidProgramError(
            f"no order of adding {self.addends} numbers explains what was returned",
            remedy="check that the function adds all elements once, in an order that "
            "does not depend on their values, and rounds sums to the probe's dtype",
        )


def _one_after_the_other(root: Node) -> tuple[int, int, int] | None:
    """Return a leaf of a, of b and of c, if (a + b) + c is in the tree; else None."""
    waiting: list[tuple[Node, int | None]] = [(root, None)]
    while waiting:
        node, outside = waiting.pop()
        if isinstance(node, int):
            continue
        is_pair = len(node) == 2
        if is_pair and outside is not None:
            first, second = node
            return _leaves(first)[0], _leaves(second)[0], outside
        for n, child in enumerate(node):
            later = _leaves(node[1 - n])[0] if is_pair else outside
            waiting.append((child, later))
    return None


def _nodes(root: Node) -> list[tuple[Node, int]]:
    """Return every subtree and its depth, left to right, parents first."""
    found, waiting = [], [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        found.append((node, depth))
        if not isinstance(node, int):
            waiting += [(child, depth + 1) for child in reversed(node)]
    return found


def _leaves(root: Node) -> list[int]:
    return [node for node, _ in _nodes(root) if isinstance(node, int)]


def _text(node: Node) -> str:
    """Return text such as `0..127 + (128..255) + 256`, evaluated from the left."""
    if isinstance(node, int):
        return str(node)
    if len(node) > 2:
        return f"sum({', '.join(map(_text, node))})"
    return " + ".join(_runs(_spine(node)))


def _spine(node: Node) -> list[Node]:
    """Return the terms a, b, c of (a + b) + c, descending into the larger child."""
    added: list[Node] = []
    sizes = _sizes(node)
    while not isinstance(node, int) and len(node) == 2:
        small, large = sorted(node, key=lambda child: sizes[_key(child)])
        if sizes[_key(small)] == sizes[_key(large)]:
            break
        added.append(small)
        node = large
    start = node if isinstance(node, tuple) and len(node) == 2 else (node,)
    spine = [*start, *reversed(added)]
    match spine:
        case [int(a), int(b), int(c), *_] if b == a + 1 and c == a - 1:
            spine[:2] = [b, a]
    return spine


def _sizes(root: Node) -> dict[Any, int]:
    sizes: dict[Any, int] = {}
    for node, _ in reversed(_nodes(root)):
        children = () if isinstance(node, int) else node
        sizes[_key(node)] = sum(sizes[_key(c)] for c in children) if children else 1
    return sizes


def _key(node: Node) -> Any:
    """Return an index, or the id of a tuple, since hashing a nested tuple is slow."""
    return node if isinstance(node, int) else ("node", id(node))


def _runs(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield nodes as text, with a range for three or more consecutive leaves."""
    at = 0
    while at < len(nodes):
        node = nodes[at]
        length = max(_counting(nodes[at:], step) for step in (1, -1))
        if length > 2:
            yield f"{node}..{nodes[at + length - 1]}"
            at += length
            continue
        yield str(node) if isinstance(node, int) else f"({_text(node)})"
        at += 1


def _counting(nodes: Sequence[Node], step: int) -> int:
    if not isinstance(nodes[0], int):
        return 0
    pairs = zip(nodes, itertools.count(nodes[0], step), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
