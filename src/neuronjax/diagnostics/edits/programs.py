"""Aligns two captured programs, runs both, and says what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.diagnostics.compare import Setting
from neuronjax.diagnostics.edits.alignment import AlignedPair, Alignment, aligned
from neuronjax.diagnostics.edits.changed_attributes import (
    CONSTANT,
    changes,
    constant_text,
)
from neuronjax.diagnostics.edits.edit_result import (
    Edit,
    EditedOp,
    FirstDifference,
    OutputDifference,
    ProgramComparison,
)
from neuronjax.diagnostics.edits.flattening import FlatOp, FlatProgram, flat
from neuronjax.diagnostics.edits.value_runs import PairedRuns, PairErrors
from neuronjax.diagnostics.op_errors import errors_of
from neuronjax.diagnostics.op_records import MOVING
from neuronjax.ir.program import TOP, Program, Value
from neuronjax.policy import Policy
from neuronjax.report.setting import setting_line


@dataclass(frozen=True, kw_only=True)
class EditedProgram:
    """One of the two.

    Attributes:
        name: of the function.
        arrays: its arguments, as a lowered program takes them.
        outputs: paths of its results.
    """

    name: str
    setting: Setting
    arrays: Sequence[Any]
    outputs: Sequence[str]


def compare_programs(
    before: EditedProgram,
    after: EditedProgram,
    policy: Policy,
    tolerance: float,
    label: str,
) -> ProgramComparison:
    """Both programs under one policy, op by op."""
    alignment = aligned(flat(before.setting.program), flat(after.setting.program))
    sides = before.setting.emulated(policy), after.setting.emulated(policy)
    runs = PairedRuns(alignment, sides, tolerance)
    results = runs.run((before.arrays, after.arrays))
    found = runs.found
    described = _Describing(alignment, found)
    return ProgramComparison(
        names=(before.name, after.name),
        target=before.setting.target.name,
        policy=label,
        setting=setting_line(before.setting.target, policy),
        tolerance=tolerance,
        pairs=len(alignment.pairs),
        compared=len(found),
        edits=tuple(described.edits()),
        first=described.first(),
        differing=sum(errors.first is not None for errors in found.values()),
        outputs=tuple(_outputs(before.outputs, after.outputs, *results)),
    )


def edits_between(before: Program, after: Program) -> tuple[Edit, ...]:
    """What was done to a program; nothing is run, so no edit knows if values differ."""
    return tuple(_Describing(aligned(flat(before), flat(after)), {}).edits())


class _Describing:
    """What was found, in the words of a result."""

    def __init__(
        self, alignment: Alignment, found: dict[AlignedPair, PairErrors]
    ) -> None:
        self._alignment, self._found = alignment, found

    def edits(self) -> list[Edit]:
        """Return them in the order of the program after, what was removed last."""
        pairs = [p for p in self._alignment.pairs if p.how != "same"]
        edited = self._edits(pairs, self._alignment.added)
        removed = self._edits(removed=self._alignment.removed)

        def order(edit: Edit) -> int:
            return edit.op.number

        return sorted(edited, key=order) + sorted(removed, key=order)

    def _edits(
        self,
        pairs: Sequence[AlignedPair] = (),
        added: Sequence[FlatOp] = (),
        removed: Sequence[FlatOp] = (),
    ) -> list[Edit]:
        found = []
        for pair in pairs:
            errors = self._found.get(pair)
            what = changes(pair.before.op, pair.after.op) or self._reads(pair)
            differs = None if errors is None else errors.first is not None
            found.append(self._edit(pair.how, pair.before, pair.after, what, differs))
        found += [self._edit("added", None, op, constant_text(op.op)) for op in added]
        return found + [
            self._edit("removed", op, None, constant_text(op.op)) for op in removed
        ]

    def _edit(
        self,
        kind: str,
        before: FlatOp | None,
        after: FlatOp | None,
        what: str,
        differs: bool | None = None,
    ) -> Edit:
        programs = self._alignment
        return Edit(
            kind=kind,
            before=None if before is None else _described(before, programs.before),
            after=None if after is None else _described(after, programs.after),
            differs=differs,
            what=what,
        )

    def _reads(self, pair: AlignedPair) -> str:
        """Return which constants a rewired op reads in place of others."""
        if pair.how != "rewired":
            return ""
        sides = (
            (self._alignment.before, pair.before),
            (self._alignment.after, pair.after),
        )
        texts = [[_read_text(v, p) for v in o.op.operands] for p, o in sides]
        pairs = zip(*texts, strict=True)
        return ", ".join(f"reads {a} -> {b}" for a, b in pairs if a != b)

    def first(self) -> FirstDifference | None:
        """The first that differs; what only moves numbers, if nothing else does."""
        off = [p for p, errors in self._found.items() if errors.first is not None]
        if not off:
            return None
        told = [p for p in off if p.after.op.name not in MOVING or p.how != "same"]
        pair = min(told or off, key=lambda p: self._found[p].order)
        sums = self._found[pair]
        return FirstDifference(
            before=_described(pair.before, self._alignment.before),
            after=_described(pair.after, self._alignment.after),
            is_edit=pair.how != "same",
            iteration=sums.first or (),
            errors=sums.errors,
            because=tuple(
                self._edits(*self._alignment.edits_behind(pair))
                if pair.how == "same"
                else self._edits([pair])
            ),
        )


def _read_text(value: Value, program: FlatProgram) -> str:
    """The value of a constant; of what else made it the name."""
    maker = program.makers.get(value)
    if maker is None:
        return "an argument"
    return constant_text(maker.op) or maker.op.name.rpartition(".")[2]


def _described(op: FlatOp, program: FlatProgram) -> EditedOp:
    """A constant is where it is read: JAX gives it the line of the whole call."""
    shown = _reader(op, program) if op.op.name == CONSTANT else op
    location = shown.path.location
    return EditedOp(
        number=shown.number,
        op=op.op.name.rpartition(".")[2],
        # The line that is shown says which function it is in.
        module=location.label if location.module else TOP,
        source=location.source,
        result=", ".join(op.types),
    )


def _reader(op: FlatOp, program: FlatProgram) -> FlatOp:
    """The first op that computes with a value, or the op itself."""
    values = set(op.op.results)
    for other in program.ops[op.number + 1 :]:
        if values.isdisjoint(other.op.operands):
            continue
        if other.op.name not in MOVING:
            return other
        values.update(other.op.results)
    return op


def _outputs(
    before: Sequence[str],
    after: Sequence[str],
    left: Sequence[np.ndarray],
    right: Sequence[np.ndarray],
) -> list[OutputDifference]:
    """By path; a path of one program alone is named."""
    first = dict(zip(before, left, strict=True))
    second = dict(zip(after, right, strict=True))
    found = []
    for path in dict.fromkeys((*before, *after)):
        x, y = first.get(path), second.get(path)
        errors, note = None, "only after" if x is None else "only before"
        if x is not None and y is not None:
            note = ""
            if (x.shape, x.dtype) == (y.shape, y.dtype):
                errors = errors_of(y, x)
            else:
                note = f"{x.dtype}{list(x.shape)} -> {y.dtype}{list(y.shape)}"
        found.append(OutputDifference(path=path, errors=errors, note=note))
    return found
