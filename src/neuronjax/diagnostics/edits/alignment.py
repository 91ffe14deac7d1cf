"""Which op of one program is which of another, and what of the rest is an edit.

The ops of a program stand in a row, bodies of calls and loops behind them, each with a
fingerprint of what it computes. The rows are aligned by the longest common subsequence
of their fingerprints. What is left between two pairs is paired by name and types, an op
whose attributes were changed, then by the types of the results alone, an op in place of
another.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuronjax.diagnostics.edits.canonical_text import CONTROL, op_text, sha256
from neuronjax.diagnostics.edits.changed_attributes import CONSTANT
from neuronjax.diagnostics.parallel_runs import OpPath
from neuronjax.ir.name_stack import read_name_stack
from neuronjax.ir.program import Op, Program, Region, Value, is_cotangent_scope


@dataclass(frozen=True, eq=False)
class FlatOp:
    """One op, as the calls reach it.

    Attributes:
        number: in the row.
        path: which it is.
        fingerprint: equal for ops that compute the same function under the same names;
            what they read and where they stand in the source does not count.
    """

    number: int
    path: OpPath
    fingerprint: str

    @property
    def op(self) -> Op:
        """As the program has it."""
        return self.path.op

    @property
    def kind(self) -> tuple[str, ...]:
        """Its name and the types of its results."""
        return (self.op.name, *self.types)

    @property
    def types(self) -> tuple[str, ...]:
        """Of its results."""
        return tuple(str(v.type) for v in self.op.results)


@dataclass(frozen=True, eq=False)
class FlatProgram:
    """A program's ops in a row, bodies of calls, loops and branches behind their op.

    Attributes:
        ops: the row.
        makers: the op whose result a value is; of a body that is called twice the
            first.
        places: what is no op's result: the op whose body it is an argument of, None for
            main, and its number.
    """

    program: Program
    ops: tuple[FlatOp, ...]
    makers: Mapping[Value, FlatOp]
    places: Mapping[Value, tuple[FlatOp | None, str, int]]


def flat(program: Program) -> FlatProgram:
    """Return the row of a program."""
    ops: list[FlatOp] = []
    makers: dict[Value, FlatOp] = {}
    places: dict[Value, tuple[FlatOp | None, str, int]] = {}

    def add(
        region: Region, owner: FlatOp | None, what: str, calls: tuple[Op, ...]
    ) -> None:
        for number, value in enumerate(region.arguments):
            places.setdefault(value, (owner, what, number))
        for op in region.ops:
            path = OpPath(calls, op)
            entry = FlatOp(len(ops), path, fingerprint(path))
            ops.append(entry)
            for value in op.results:
                makers.setdefault(value, entry)
            if callee := op.callee:
                add(program.functions[callee].body, entry, "call", (*calls, op))
            elif op.name in CONTROL:
                for n, inner in enumerate(op.regions):
                    add(inner, entry, str(n), calls)

    add(program.entry.body, None, "main", ())
    return FlatProgram(program, tuple(ops), makers, places)


def fingerprint(path: OpPath) -> str:
    """A hash of what an op computes, and of its name stack.

    Not of its module, which what is around it may tell."""
    scope = path.scope
    names = "/".join(read_name_stack(scope).names)
    backward = str(is_cotangent_scope(scope))
    return sha256("\n".join((names, backward, op_text(path.op))))


# -- pairs ----------------------------------------------------------------------------

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

    Between what is equal at both ends this is the algorithm of Hunt and Szymanski
    (1977)."""
    start = _alike(left, right)
    end = _alike(left[start:][::-1], right[start:][::-1])
    found = [(n, n) for n in range(start)]
    found += [(len(left) - n, len(right) - n) for n in range(end, 0, -1)]
    places = defaultdict[Hashable, list[int]](list)
    for j in range(start, len(right) - end):
        places[right[j]].append(j)
    # Of the subsequences of each length the one that ends first: its end, its pairs.
    ends: list[int] = []
    links: list[Any] = [None]
    for i in range(start, len(left) - end):
        for j in reversed(places[left[i]]):
            n = bisect.bisect_left(ends, j)
            if ends[n : n + 1] != [j]:  # else the pair that was found before stays
                ends[n : n + 1] = [j]
                links[n + 1 : n + 2] = [(i, j, links[n])]
    link = links[-1]
    while link is not None:
        i, j, link = link
        found.append((i, j))
    return sorted(found)


def _alike(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Return how many elements two sequences begin with alike."""
    pairs = enumerate(zip(left, right, strict=False))
    least = min(len(left), len(right))
    return next((n for n, (a, b) in pairs if a != b), least)


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
