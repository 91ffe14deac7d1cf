"""Which op of one program is which of another, and what of the rest is an edit.

The rows of ops are aligned by the longest common subsequence of their fingerprints.
What is left between two pairs is paired by name and types, an op whose attributes were
changed, then by the types of the results alone, an op in place of another.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuronjax.diagnostics.edits.canonical_text import CONTROL
from neuronjax.diagnostics.edits.changed_attributes import CONSTANT
from neuronjax.diagnostics.edits.flattening import FlatOp, FlatProgram
from neuronjax.ir.program import Value

#: Up to so many pairs the subsequence is the longest; beyond, that of difflib.
_LARGEST_TABLE = 1 << 24


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
    pairs = [
        (left[i], right[j], "same")
        for i, j in common(
            [o.fingerprint for o in left], [o.fingerprint for o in right]
        )
    ]
    keys: tuple[tuple[Callable[[FlatOp], Hashable], str], ...] = (
        (lambda o: o.kind, "changed"),
        (lambda o: (o.op.name in CONTROL, o.types), "replaced"),
    )
    for key, how in keys:
        more = []
        for gap_left, gap_right in _gaps(left, right, pairs):
            found = common([*map(key, gap_left)], [*map(key, gap_right)])
            more += [(gap_left[i], gap_right[j], how) for i, j in found]
        pairs = sorted(pairs + more, key=lambda p: p[1].number)
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


def _gaps(
    left: Sequence[FlatOp],
    right: Sequence[FlatOp],
    pairs: Sequence[tuple[FlatOp, FlatOp, str]],
) -> Iterator[tuple[Sequence[FlatOp], Sequence[FlatOp]]]:
    """What lies between neighbouring pairs on both sides."""
    i = j = 0
    ends = [(a.number, b.number) for a, b, _ in pairs]
    for end_i, end_j in [*ends, (len(left), len(right))]:
        if i < end_i and j < end_j:
            yield left[i:end_i], right[j:end_j]
        i, j = end_i + 1, end_j + 1


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


# -- the longest common subsequence ----------------------------------------------------


def common(
    left: Sequence[Hashable], right: Sequence[Hashable]
) -> list[tuple[int, int]]:
    """Indices of a longest common subsequence of two sequences, ascending."""
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    end = 0
    while (
        end < min(len(left), len(right)) - start
        and left[len(left) - 1 - end] == right[len(right) - 1 - end]
    ):
        end += 1
    a, b = left[start : len(left) - end], right[start : len(right) - end]
    middle = _by_table(a, b) if len(a) * len(b) <= _LARGEST_TABLE else _by_blocks(a, b)
    head = [(n, n) for n in range(start)]
    tail = [(len(left) - n, len(right) - n) for n in range(end, 0, -1)]
    return [*head, *((i + start, j + start) for i, j in middle), *tail]


def _by_table(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    numbers: dict[Hashable, int] = {}
    x, y = (
        np.asarray([numbers.setdefault(k, len(numbers)) for k in s]) for s in (a, b)
    )
    lengths = np.zeros((len(a) + 1, len(b) + 1), np.int32)
    for i in range(len(a) - 1, -1, -1):
        below = lengths[i + 1]
        row = np.where(y == x[i], below[1:] + 1, below[:-1])
        lengths[i, :-1] = np.maximum.accumulate(row[::-1])[::-1]
    found, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        if x[i] == y[j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1, j] >= lengths[i, j + 1]:
            i += 1
        else:
            j += 1
    return found


def _by_blocks(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    return [
        (block.a + n, block.b + n)
        for block in matcher.get_matching_blocks()
        for n in range(block.size)
    ]
