"""The result of `compare_dump`: saved tensors, compared with values of a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from neuronjax.diagnostics.comparison_tables import short
from neuronjax.diagnostics.dumps.matching import Unmatched
from neuronjax.diagnostics.legal.results import CheckedOutput
from neuronjax.report.html import CODE, WIDTH
from neuronjax.report.places import OpPlace
from neuronjax.report.tables import NUMBER, WORD, Displayed, new_table, one_line

_SHOWN_OPS = 4
_SHOWN_ROWS = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class DumpedTensor:
    """A saved tensor that is a value of the program.

    Attributes:
        tensor: the name of the tensor in the dump.
        name: the name of the value in the program.
        how: how the tensor was matched: as "given", by "name", or by a unique "shape".
        place: the op that makes the value; None for an argument.
        checked: which elements are outside their bounds, and how far.
        since: the tensors and arguments from which the emulator computed the value.
        ops: the ops that compute the value from `since`, in program order; one of these
            is wrong if the tensor is outside its bounds.
    """

    tensor: str
    name: str
    how: str
    place: OpPlace | None
    checked: CheckedOutput
    since: tuple[str, ...]
    ops: tuple[OpPlace, ...]

    @property
    def is_legal(self) -> bool:
        """Return whether the tensor is within its bounds."""
        return bool(self.checked)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DumpComparison(Displayed):
    """Saved tensors compared with the legal values of a program.

    Attributes:
        name: the name of the function.
        setting: the first line of every report: target, logical core, numerics and SDK.
        tensors: the tensors that are values of the program, in the order of execution.
        unmatched: the other tensors, with the reason why no value matches.
        values: number of values of the program that have a name, matched or not.
    """

    name: str
    target: str
    setting: str
    policy: str
    tensors: tuple[DumpedTensor, ...]
    unmatched: tuple[Unmatched, ...]
    values: int

    @property
    def outside(self) -> tuple[DumpedTensor, ...]:
        """Return the tensors outside their bounds, in the order of execution."""
        return tuple(t for t in self.tensors if not t.is_legal)

    @property
    def first(self) -> DumpedTensor | None:
        """Return the first tensor outside its bounds, or None."""
        return next(iter(self.outside), None)

    @property
    def is_legal(self) -> bool:
        """Return whether a tensor was compared, and all are within their bounds."""
        return bool(self.tensors) and not self.outside

    def table(self, rows: int = _SHOWN_ROWS) -> Table:
        """Return a table of the tensors in the order of execution, 80 columns wide."""
        shown = self.tensors[:rows]
        return new_table(
            f"{len(shown)} of {len(self.tensors)} tensors, in the order of execution",
            {
                "tensor": {**WORD, "ratio": 1},
                "op": {**WORD, "max_width": 14},
                "line": {**WORD, "max_width": 20},
                "by": WORD,
                **dict.fromkeys(("outside", "of", "bounds"), NUMBER),
            },
            map(_row, shown),
            width=WIDTH,
            min_width=None,
            collapse_padding=False,
            padding=(0, 1, 0, 0),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as a dict for JSON, with None for Inf."""
        first = self.first
        return {
            "name": self.name,
            "target": self.target,
            "policy": self.policy,
            "is_legal": self.is_legal,
            "first": None if first is None else first.tensor,
            "tensors": [_as_dict(t) for t in self.tensors],
            "unmatched": [
                {"tensor": u.tensor, "shape": list(u.shape), "why": u.why}
                for u in self.unmatched
            ],
        }

    def __repr__(self) -> str:
        return (
            f"<neuronjax.DumpComparison of {self.name}: {len(self.outside)} of "
            f"{len(self.tensors)} tensors outside their bounds, "
            f"{len(self.unmatched)} unmatched>"
        )

    def __rich__(self) -> RenderableType:
        total = len(self.tensors) + len(self.unmatched)
        parts: list[RenderableType] = [
            Text(
                f"{self.name} on {self.setting}:\na dump compared with legal values; "
                f"{len(self.tensors)} of {total} tensors are values of the program"
            ),
            *self._finding(),
        ]
        if self.tensors:
            parts.append(self.table())
        parts += self._unmatched()
        return Group(*parts)

    def _finding(self) -> Iterator[Text]:
        first = self.first
        if first is None:
            word = (
                "all are within tolerance" if self.tensors else "nothing was compared"
            )
            yield Text(word, style="green" if self.tensors else "bold red")
            return
        origin = first.place or "an argument: the device got different numbers"
        yield Text(
            f"first outside its tolerance: {first.tensor}, {origin}", style="bold red"
        )
        if first.place is not None and (code := first.place.code):
            yield one_line(f"   > {code}", style=CODE)
        for line in first.checked.as_text().partition(": ")[2].splitlines():
            yield Text(f"   {line.strip()}")
        if first.since:
            since = ", ".join(first.since)
            yield one_line(f"   expected values were computed from {since}")
        if len(first.ops) > 1:
            which = f"one of the {len(first.ops)} ops that compute {first.tensor}"
            yield one_line(f"   {which} is wrong:")
            for op in first.ops[-_SHOWN_OPS:]:
                yield one_line(f"      {op}")
            if len(first.ops) > _SHOWN_OPS:
                yield Text("      and the ops before these, see report.first.ops")

    def _unmatched(self) -> Iterator[Text]:
        for tensor in self.unmatched[:_SHOWN_ROWS]:
            shape = list(tensor.shape)
            line = f"unmatched: {tensor.tensor} {tensor.dtype}{shape}: {tensor.why}"
            yield one_line(line, style="yellow")
        hidden = len(self.unmatched) - _SHOWN_ROWS
        if hidden > 0:
            yield Text(f"and {hidden} more, see report.unmatched")


def _row(tensor: DumpedTensor) -> tuple[str, ...]:
    judged, at = tensor.checked.judged, tensor.place
    return (
        tensor.tensor,
        "argument" if at is None else at.op,
        "" if at is None else at.line,
        tensor.how,
        str(judged.refused) if judged.refused or tensor.is_legal else "the norm",
        str(judged.elements),
        short(judged.times_bound),
    )


def _as_dict(tensor: DumpedTensor) -> dict[str, Any]:
    judged = tensor.checked.judged
    bounds = judged.times_bound
    return {
        "tensor": tensor.tensor,
        "name": tensor.name,
        "how": tensor.how,
        **{n: getattr(tensor.place, n, None) for n in ("op", "module", "source")},
        "elements": judged.elements,
        "outside": judged.refused,
        "times_bound": bounds if bounds < float("inf") else None,
        "is_legal": tensor.is_legal,
    }
