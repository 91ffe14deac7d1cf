"""A verdict as sentences: what is wrong, on which line, why, and what to try."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from neuronjax.diagnostics.comparison_tables import percent, short
from neuronjax.diagnostics.faults.fault import Fault
from neuronjax.diagnostics.faults.verdict import FaultVerdict, WrongResult
from neuronjax.diagnostics.op_records import OpRecord
from neuronjax.errors import code_at
from neuronjax.execution.probes.signs import FEW, MOSTLY
from neuronjax.ir.program import TOP
from neuronjax.report.html import CODE, WIDTH, Narrowed
from neuronjax.report.places import place
from neuronjax.report.tables import TEXT, WORD, Displayed, new_table, one_line


class Faults(Displayed, tuple[Fault, ...]):
    """The ops at fault, shown as a table. `pandas.DataFrame` accepts this tuple."""

    def __rich__(self) -> Table:
        columns = {"line": WORD, "fault": WORD, "why": TEXT, "try": TEXT}
        rows = ((f.record.line, f.kind, f.evidence, f.remedy) for f in self)
        return new_table(f"{len(self)} ops at fault", columns, rows)


_SHOWN_RESULTS = 4
SHOWN_FAULTS = 3
_SHOWN_CALLERS = 2
_INDENT = "   "


def page(verdict: FaultVerdict) -> Iterator[Text]:
    yield _headline(verdict)
    for wrong in verdict.wrong[:_SHOWN_RESULTS]:
        yield _wrapped("", _of_result(wrong))
    hidden = len(verdict.wrong) - _SHOWN_RESULTS
    if hidden > 0:
        yield Text(f"{_INDENT}and {hidden} more, see report.verdict.wrong")
    for n, fault in enumerate(verdict.lines[:SHOWN_FAULTS], 1):
        yield from _of_fault(n, fault)
    hidden = len(verdict.lines) - SHOWN_FAULTS
    if hidden > 0:
        yield Text(f"{_INDENT}and {hidden} more on other lines, see report.faults")


def lines_to_change(verdict: FaultVerdict) -> Iterator[Text]:
    """Yield the source lines of the first faults, for the end of a report."""
    records = [fault.record for fault in verdict.lines[:SHOWN_FAULTS]]
    codes = ((r.line, code_at(r.source)) for r in records)  # "" if there is no file
    texts = [f"{_INDENT}{line}: {code}" for line, code in codes if code]
    if texts:
        yield Text("change first:" if len(texts) > 1 else "change:", style="bold")
    for text in texts:
        yield one_line(text, style=CODE)


def _headline(verdict: FaultVerdict) -> Text:
    total = verdict.results
    if verdict.wrong:
        wrong = len(verdict.wrong)
        are = f"{wrong} of {total} results {'is' if wrong == 1 else 'are'}"
        are = "the result is" if total == 1 else are
        return Text(f"{are} wrong", style="bold red")
    if verdict.faults:
        what = "no result is too far from float64, but an op is at fault:"
        return Text(what, style="bold red")
    if not total:
        return Text("nothing was judged: the program has no result", style="yellow")
    results = "the result is" if total == 1 else f"all {total} results are"
    found = f"{results} as close to float64 as formats and data allow"
    if verdict.unjudged:
        text = f"not judged: {'; '.join(verdict.unjudged)}. Otherwise {found}"
        return Text(text, style="yellow")
    return Text(f"nothing wrong: {found}", style="green")


def _of_result(wrong: WrongResult) -> str:
    name = _end(wrong.name, 24)  # paths differ at the end
    if name != "the result":  # a single result has no path
        name = f"result {name}"
    if wrong.how == "nonfinite" and wrong.elements == 1:
        return f"{name}: it is Inf or NaN"
    if wrong.how == "nonfinite":
        return f"{name}: {wrong.nonfinite} of {wrong.elements} numbers are Inf or NaN"
    if wrong.how in ("discrete", "chosen"):
        return f"{name}: {percent(wrong.lost)} of the whole numbers differ from float64"
    if wrong.how == "lost":
        step = f"its update, {short(wrong.step)} of the result's size,"
        return f"{name}: {step} {_of_step(wrong)}"
    if wrong.relative_l2 <= wrong.allowed:
        lost = f"{percent(wrong.lost)} of the numbers are off"
        return f"{name}: {lost} by more than half of their value"
    allowed = f"rounding explains at most {short(wrong.allowed)}"
    return f"{name}: the relative error is {short(wrong.relative_l2)}; {allowed}"


def _of_step(wrong: WrongResult) -> str:
    if wrong.unmoved > MOSTLY and wrong.step_error <= 1.0:
        return "had no effect"
    off = f"has a relative error of {short(wrong.step_error)}"
    if wrong.unmoved > FEW:
        return f"{off}; {percent(wrong.unmoved)} of the numbers did not change"
    return f"{off}; rounding explains at most {short(wrong.step_allowed)}"


def _of_fault(n: int, fault: Fault) -> Iterator[Text]:
    record = fault.record
    op = _op(record)
    if record.module == TOP and fault.parameter:
        op += f", near {fault.parameter}"
    yield one_line((f"{n}. {fault.kind}", "bold"), f"  {record.line}  {op}")
    code = code_at(record.source)
    if code:
        yield one_line(f"{_INDENT}> {code}", style=CODE)
    for caller in record.callers[:_SHOWN_CALLERS]:
        yield one_line(f"{_INDENT}called from {place(caller)}: {code_at(caller)}")
    yield _wrapped("", _why(fault))
    yield _wrapped("try: ", fault.remedy)


def _why(fault: Fault) -> str:
    since = shows = ""
    does = f"{'causes' if fault.role == 'makes' else fault.role} the error"
    record = fault.record
    if fault.shows is None and math.isinf(record.accumulation.relative_l2):
        does = does if record.errs else "makes Inf or NaN of a wrong operand"
    if fault.iteration:
        since = f" since iteration {'.'.join(map(str, fault.iteration))}"
    if fault.shows is not None and fault.shows.number != fault.record.number:
        shows = f"; the error shows at {_op(fault.shows)}, {fault.shows.line}"
    return f"this op {does}{since}: {fault.evidence}{shows}"


def _op(record: OpRecord) -> str:
    module = "" if record.module == TOP else f" in {record.label}"
    return f"op {record.number}, {record.short_op}{module}"


def _wrapped(lead: str, text: str) -> Narrowed:
    whole = f"{_INDENT}{lead}{text}"
    indent = " " * len(_INDENT + lead)
    fitted = textwrap.fill(
        whole, WIDTH, subsequent_indent=indent, break_on_hyphens=False
    )
    return Narrowed(fitted, whole)


def _end(text: str, width: int) -> str:
    return text if len(text) <= width else "…" + text[1 - width :]
