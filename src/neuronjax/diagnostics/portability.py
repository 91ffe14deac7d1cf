"""Findings of what the chip's compiler would refuse or change in a program.

`examine` applies the rules of `rules/` to a captured program, and lowers the program,
so that the report has what the emulator refuses. Nothing is run or compiled. Ops of a
function that is called three times are counted three times, ops of a loop's body once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from neuronjax.diagnostics.findings import SEVERITIES, Finding, PortabilityReport
from neuronjax.diagnostics.op_contexts import OpContext, Settings, visit
from neuronjax.diagnostics.rule import PortabilityRule, Verdict
from neuronjax.diagnostics.rules import PROGRAM_RULES, RULES
from neuronjax.diagnostics.rules.dtypes import DtypeRule, arguments
from neuronjax.diagnostics.rules.limits import instructions
from neuronjax.errors import NeuronJaxError, UnimplementedError
from neuronjax.hardware import Target
from neuronjax.ir.program import Program
from neuronjax.lowering import lower
from neuronjax.policy import Policy
from neuronjax.report.setting import setting_line

_PER_PROGRAM = frozenset(rule.id for rule in RULES if rule.per_program)
_COUNT = "instructions"  # rule of a finding that only states the number of instructions


def examine(
    program: Program,
    *,
    target: Target,
    policy: Policy,
    sdk: str | None = None,
    name: str = "program",
) -> PortabilityReport:
    """Return the report on a captured program.

    `sdk` is the Neuron SDK whose rules apply, "2.32"; None means the SDK of `policy`.

    Raises:
        InvalidProgramError: the chip does not have the policy's LNC.
    """
    version = sdk or policy.sdk
    numbers = tuple(map(int, version.split(".")))
    settings = Settings(program=program, target=target, policy=policy, sdk=numbers)
    notes = visit(settings, _notes)
    count = sum(note.count for note in notes if note.rule == _COUNT)
    occurrences = [note for note in notes if note.rule != _COUNT]
    findings = [*_about_program(settings, count), *_grouped(occurrences)]
    findings += _lowering_findings(program, target, policy, findings)
    return report(findings, target=target, policy=policy, sdk=version, name=name)


def report(
    findings: Sequence[Finding], *, target: Target, policy: Policy, sdk: str, name: str
) -> PortabilityReport:
    """Return a report with findings sorted by severity, worst first, then by line."""

    def order(found: Finding) -> tuple:
        file, _, line = found.location.rpartition(":")
        number = int(line) if line.isdigit() else 0
        return SEVERITIES.index(found.severity), file, number, found.rule

    return PortabilityReport(
        program=name,
        target=target.name,
        setting=setting_line(target, replace(policy, sdk=sdk)),
        sdk=sdk,
        findings=tuple(sorted(findings, key=order)),
    )


_BY_OP: dict[str, list[PortabilityRule | DtypeRule]] = {}
for _rule in RULES:
    for _name in _rule.ops or ("",):
        _BY_OP.setdefault(_name, []).append(_rule)


def _notes(context: OpContext) -> Iterator[Finding]:
    op, name = context.op, context.op.name.partition(".")[2]
    where = {"op": op.name, "location": context.location, "scope": context.scope}
    for rule in (*_BY_OP.get(name, ()), *_BY_OP[""]):
        answer = rule.check(context)
        if isinstance(answer, Verdict) and answer.at is not None:
            line = answer.at.location.source or context.location
            yield rule.finding(
                answer, **where | {"op": answer.at.name, "location": line}
            )
        elif answer:
            yield rule.finding("" if answer is True else answer, **where)
    if weight := instructions(context):
        nothing = dict.fromkeys(("message", "remedy", "source"), "")
        yield Finding(rule=_COUNT, severity="info", count=weight, **nothing)


def _grouped(notes: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a finding per rule, op and line; per rule and severity if `per_program`."""
    groups: dict[tuple, list[Finding]] = {}
    for note in notes:
        key: tuple = (note.rule, note.op, note.location)
        if note.rule in _PER_PROGRAM:
            key = (note.rule, note.severity)
        groups.setdefault(key, []).append(note)
    for group in groups.values():
        worst = min(group, key=lambda note: SEVERITIES.index(note.severity))
        found = replace(worst, count=len(group))
        if worst.rule in _PER_PROGRAM:
            names = sorted({note.op.partition(".")[2] for note in group})
            message = f"{worst.message}: {', '.join(names)}"
            found = replace(found, message=message, op="", location="", scope="")
        yield found


def _about_program(settings: Settings, count: int) -> Iterator[Finding]:
    for rule, name, type in arguments(settings):
        found = rule.finding("")
        yield replace(found, message=f"argument {name} ({type}): {rule.title}")
    for rule in PROGRAM_RULES:
        if detail := rule.check(settings, count):
            yield rule.finding(detail)


def _lowering_findings(
    program: Program, target: Target, policy: Policy, found: Sequence[Finding]
) -> list[Finding]:
    """Return a list with the finding on the op that the emulator refuses; [] if it
    refuses none, or if `found` already has an error on this op."""
    try:
        lower(program, target=target, policy=policy)
    except NeuronJaxError as error:
        finding = from_error(error)
        said = {f.op for f in found if f.severity == "error"}
        # Rules on dtypes have already reported arguments whose dtype no core has.
        is_said = finding.op in said or finding.op.startswith("argument ")
        return [] if is_said else [finding]
    return []


#: Patterns of error messages, with the rule and the source of findings on them.
_KINDS = (
    (r"infeed|outfeed", "host-callback", "JK: host callbacks"),
    (r"dynamic dimension", "dynamic-shape", "ERR/EMOD025"),
    (r"float64", "float64", "DT: data types of the NeuronCores"),
    (r"complex", "complex", "ERR/EVRF004, JK"),
    (r"QuantizeMX|block_scaled_dot", "mx-call", "ERR/EVRF036 to EVRF058"),
    (r"tokens?\b", "side-effect", "ERR/EVRF001"),
)


def from_error(error: NeuronJaxError) -> Finding:
    """Return the finding, of severity "error", for an error of capture or lowering."""
    text = f"{error.op or ''} {error.what}"
    missing = isinstance(error, UnimplementedError)
    emulator = ("not-emulated" if missing else "refused", "neuronjax")
    known = (found for pattern, *found in _KINDS if re.search(pattern, text))
    rule, source = next(known, emulator)
    return Finding(
        rule=rule,
        severity="error",
        op=error.op or "",
        location=error.location or "",
        message=error.what,
        remedy=error.remedy or "rewrite the line with other operations",
        source=source,
    )
