"""Pairs of the ops of two programs, and the ops without a partner.

Each program is a list of ops with a fingerprint of what they compute; the body of a
call or loop follows its op. The lists are aligned by the longest common subsequence of
their fingerprints. Ops between two pairs are then paired by name and types (the
attributes changed), then by the types of results alone (the op was replaced).
"""

from __future__ import annotations

import bisect
import itertools
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
    """One op, reached by one path of calls.

    Attributes:
        number: the index of the op in the list of ops.
        path: the op and the calls around it.
        fingerprint: equal for ops that compute the same function under the same name
            stack, whatever their operands and source lines are.
    """

    number: int
    path: OpPath
    fingerprint: str

    @property
    def op(self) -> Op:
        return self.path.op

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(str(v.type) for v in self.op.results)


@dataclass(frozen=True, eq=False)
class FlatProgram:
    """A program's ops in a list; bodies of calls, loops and branches follow their op.

    Attributes:
        makers: the op that makes each value; in a function that is called twice, the
            op of the first call.
        places: for each argument of a body: the op with this body, or None for main;
            the name of the body; and the index of the argument.
    """

    program: Program
    ops: tuple[FlatOp, ...]
    makers: Mapping[Value, FlatOp]
    places: Mapping[Value, tuple[FlatOp | None, str, int]]


def flat(program: Program) -> FlatProgram:
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
    """Return a hash of what an op computes, and of its name stack.

    The op's module is not hashed, since it may depend on the ops around this op."""
    scope = path.scope
    names = "/".join(read_name_stack(scope).names)
    backward = str(is_cotangent_scope(scope))
    return sha256("\n".join((names, backward, op_text(path.op))))


_Way = tuple[Callable[[FlatOp], Hashable], str]
#: (key, how): two ops with equal `key(op)` make an `AlignedPair` with this `how`.
_WAYS: tuple[_Way, ...] = (
    (lambda o: o.fingerprint, "same"),
    (lambda o: (o.op.name, o.types), "changed"),
    (lambda o: (o.op.name in CONTROL, o.types), "replaced"),
)


@dataclass(frozen=True, eq=False)
class AlignedPair:
    """An op of the first program and its partner in the second.

    Attributes:
        how: "same", "changed" (its attributes or module), "replaced" by another op, or
            "rewired" (the same op on other values).
    """

    before: FlatOp
    after: FlatOp
    how: str


@dataclass(frozen=True, eq=False)
class Alignment:
    """The pairs of ops of two programs.

    Attributes:
        pairs: in the order of the second program.
        removed, added: ops of the first and of the second program without a partner.
    """

    before: FlatProgram
    after: FlatProgram
    pairs: tuple[AlignedPair, ...]
    removed: tuple[FlatOp, ...]
    added: tuple[FlatOp, ...]

    @property
    def is_edit(self) -> bool:
        """Return whether at least half of the smaller program's ops, not counting
        constants, are the same in both programs."""
        sides = (self.before.ops, self.after.ops)
        fewest = min(sum(o.op.name != CONSTANT for o in ops) for ops in sides)
        same = (p for p in self.pairs if p.how == "same")
        return 2 * sum(p.after.op.name != CONSTANT for p in same) >= fewest


def aligned(before: FlatProgram, after: FlatProgram) -> Alignment:
    left, right = before.ops, after.ops
    pairs = [*_pairs(left, right, _WAYS)]
    of_left = {a: n for n, (a, _, _) in enumerate(pairs)}
    of_right = {b: n for n, (_, b, _) in enumerate(pairs)}

    def is_rewired(a: FlatOp, b: FlatOp) -> bool:
        """Return whether two partners read values that do not correspond. Values made
        by an op without a partner are ignored: that op is the edit."""
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
    """Yield the pairs of two lists for the first entry of `ways`; pair the ops between
    these pairs by the next entry, and so on."""
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
    """Return index pairs of a longest common subsequence of two sequences, ascending.

    Equal elements at both ends are paired first. The algorithm of Hunt and Szymanski
    (1977) pairs the elements between them."""
    start = _alike(left, right)
    end = _alike(left[start:][::-1], right[start:][::-1])
    common_pairs = [(n, n) for n in range(start)]
    common_pairs += [(len(left) - n, len(right) - n) for n in range(end, 0, -1)]
    places = defaultdict[Hashable, list[int]](list)
    for j in range(start, len(right) - end):
        places[right[j]].append(j)
    # ends[n] is the smallest index in `right` at which a common subsequence of length
    # n + 1 ends; links[n + 1] has the pairs of that subsequence as a linked list.
    ends: list[int] = []
    links: list[Any] = [None]
    for i in range(start, len(left) - end):
        for j in reversed(places[left[i]]):
            n = bisect.bisect_left(ends, j)
            if ends[n : n + 1] != [j]:
                ends[n : n + 1] = [j]
                links[n + 1 : n + 2] = [(i, j, links[n])]
    link = links[-1]
    while link is not None:
        i, j, link = link
        common_pairs.append((i, j))
    return sorted(common_pairs)


def _alike(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    pairs = zip(left, right, strict=False)
    return len([*itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)])


def _origin(
    value: Value, program: FlatProgram, numbers: Mapping[FlatOp, int]
) -> tuple | None:
    """Return a key that corresponding values of both programs share, or None if the op
    that makes the value has no partner."""
    maker = program.makers.get(value)
    if maker is not None:
        result = maker.op.results.index(value)
        return (numbers[maker], result) if maker in numbers else None
    owner, what, number = program.places.get(value, (None, "", -1))
    return (None if owner is None else numbers.get(owner), what, number)
