"""The result of `compare(f, against=g)`: edits, the first op that differs, outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from neuronjax.diagnostics.comparison_tables import short
from neuronjax.diagnostics.op_errors import Errors
from neuronjax.report.html import CODE
from neuronjax.report.places import OpPlace
from neuronjax.report.tables import NUMBER, TEXT, WIDTH, Displayed, new_table, one_line

_SHOWN, _NAMES, _NEAREST = 8, 5, 3


@dataclass(frozen=True, kw_only=True)
class EditedOp(OpPlace):
    """An op of one of two programs.

    Attributes:
        number: its index in the list of the program's ops, in which bodies of calls and
            loops follow their op; for a constant, the index of the op that reads it.
        result: the types of its results.
    """

    number: int
    result: str


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A change of one op from f to g, the programs of `compare(f, against=g)`.

    Attributes:
        kind: "changed" (attributes, types of operands, or the module), "replaced" (by
            another op), "rewired" (the same op reads other values), "added" or
            "removed".
        before: the op in f; None if the op was added.
        after: the op in g; None if the op was removed.
        differs: whether the values of the two ops differ; None if not compared.
        what: the change, "value 1e-05 -> 1e-06"; the value of a constant that was added
            or removed; or "".
    """

    kind: str
    before: EditedOp | None = None
    after: EditedOp | None = None
    differs: bool | None = None
    what: str = ""

    @property
    def op(self) -> EditedOp:
        """Return the op after the edit, or the op before it if it was removed."""
        op = self.before if self.after is None else self.after
        assert op is not None, "an edit is of an op"
        return op

    def __str__(self) -> str:
        what = f": {self.what}" if self.what else ""
        before, after = self.before, self.after
        if before is None or after is None:
            return f"{self.op}{what}"
        if before.op == after.op:
            moved = "" if before.line == after.line else f" ({before.line})"
            return f"{after}{moved}{what}"
        return f"{before.op} -> {after}{what}"


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """The first value, in program order, that two programs compute and that differs.

    The programs are f and g of `compare(f, against=g)`; the order is that of g.

    Attributes:
        before, after: the ops that make the value in f and in g.
        output: path of the value if both programs return it; else None.
        type: the type of the whole value, with the parts of devices gathered.
        is_edit: whether the op, or a constant that it reads, was edited; if False, the
            operands of the op differ.
        iteration: the iterations of the loops around the op; () outside of loops.
        device: the first device whose parts differ; None if whole arrays are compared.
        errors: errors of g against f, over all executions of the op.
        index: the index of the element that differs most.
        numbers: this element in f and in g.
        equal: number of earlier ops whose values are equal.
        equal_behind: the nearest ops with equal values on which the op depends.
        because: the edits on which the value depends, including an edit of its op.
    """

    before: EditedOp
    after: EditedOp
    output: str | None
    type: str
    is_edit: bool
    iteration: tuple[int, ...]
    device: int | None
    errors: Errors
    index: tuple[int, ...]
    numbers: tuple[str, str]
    equal: int
    equal_behind: tuple[tuple[EditedOp, EditedOp], ...]
    because: tuple[Edit, ...]

    def __str__(self) -> str:
        names = {None: f"what {self.after.op} makes", "the result": "the result"}
        turn = ".".join(map(str, self.iteration))
        parts = [
            names.get(self.output, f"output {self.output}"),
            self.type,
            turn and f"iteration {turn}",
            "" if self.device is None else f"device {self.device}",
            f"at {list(self.index)}" if self.index else "",
        ]
        return ", ".join(filter(None, parts))


@dataclass(frozen=True, kw_only=True)
class OutputDifference:
    """An output of f or g of `compare(f, against=g)`, compared if both have it.

    Attributes:
        path: its path in the pytree of the results.
        errors: errors of the output of g against that of f; None where types differ or
            one program does not have the output.
        note: why there are no errors, or "".
    """

    path: str
    errors: Errors | None
    note: str = ""

    @property
    def differs(self) -> bool:
        """Return whether any bit differs, or the output cannot be compared."""
        return self.errors is None or self.errors.differing > 0


@dataclass(frozen=True, kw_only=True, repr=False)
class ProgramComparison(Displayed):
    """Programs f and g of `compare(f, against=g)`, compared on the same arguments.

    Attributes:
        names: the names of f and g.
        setting: the first line of every report: target, logical core, numerics and SDK.
        policy: the policy under which f and g were emulated.
        tolerance: relative L2 error up to which values are the same; 0 for equal bits.
        pairs: number of pairs of ops in the alignment.
        compared: number of ops of g whose values f computes too.
        edits: the edits in the order of g, removed ops last.
        is_edit: whether most ops are the same in f and g, so that the rest are edits.
        first: the first difference; None where no compared value differs.
        differing: number of compared ops whose values differ.
        outputs: the outputs, in the order of the results of f.
    """

    names: tuple[str, str]
    target: str
    setting: str
    policy: str
    tolerance: float
    pairs: int
    compared: int
    edits: tuple[Edit, ...]
    is_edit: bool
    first: FirstDifference | None
    differing: int
    outputs: tuple[OutputDifference, ...]

    @property
    def is_same(self) -> bool:
        """Return whether every output has the same bits."""
        return not any(o.differs for o in self.outputs)

    def table(self) -> Table:
        """Return a table of the outputs."""
        figures = ("differing", "elements", "largest ulp", "relative L2")
        return new_table(
            "outputs",
            {"output": TEXT} | dict.fromkeys(figures, NUMBER),
            map(_row, self.outputs),
            width=WIDTH,
            min_width=None,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as a dict for JSON."""
        return asdict(self) | {
            "is_same": self.is_same,
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
        head = Text(f"{' and '.join(self.names)} on {self.setting}")
        return Group(head, *self._finding(), *self._edits(), self.table())

    def _finding(self) -> Iterator[Text]:
        first = self.first
        if first is None:
            yield self._nothing()
            return
        errors = first.errors
        yield Text(f"the first value that differs: {first}", style="bold red")
        for name, op, number in zip(
            self.names, (first.before, first.after), first.numbers, strict=True
        ):
            yield one_line(f"   {number} in {name}: {op}")
            yield from _code(op)
        yield Text(
            f"   elements that differ: {errors.differing} of {errors.elements}, "
            f"relative L2 {short(errors.relative_l2)}, at most "
            f"{short(errors.max_ulp)} ulp"
        )
        if not first.equal:
            yield Text("   no value before it has a counterpart in the other program")
            return
        near = first.equal_behind[:_NEAREST]
        nearest = "; the last of these:" if near else ""
        yield Text(f"   earlier values that are equal in both: {first.equal}{nearest}")
        for before, after in near:
            there = f" ({before.line})" if before.line != after.line else ""
            yield one_line(f"     {after}{there}")

    def _nothing(self) -> Text:
        if not self.compared:
            return Text(
                "no value of one program can be matched with a value of the other: no"
                " results have equal names and types, and no line makes values in both",
                style="bold red",
            )
        limit = "bit" if self.tolerance == 0 else "value"
        what = f"no {limit} differs: {self.compared} pairs of values were compared"
        return Text(what, style="green")

    def _edits(self) -> Iterator[Text]:
        if not self.edits:
            return
        count = f"ops in both programs: {self.pairs}; edits: {len(self.edits)}"
        if not self.is_edit:
            yield Text(f"{count}, too many edits to list")
            return
        yield Text(count)
        because = () if self.first is None else self.first.because
        lines: dict[str, list[Edit]] = {}
        for edit in (*because, *(e for e in self.edits if e not in because)):
            lines.setdefault(edit.op.source, []).append(edit)
        for edits in [*lines.values()][:_SHOWN]:
            leads = "a cause: " if edits[0] in because else ""
            yield Text(f"{leads}{_text(edits)}")
            yield from _code(edits[0].op)
        if len(lines) > _SHOWN:
            yield Text(f"and on {len(lines) - _SHOWN} more lines, see report.edits")


def _text(edits: Sequence[Edit]) -> str:
    edit, *others = edits
    if not others:
        effect = ", with the same values" if edit.differs is False else ""
        return f"{edit.kind}: {edit}{effect}"
    kinds = ", ".join(dict.fromkeys(e.kind for e in edits))
    names = dict.fromkeys(" ".join(filter(None, (e.op.op, e.what))) for e in edits)
    shown = [*names][:_NAMES] + ["..."] * (len(names) > _NAMES)
    return f"{kinds} on {edit.op.line}: {', '.join(shown)}"


def _code(op: EditedOp) -> Iterator[Text]:
    if op.code:
        yield one_line(f"     > {op.code}", style=CODE)


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
