"""What `compare(f, against=g)` returns: edits, the first op that differs, outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from neuronjax.diagnostics.comparison_tables import short
from neuronjax.diagnostics.op_errors import Errors
from neuronjax.report.places import OpPlace
from neuronjax.report.tables import NUMBER, TEXT, WIDTH, Displayed, cut, new_table

_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class EditedOp(OpPlace):
    """An op of one of two programs.

    Attributes:
        number: in the row of the program's ops, bodies of calls and loops behind them;
            of a constant, that of the op that reads it.
        result: the types of its results.
    """

    number: int
    result: str


@dataclass(frozen=True, kw_only=True)
class Edit:
    """What somebody has done to a program.

    Attributes:
        kind: "changed" (attributes, types of operands, or the module), "replaced" (by
            another op), "rewired" (the same op reads other values), "added" or
            "removed".
        before: the op in the function; None where one was added.
        after: the op in `against`; None where one was removed.
        differs: whether the values of the two differ; None without two.
        what: what of it was changed, "value 1e-05 -> 1e-06"; the value of a constant
            that was added or removed; "" where nothing is to be said.
    """

    kind: str
    before: EditedOp | None
    after: EditedOp | None
    differs: bool | None
    what: str = ""

    @property
    def op(self) -> EditedOp:
        """The op after, where there is one; else the op before."""
        op = self.before if self.after is None else self.after
        assert op is not None, "an edit is of an op"
        return op

    def __str__(self) -> str:
        what = f": {self.what}" if self.what else ""
        if self.before is None or self.after is None:
            return f"{self.op}{what}"
        if self.before.op == self.after.op:
            moved = (
                "" if self.before.line == self.after.line else f" ({self.before.line})"
            )
            return f"{self.after}{moved}{what}"
        return f"{self.before.op} -> {self.after}{what}"


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """The first op, in the order of `against`, whose values differ.

    Attributes:
        before, after: the op in both programs.
        is_edit: whether the op itself was edited; else its operands differ.
        iteration: of the loops around it; () outside of loops.
        errors: of all its executions, `against` beside the function.
        because: the edits that it depends on; itself if it is one.
    """

    before: EditedOp
    after: EditedOp
    is_edit: bool
    iteration: tuple[int, ...]
    errors: Errors
    because: tuple[Edit, ...]


@dataclass(frozen=True, kw_only=True)
class OutputDifference:
    """An output of both programs.

    Attributes:
        path: in the pytree of the results.
        errors: of `against` beside the function; None where types differ or one of them
            does not have it.
        note: why there are no errors.
    """

    path: str
    errors: Errors | None
    note: str = ""

    @property
    def differs(self) -> bool:
        """Whether a bit does."""
        return self.errors is None or self.errors.differing > 0


@dataclass(frozen=True, kw_only=True, repr=False)
class ProgramComparison(Displayed):
    """Two programs on the same arguments, as before and after an edit.

    Attributes:
        names: of the two functions.
        target: the machine.
        setting: target, logical core, numerics and SDK, as every report begins.
        policy: what both were emulated under.
        tolerance: relative L2 error up to which values are the same; 0 for any bit.
        pairs: how many ops of the two are one another's.
        compared: how many of them ran in both.
        edits: in the order of `against`, what was removed last.
        first: None where no value differs.
        differing: how many pairs have values that differ.
        outputs: by path.
    """

    names: tuple[str, str]
    target: str
    setting: str
    policy: str
    tolerance: float
    pairs: int
    compared: int
    edits: tuple[Edit, ...]
    first: FirstDifference | None
    differing: int
    outputs: tuple[OutputDifference, ...]

    @property
    def is_same(self) -> bool:
        """Whether every output has the same bits."""
        return not any(o.differs for o in self.outputs)

    def table(self) -> Table:
        """The outputs."""
        return new_table(
            "outputs",
            {
                "output": TEXT,
                "differ": NUMBER,
                "of": NUMBER,
                "ulp": NUMBER,
                "relative L2": NUMBER,
            },
            map(_row, self.outputs),
            width=WIDTH,
            min_width=None,
        )

    def to_json_dict(self) -> dict[str, Any]:
        """A JSON value."""
        first = self.first
        return {
            "names": list(self.names),
            "target": self.target,
            "policy": self.policy,
            "tolerance": self.tolerance,
            "pairs": self.pairs,
            "differing": self.differing,
            "is_same": self.is_same,
            "edits": [asdict(edit) for edit in self.edits],
            "first": None
            if first is None
            else {
                "before": asdict(first.before),
                "after": asdict(first.after),
                "is_edit": first.is_edit,
                "iteration": list(first.iteration),
            },
            "outputs": [
                {
                    "path": o.path,
                    "differing": None if o.errors is None else o.errors.differing,
                    "note": o.note,
                }
                for o in self.outputs
            ],
        }

    def __repr__(self) -> str:
        return (
            f"<neuronjax.ProgramComparison of {self.names[0]} and {self.names[1]}: "
            f"{len(self.edits)} edits, {self.differing} ops differ>"
        )

    def __rich__(self) -> RenderableType:
        before, after = self.names
        edits = "1 edit" if len(self.edits) == 1 else f"{len(self.edits)} edits"
        head = (
            f"{before} and {after} on {self.setting}\n"
            f"{self.pairs} ops are in both, {edits}; {self.differing} of "
            f"{self.compared} that ran differ"
        )
        parts: list[RenderableType] = [
            Text(head),
            *self._edits(),
            *self._finding(),
        ]
        return Group(*parts, self.table())

    def _edits(self) -> Iterator[Text]:
        for edit in self.edits[:_SHOWN]:
            effect = "" if edit.differs is not False else ", with the same values"
            yield Text(cut(f"{edit.kind}: {edit}{effect}"))
            if code := edit.op.code:
                yield Text(cut(f"   > {code}"), style="cyan")
        hidden = len(self.edits) - _SHOWN
        if hidden > 0:
            yield Text(f"and {hidden} more: .edits")

    def _finding(self) -> Iterator[Text]:
        first = self.first
        if first is None:
            limit = "bit" if self.tolerance == 0 else "value"
            yield Text(f"no {limit} differs in what both compute", style="green")
            return
        how = "an edit" if first.is_edit else "a consequence"
        at = ".".join(map(str, first.iteration))
        where = f", iteration {at}" if first.iteration else ""
        yield Text(f"first to differ: {first.after}{where}: {how}", style="bold red")
        errors = first.errors
        yield Text(
            f"   {errors.differing} of {errors.elements} elements, relative L2 "
            f"{short(errors.relative_l2)}"
        )
        if not first.is_edit:
            for edit in first.because[-_SHOWN:]:
                yield Text(cut(f"   of {edit.kind}: {edit}"))


def _row(output: OutputDifference) -> tuple[str, ...]:
    errors = output.errors
    if errors is None:
        return output.path, output.note, "", "", ""
    return (
        output.path,
        str(errors.differing),
        str(errors.elements),
        short(errors.max_ulp),
        short(errors.relative_l2),
    )
