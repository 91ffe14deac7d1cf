"""Which op of one program is which of another, and what of the rest is an edit.

The rows of ops are aligned by the longest common subsequence of their fingerprints.
What is left between two pairs is paired by name and types, an op whose attributes were
changed, then by the types of the results alone, an op in place of another.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuronjax.diagnostics.edits.canonical_text import CONTROL
from neuronjax.diagnostics.edits.changed_attributes import CONSTANT
from neuronjax.diagnostics.edits.flattening import FlatOp, FlatProgram
from neuronjax.ir.program import Value

_Way = tuple[Callable[[FlatOp], Hashable], str]
#: What is equal for ops that make a pair, and what the pair then is.
_WAYS: tuple[_Way, ...] = (
    (lambda o: o.fingerprint, "same"),
    (lambda o: o.kind, "changed"),
    (lambda o: (o.op.name in CONTROL, o.types), "replaced"),
)


@dataclass(frozen=True, eq=False)
class AlignedPair:
    """An op before and after.

    Attributes:
        how: "same", "changed" (its attributes or module), "replaced" by another op, or
            "rewired" (the same op of other values).
    """

    before: FlatOp
    after: FlatOp
    how: str


@dataclass(frozen=True, eq=False)
class Alignment:
    """Two programs, op by op.

    Attributes:
        pairs: in the order of the second program.
        removed, added: ops without a partner.
    """

    before: FlatProgram
    after: FlatProgram
    pairs: tuple[AlignedPair, ...]
    removed: tuple[FlatOp, ...]
    added: tuple[FlatOp, ...]

    @property
    def is_edit(self) -> bool:
        """Whether most of the smaller program is in the other, as after an edit."""
        sides = (self.before.ops, self.after.ops)
        fewest = min(sum(o.op.name != CONSTANT for o in ops) for ops in sides)
        same = (p for p in self.pairs if p.how == "same")
        return 2 * sum(p.after.op.name != CONSTANT for p in same) >= fewest


def aligned(before: FlatProgram, after: FlatProgram) -> Alignment:
    """Pair the ops of two programs."""
    left, right = before.ops, after.ops
    pairs = [*_pairs(left, right, _WAYS)]
    # The pair that an op is in.
    of_left = {a: n for n, (a, _, _) in enumerate(pairs)}
    of_right = {b: n for n, (_, b, _) in enumerate(pairs)}

    def is_rewired(a: FlatOp, b: FlatOp) -> bool:
        """Return whether two operands are made by ops that have other partners.

        An operand that an op without a partner makes is no question of wiring: that op
        is the edit."""
        for v, w in zip(a.op.operands, b.op.operands, strict=True):
            first = _origin(v, before, of_left)
            second = _origin(w, after, of_right)
            if first != second and None not in (first, second):
                return True
        return False

    return Alignment(
        before,
        after,
        tuple(
            AlignedPair(a, b, "rewired" if how == "same" and is_rewired(a, b) else how)
            for a, b, how in pairs
        ),
        tuple(o for o in left if o not in of_left),
        tuple(o for o in right if o not in of_right),
    )


def _pairs(
    left: Sequence[FlatOp], right: Sequence[FlatOp], ways: Sequence[_Way]
) -> Iterator[tuple[FlatOp, FlatOp, str]]:
    """Yield the pairs of two rows by the first way, and by the next those of what is
    left between them."""
    if not ways:
        return
    key, how = ways[0]
    i = j = 0
    for a, b in common([*map(key, left)], [*map(key, right)]):
        yield from _pairs(left[i:a], right[j:b], ways[1:])
        yield left[a], right[b], how
        i, j = a + 1, b + 1
    yield from _pairs(left[i:], right[j:], ways[1:])


def common(
    left: Sequence[Hashable], right: Sequence[Hashable]
) -> list[tuple[int, int]]:
    """Return indices of a longest common subsequence of two sequences, ascending.

    This is the algorithm of Hunt and Szymanski (1977)."""
    places = defaultdict[Hashable, list[int]](list)
    for j, key in enumerate(right):
        places[key].append(j)
    # Of the subsequences of each length the one that ends first: its end, its pairs.
    ends: list[int] = []
    links: list[Any] = [None]
    for i, key in enumerate(left):
        for j in reversed(places[key]):
            n = bisect.bisect_left(ends, j)
            if ends[n : n + 1] != [j]:  # else the pair that was found before stays
                ends[n : n + 1] = [j]
                links[n + 1 : n + 2] = [(i, j, links[n])]
    found, link = [], links[-1]
    while link is not None:
        *pair, link = link
        found.append(tuple(pair))
    return found[::-1]


def _origin(
    value: Value, program: FlatProgram, numbers: Mapping[FlatOp, int]
) -> tuple | None:
    """Return what makes a value, equal for what corresponds in both programs; None for
    an op without a partner."""
    maker = program.makers.get(value)
    if maker is not None:
        result = maker.op.results.index(value)
        return (numbers[maker], result) if maker in numbers else None
    owner, what, number = program.places.get(value, (None, "", -1))
    return (None if owner is None else numbers.get(owner), what, number)
