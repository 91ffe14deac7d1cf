"""Two captured programs, aligned and run, and a description of how they differ."""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.diagnostics.compare import Setting
from neuronjax.diagnostics.edits.alignment import (
    AlignedPair,
    Alignment,
    FlatOp,
    FlatProgram,
    aligned,
    flat,
)
from neuronjax.diagnostics.edits.changed_attributes import (
    CONSTANT,
    changes,
    constant_text,
)
from neuronjax.diagnostics.edits.correspondence import ComparedValue, Correspondence
from neuronjax.diagnostics.edits.edit_result import (
    Edit,
    EditedOp,
    FirstDifference,
    OutputDifference,
    ProgramComparison,
)
from neuronjax.diagnostics.edits.value_runs import ProgramRun, RunValue
from neuronjax.diagnostics.op_errors import errors_of
from neuronjax.diagnostics.op_records import MOVING
from neuronjax.ir.program import TOP, Program, Value
from neuronjax.policy import Policy
from neuronjax.report.setting import setting_line

#: Names that users know, for ops with other names in the compiler.
_WORDS = {
    "sdy.manual_computation": "shard_map",
    "stablehlo.case": "branch",
    "stablehlo.while": "loop",
}


@dataclass(frozen=True, kw_only=True)
class EditedProgram:
    """One of the two programs.

    Attributes:
        name: the name of the function.
        arrays: its arguments, as a lowered program takes them.
        outputs: the paths of its results.
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
    """Return the comparison of two programs, run op by op under one policy."""
    alignment = aligned(flat(before.setting.program), flat(after.setting.program))
    first, second = (
        ProgramRun.of(each.setting.emulated(policy), program, each.arrays)
        for each, program in ((before, alignment.before), (after, alignment.after))
    )
    left, right = (
        {
            path: (run.value(x.actual), x.actual)
            for path, x in zip(each.outputs, run.results, strict=True)
        }
        for each, run in ((before, first), (after, second))
    )
    outputs = [_output(path, left, right) for path in dict.fromkeys((*left, *right))]
    alike = [output.path for output in outputs if output.errors is not None]
    returned = {right[path][0]: left[path][0] for path in alike}
    matched = Correspondence(alignment, (first, second), returned, tolerance).found
    described = _Describing(alignment, matched)
    return ProgramComparison(
        names=(before.name, after.name),
        target=before.setting.target.name,
        policy=label,
        setting=setting_line(before.setting.target, policy),
        tolerance=tolerance,
        pairs=len(alignment.pairs),
        compared=len(matched),
        edits=tuple(described.edits()),
        is_edit=alignment.is_edit,
        first=described.first({value: path for path, (value, _) in right.items()}),
        differing=sum(match.differs for match in matched.values()),
        outputs=tuple(outputs),
    )


def edits_between(before: Program, after: Program) -> tuple[Edit, ...]:
    """Return the edits between two programs. Nothing is run, so `differs` is None."""
    return tuple(_Describing(aligned(flat(before), flat(after)), {}).edits())


@dataclass(frozen=True)
class _Describing:
    """A description of aligned programs and compared values, as reports show it."""

    alignment: Alignment
    found: Mapping[FlatOp | None, ComparedValue]

    def edits(self) -> list[Edit]:
        """Return the edits in the order of the second program, removed ops last."""
        pairs = [p for p in self.alignment.pairs if p.how != "same"]
        edited = self._edits(pairs, self.alignment.added)
        removed = self._edits(removed=self.alignment.removed)
        order = operator.attrgetter("op.number")
        return sorted(edited, key=order) + sorted(removed, key=order)

    def _edits(
        self,
        pairs: Sequence[AlignedPair] = (),
        added: Iterable[FlatOp] = (),
        removed: Iterable[FlatOp] = (),
    ) -> list[Edit]:
        programs, edits = self.alignment, []
        for pair in pairs:
            match = self.found.get(pair.after)
            edit = Edit(
                kind=pair.how,
                before=_described(pair.before, programs.before),
                after=_described(pair.after, programs.after),
                differs=None if match is None else match.differs,
                what=changes(pair.before.op, pair.after.op) or self._reads(pair),
            )
            edits.append(edit)
        for op in added:
            shown, what = _described(op, programs.after), constant_text(op.op)
            edits.append(Edit(kind="added", after=shown, what=what))
        for op in removed:
            shown, what = _described(op, programs.before), constant_text(op.op)
            edits.append(Edit(kind="removed", before=shown, what=what))
        return edits

    def _reads(self, pair: AlignedPair) -> str:
        """Return the changed operands of a rewired op, "reads 1.0 -> multiply"."""
        if pair.how != "rewired":
            return ""
        sides = (
            (self.alignment.before, pair.before),
            (self.alignment.after, pair.after),
        )
        texts = [[_read_text(v, p) for v in o.op.operands] for p, o in sides]
        pairs = zip(*texts, strict=True)
        return ", ".join(f"reads {a} -> {b}" for a, b in pairs if a != b)

    def first(self, paths: Mapping[RunValue, str]) -> FirstDifference | None:
        """Return the difference of the first computing op that differs or, if all
        computing ops are equal, of the first op that differs and moves numbers; None if
        no op differs. `paths` names the second program's results."""
        off = [match for match in self.found.values() if match.differs]
        if not off:
            return None
        computing = [match for match in off if match.after.name not in MOVING]
        match = min(computing or off, key=lambda match: match.order)
        before, after = match.before.root.op, match.after.root.op
        _, left, right, device = match.beside
        index = _farthest(left, right)
        known = [m for m in self.found.values() if not m.differs]
        equal = {m.after.op: m.before.op for m in known}
        way, ends = _behind(match.after, equal)
        way_before, _ = _behind(match.before, equal.values())
        programs = self.alignment
        because = self._edits(
            [p for p in programs.pairs if p.how != "same" and p.after in way],
            [op for op in programs.added if op in way],
            [op for op in programs.removed if op in way_before],
        )
        shown = _described(after, programs.after)
        return FirstDifference(
            before=_described(before, programs.before),
            after=shown,
            output=paths.get(match.after),
            type=f"{right.dtype}{list(right.shape) or ' scalar'}",
            is_edit=any(e.after and e.after.number == shown.number for e in because),
            iteration=match.after.iterations,
            device=device,
            errors=match.errors,
            index=index,
            numbers=(str(left[index]), str(right[index])),
            equal=sum(m.order < match.order for m in known),
            equal_behind=tuple(
                (_described(equal[op], programs.before), _described(op, programs.after))
                for op in ends
            ),
            because=tuple(because),
        )


def _behind(
    value: RunValue, equal: Container[FlatOp | None]
) -> tuple[set[FlatOp | None], list[FlatOp]]:
    """Return the ops between the nearest equal values and `value`, and the ops that
    make these equal values, in program order. `equal` are the ops with equal values."""
    way, ends = {value.op}, set[FlatOp]()  # None is the op of arguments
    values = dict.fromkeys(value.reads)
    left = [*values]
    for read in left:  # the loop adds values
        if read.op is not None and read.op in equal:
            ends.add(read.op)
        else:
            way.add(read.op)
            left += (v for v in read.reads if v not in values)
            values.update(dict.fromkeys(read.reads))
    return way, sorted(ends, key=lambda op: op.number)


def _farthest(left: np.ndarray, right: np.ndarray) -> tuple[int, ...]:
    with np.errstate(all="ignore"):
        a, b = left.astype(np.float64), right.astype(np.float64)
        same = (a == b) & (np.signbit(a) == np.signbit(b))
        same |= np.isnan(a) & np.isnan(b)
        apart = np.where(same, -1, np.nan_to_num(np.abs(a - b), nan=np.inf))
    return tuple(map(int, np.unravel_index(apart.argmax(), apart.shape)))


def _read_text(value: Value, program: FlatProgram) -> str:
    maker = program.makers.get(value)
    if maker is None:
        return "an argument"
    return constant_text(maker.op) or maker.op.name.rpartition(".")[2]


def _described(op: FlatOp | None, program: FlatProgram) -> EditedOp:
    """Return an op as reports name it, "argument" if `op` is None. A constant gets the
    line of the op that reads it, since JAX gives constants the line of the whole
    call."""
    if op is None:
        return EditedOp(number=-1, op="argument", module=TOP, source="", result="")
    shown = _reader(op, program) if op.op.name == CONSTANT else op
    location = shown.path.location
    return EditedOp(
        number=shown.number,
        op=_WORDS.get(op.op.name) or op.op.name.rpartition(".")[2],
        module=location.label if location.module else TOP,
        source=location.source,
        result=", ".join(op.types),
    )


def _reader(op: FlatOp, program: FlatProgram) -> FlatOp:
    """Return the first op that computes with the result of `op`; `op` if no op does."""
    values = set(op.op.results)
    for other in program.ops[op.number + 1 :]:
        if values.isdisjoint(other.op.operands):
            continue
        if other.op.name not in MOVING:
            return other
        values.update(other.op.results)
    return op


def _output(
    path: str,
    before: Mapping[str, tuple[RunValue, np.ndarray]],
    after: Mapping[str, tuple[RunValue, np.ndarray]],
) -> OutputDifference:
    if path not in before or path not in after:
        note = "only before" if path in before else "only after"
        return OutputDifference(path=path, errors=None, note=note)
    x, y = before[path][1], after[path][1]
    if (x.shape, x.dtype) == (y.shape, y.dtype):
        return OutputDifference(path=path, errors=errors_of(y, x))
    note = f"{x.dtype}{list(x.shape)} -> {y.dtype}{list(y.shape)}"
    return OutputDifference(path=path, errors=None, note=note)
