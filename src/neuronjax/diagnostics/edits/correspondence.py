"""Pairs of the values of two runs that should be equal.

Two values correspond if both programs return them by the same name, if the same op
makes them from corresponding values, if they are the same array, if the alignment of
the programs pairs their ops, or if the same source line made both. The sum of all
devices' partial sums corresponds to the sum over the whole array.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from neuronjax.diagnostics.edits.alignment import AlignedPair, Alignment, FlatOp
from neuronjax.diagnostics.edits.changed_attributes import CONSTANT
from neuronjax.diagnostics.edits.value_runs import (
    Beside,
    ProgramRun,
    RunValue,
    values_beside,
)
from neuronjax.diagnostics.op_errors import Errors

_ALL_GATHER, _ALL_REDUCE = "stablehlo.all_gather", "stablehlo.all_reduce"
_CONSTANT = "a constant"


@dataclass
class ComparedValue:
    """The values of an op in all executions, compared with the values of the other run.

    Attributes:
        before, after: the first pair that differs; the first pair if all are equal.
        beside: the comparison of this pair.
        errors: the errors of all executions, added up.
        differs: whether any execution differs.
        order: the index of `after` among the values of its run.
    """

    before: RunValue
    after: RunValue
    beside: Beside
    errors: Errors
    differs: bool
    order: int


class Correspondence:
    """The corresponding values of a run before and a run after an edit.

    `returned` maps results of the second run to the first run's results of the same
    name. Values are equal up to `tolerance`, a relative L2 error; 0 means equal bits.

    Attributes:
        found: the compared values by op of the second program, in the order of its run;
            the key None stands for arguments.
    """

    def __init__(
        self,
        alignment: Alignment,
        runs: tuple[ProgramRun, ProgramRun],
        returned: Mapping[RunValue, RunValue],
        tolerance: float,
    ) -> None:
        self._tolerance, self._returned = tolerance, returned
        self._before = runs[0].values
        # Value of the second run -> the corresponding value of the first.
        self._partners: dict[RunValue, RunValue] = {}
        self._taken: set[RunValue] = set(returned.values())
        # Value of the second run -> the values of the first run whose sum over devices
        # corresponds to it.
        self._partial: dict[RunValue, Sequence[RunValue]] = {}
        self._pairs: dict[FlatOp | None, AlignedPair] = {}
        if alignment.is_edit:
            self._pairs = {p.after: p for p in alignment.pairs}
        values = [*runs[0].values, *runs[1].values]
        given = (v for value in values for v in value.reads if v.op is None)
        self._given = {v.content: v for v in given if v.is_distinctive}
        self._moments = {(v.op, v.iterations, v.result): v for v in self._before}
        self._alike = defaultdict[Hashable, list[RunValue]](list)
        # Value of the first run -> results of all_reduce ops that sum it over devices.
        self._sums = defaultdict[RunValue, list[RunValue]](list)
        self._on_line = defaultdict[Hashable, list[RunValue]](list)
        for value in self._computed(self._before):
            self._alike[self._key(value)].append(value)
            self._on_line[_line(value)].append(value)
            if value.name == _ALL_REDUCE:
                self._sums[value.reads[0].root].append(value)
        # How often each op of a source line runs in the second program.
        self._runs_of = Counter(map(_line, self._computed(runs[1].values)))
        self.found: dict[FlatOp | None, ComparedValue] = {}
        for order, value in enumerate(dict.fromkeys((*runs[1].values, *returned))):
            self._match(value, order)

    @staticmethod
    def _computed(values: Sequence[RunValue]) -> list[RunValue]:
        return [v for v in values if v.root is v and v.name != CONSTANT]

    @functools.cached_property
    def _by_content(self) -> dict[Hashable, RunValue]:
        computed = (v for v in self._computed(self._before) if v.is_distinctive)
        return {**self._given, **{v.content: v for v in computed}}

    def _token(self, value: RunValue) -> Hashable:
        """Return a key that is equal for corresponding values of both runs."""
        root = self._partners.get(value.root, value.root).root
        if root.name == CONSTANT:
            return _CONSTANT
        is_given = root.name == _ALL_GATHER and root.content in self._given
        return root.content if root.op is None or is_given else root

    def _key(self, value: RunValue) -> tuple[Hashable, frozenset[Hashable]]:
        """Return a key, equal for results of the same op on corresponding values."""
        return value.kind, frozenset(map(self._token, value.reads))

    def _match(self, value: RunValue, order: int) -> None:
        partner = self._returned.get(value)
        if partner is None and value.root is value and value.name != CONSTANT:
            partner = self._partner(value)
        if partner is None:
            return
        self._partners[value] = partner
        self._taken.add(partner)
        beside = values_beside(partner, value)
        if beside is None:
            return
        errors, off = beside.errors, self._is_off(beside)
        new = ComparedValue(partner, value, beside, errors, off, order)
        known = self.found.setdefault(value.op, new)
        if known is new:
            return
        known.errors = new.errors = known.errors + errors
        if new.differs and not known.differs:
            self.found[value.op] = new

    def _is_off(self, beside: Beside) -> bool:
        if self._tolerance == 0:
            return beside.errors.differing > 0
        return beside.errors.relative_l2 > self._tolerance

    def _beside(self, others: Iterable[RunValue], value: RunValue) -> list[RunValue]:
        return [o for o in others if values_beside(o, value) is not None]

    def _partner(self, value: RunValue) -> RunValue | None:
        """Return the first run's value that should equal `value`, or None."""
        alike = self._candidates(value)
        aligned = self._aligned(value)
        if aligned in alike:
            return aligned
        for other in alike:
            if (beside := values_beside(other, value)) and not self._is_off(beside):
                return other
        if value.is_distinctive and value.content in self._by_content:
            return self._by_content[value.content]
        if aligned is not None:
            return aligned
        left = [o for o in alike if o not in self._taken]
        if len(left) == 1:
            return left[0]
        line = _line(value)
        if self._runs_of[line] != len(self._on_line[line]):
            return None
        left = [o for o in self._on_line[line] if o not in self._taken]
        return next(iter(self._beside(left, value)), None)

    def _candidates(self, value: RunValue) -> list[RunValue]:
        """Return the first run's results of the same op on corresponding values."""
        key = self._key(value)
        if key[1] <= {_CONSTANT}:
            return []
        found = [*self._alike.get(key, ())]
        if value.name == _ALL_REDUCE:
            found += self._partial.get(value.reads[0].root, ())
        whole = self._beside(found, value)
        if whole or not found:
            return whole
        self._partial[value] = found
        return self._beside((s for o in found for s in self._sums[o]), value)

    def _aligned(self, value: RunValue) -> RunValue | None:
        """Return the result of the paired op in the same iteration, if the ops are the
        same or read at least one pair of corresponding values; else None."""
        pair = self._pairs.get(value.op)
        if pair is None:
            return None
        other = self._moments.get((pair.before, value.iterations, value.result))
        if other is None or pair.how == "same":
            return other
        own, others = (set(map(self._token, v.reads)) for v in (value, other))
        return other if own & others - {_CONSTANT} or not own else None


def _line(value: RunValue) -> Hashable:
    assert value.op is not None
    return value.op.path.source or value, value.name, value.result
