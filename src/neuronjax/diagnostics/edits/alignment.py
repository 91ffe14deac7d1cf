"""Which op of one program is which of another, and what of the rest is an edit.

The rows of ops are aligned by a common subsequence of their fingerprints, as difflib
finds one. What is left between two pairs is paired by name and types, an op whose
attributes were changed, then by the types of the results alone, an op in place of
another.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from neuronjax.diagnostics.edits.canonical_text import CONTROL
from neuronjax.diagnostics.edits.flattening import FlatOp, FlatProgram
from neuronjax.diagnostics.first_divergence import ancestors
from neuronjax.ir.program import Value


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

    def edits_behind(
        self, pair: AlignedPair
    ) -> tuple[list[AlignedPair], list[FlatOp], list[FlatOp]]:
        """What a pair depends on that was edited, was added, was removed."""
        behind = ancestors(self.after.program, pair.after.op)
        before = ancestors(self.before.program, pair.before.op)
        edited = [p for p in self.pairs if p.how != "same" and p.after.op in behind]
        return (
            edited,
            [op for op in self.added if op.op in behind],
            [op for op in self.removed if op.op in before],
        )


def aligned(before: FlatProgram, after: FlatProgram) -> Alignment:
    """Pairs the ops of two programs."""
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
    partner = {a: b for a, b, _ in pairs}
    taken = set(partner.values())
    wiring = _Wiring(before, after, partner, taken)
    return Alignment(
        before,
        after,
        tuple(
            AlignedPair(
                a, b, "rewired" if how == "same" and wiring.differs(a, b) else how
            )
            for a, b, how in pairs
        ),
        tuple(o for o in left if o not in partner),
        tuple(o for o in right if o not in taken),
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


@dataclass(eq=False)
class _Wiring:
    """Whether a pair of ops reads what corresponds."""

    before: FlatProgram
    after: FlatProgram
    partner: dict[FlatOp, FlatOp]
    taken: set[FlatOp]

    def differs(self, a: FlatOp, b: FlatOp) -> bool:
        """Whether two of their operands are made by ops that have other partners.

        An operand that an op without a partner makes is no question of wiring: that op
        is the edit."""
        pairs = zip(a.op.operands, b.op.operands, strict=True)
        return any(self._are_apart(v, w) for v, w in pairs)

    def _are_apart(self, v: Value, w: Value) -> bool:
        first, second = self.before.makers.get(v), self.after.makers.get(w)
        if first is None and second is None:
            return self._place(v) != self.after.places.get(w)
        if first is None or second is None:
            return first in self.partner or second in self.taken
        if first not in self.partner or second not in self.taken:
            return False
        if self.partner[first] is not second:
            return True
        return first.op.results.index(v) != second.op.results.index(w)

    def _place(self, v: Value) -> tuple[FlatOp | None, str, int] | None:
        """The place that corresponds to an argument's."""
        found = self.before.places.get(v)
        if found is None or found[0] is None:
            return found
        return (self.partner.get(found[0]), *found[1:])


def common(
    left: Sequence[Hashable], right: Sequence[Hashable]
) -> list[tuple[int, int]]:
    """Return indices of a common subsequence of two sequences, ascending."""
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    return [
        (block.a + n, block.b + n)
        for block in matcher.get_matching_blocks()
        for n in range(block.size)
    ]
