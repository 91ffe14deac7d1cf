"""What the chip's own compiler would refuse or change in a program.

`examine` applies the rules of `rules/` to a captured program, and lowers it, so that
what the emulator refuses is in the report as well. Nothing is run or compiled. An
occurrence is an op as the calls reach it: a function called three times counts three
times, a loop's body once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from neuronjax.diagnostics.findings import SEVERITIES, Finding, PortabilityReport
from neuronjax.diagnostics.op_contexts import Details, Noted, OpContext, Settings, visit
from neuronjax.diagnostics.rule import PortabilityRule, ProgramRule, Verdict
from neuronjax.diagnostics.rules import PROGRAM_RULES, RULES
from neuronjax.diagnostics.rules.dtypes import DtypeRule, arguments, entering
from neuronjax.diagnostics.rules.limits import instructions
from neuronjax.errors import NeuronJaxError, UnimplementedError
from neuronjax.hardware import Target
from neuronjax.ir.program import Op, Program
from neuronjax.lowering import lower
from neuronjax.policy import Policy
from neuronjax.report.setting import setting_line

_BY_ID = {rule.id: rule for rule in RULES}
_COUNT = "instructions"  # a note that carries a weight and is no finding


def examine(
    program: Program,
    *,
    target: Target,
    policy: Policy,
    sdk: str | None = None,
    name: str = "program",
) -> PortabilityReport:
    """Checks a captured program.

    `sdk` is the Neuron SDK whose facts hold, "2.32"; None means the policy's.

    Raises:
        InvalidProgramError: the policy's LNC is none of the chip's.
    """
    version = sdk or policy.sdk
    settings = Settings(
        program=program,
        target=target,
        policy=policy,
        sdk=tuple(map(int, version.split("."))),
    )
    notes = visit(settings, _notes)
    findings = [
        *_argument_findings(settings),
        *_grouped(notes),
        *_program_findings(settings, sum(n.weight for n in notes)),
    ]
    findings += _lowering_findings(program, target, policy, findings)
    return report(findings, target=target, policy=policy, sdk=version, name=name)


def report(
    findings: Sequence[Finding],
    *,
    target: Target,
    policy: Policy,
    sdk: str,
    name: str,
) -> PortabilityReport:
    """A report of findings in order: worst first, then by line."""
    order = {severity: i for i, severity in enumerate(SEVERITIES)}
    ordered = sorted(
        findings, key=lambda f: (order[f.severity], _line_key(f.location), f.rule)
    )
    return PortabilityReport(
        program=name,
        target=target.name,
        setting=setting_line(target, replace(policy, sdk=sdk)),
        sdk=sdk,
        findings=tuple(ordered),
    )


def _line_key(location: str) -> tuple[str, int]:
    file, _, line = location.rpartition(":")
    return file, int(line) if line.isdigit() else 0


# -- one op ----------------------------------------------------------------------------


def _rules_by_op() -> dict[str, list[PortabilityRule]]:
    by_op: dict[str, list[PortabilityRule]] = {}
    for rule in RULES:
        for name in rule.ops or ("",):
            by_op.setdefault(name, []).append(rule)
    return by_op


_BY_OP = _rules_by_op()


def _notes(context: OpContext) -> Iterator[Noted]:
    """What all rules say of one op."""
    name = context.op.name.partition(".")[2]
    for rule in (*_BY_OP.get(name, ()), *_BY_OP[""]):
        verdict = rule.check(context)
        if verdict is not None:
            noted = _noted(context, rule.id, _details(rule, verdict))
            yield noted if verdict.at is None else _at(noted, verdict.at)
    for dtype_rule, _ in entering(context):
        severity, title = dtype_rule.severity, dtype_rule.title
        details = Details(severity, title, dtype_rule.remedy, dtype_rule.source)
        yield _noted(context, dtype_rule.id, details)
    weight = instructions(context)
    if weight:
        yield replace(_noted(context, _COUNT, Details()), weight=weight)


def _details(rule: PortabilityRule, verdict: Verdict) -> Details:
    message = f"{rule.title}: {verdict.detail}" if verdict.detail else rule.title
    severity = verdict.severity or rule.severity
    return Details(severity, message, verdict.remedy or rule.remedy, rule.source)


def _noted(context: OpContext, rule: str, details: Details) -> Noted:
    return Noted(
        rule=rule,
        op=context.op.name,
        location=context.location,
        scope=context.scope,
        details=details,
    )


def _at(noted: Noted, op: Op) -> Noted:
    """A note about another op."""
    return replace(noted, op=op.name, location=op.location.source or noted.location)


def _grouped(notes: Sequence[Noted]) -> Iterator[Finding]:
    """One finding for a rule, an op and a line; for some rules, for all lines."""
    groups: dict[tuple, list[Noted]] = {}
    for note in notes:
        if note.rule == _COUNT:
            continue
        key: tuple = (note.rule, note.op, note.location)
        if _per_program(note.rule):
            key = (note.rule, note.details.severity)
        groups.setdefault(key, []).append(note)
    return map(_finding, groups.values())


def _per_program(rule: str) -> bool:
    return rule in _BY_ID and _BY_ID[rule].per == "program"


def _finding(group: Sequence[Noted]) -> Finding:
    """The worst of equal notes, with their number."""
    worst = min(group, key=lambda note: SEVERITIES.index(note.details.severity))
    finding = Finding(
        rule=worst.rule,
        op=worst.op,
        location=worst.location,
        scope=worst.scope,
        count=len(group),
        **worst.details._asdict(),
    )
    if not _per_program(worst.rule):
        return finding
    names = sorted({note.op.partition(".")[2] for note in group})
    message = f"{worst.details.message}: {', '.join(names)}"
    return replace(finding, message=message, op="", location="", scope="")


# -- the whole program -----------------------------------------------------------------


def _argument_findings(settings: Settings) -> Iterator[Finding]:
    for rule, name, type in arguments(settings):
        yield _found(rule, f"argument {name} ({type}): {rule.title}")


def _program_findings(settings: Settings, count: int) -> Iterator[Finding]:
    for rule in PROGRAM_RULES:
        verdict = rule.check(settings, count)
        if verdict is not None:
            yield _found(rule, f"{rule.title}: {verdict.detail}")


def _found(rule: DtypeRule | ProgramRule, message: str) -> Finding:
    words = {n: getattr(rule, n) for n in ("severity", "remedy", "source")}
    return Finding(rule=rule.id, message=message, **words)


def _lowering_findings(
    program: Program, target: Target, policy: Policy, found: Sequence[Finding]
) -> list[Finding]:
    """What the emulator refuses, unless a rule has said so of the same op."""
    try:
        lower(program, target=target, policy=policy)
    except NeuronJaxError as error:
        finding = from_error(error)
        said = {f.op for f in found if f.severity == "error"}
        return [] if finding.op in said or _is_argument(finding.op) else [finding]
    return []


def _is_argument(op: str) -> bool:
    """Arguments of a dtype that no core has are found by their dtype rules."""
    return op.startswith("argument ")


# -- errors ----------------------------------------------------------------------------


class _Kind(NamedTuple):
    """What an error of capture or lowering means for the real compiler."""

    pattern: str
    rule: str
    source: str


_KINDS = (
    _Kind(r"infeed|outfeed", "host-callback", "JK: host callbacks"),
    _Kind(r"dynamic dimension", "dynamic-shape", "ERR/EMOD025"),
    _Kind(r"float64", "float64", "DT: data types of the NeuronCores"),
    _Kind(r"complex", "complex", "ERR/EVRF004, JK"),
    _Kind(r"QuantizeMX|block_scaled_dot", "mx-call", "ERR/EVRF036 to EVRF058"),
    _Kind(r"tokens?\b", "side-effect", "ERR/EVRF001"),
)


def from_error(error: NeuronJaxError) -> Finding:
    """An error of capture or lowering as a finding of severity "error"."""
    text = f"{error.op or ''} {error.what}"
    kind = next((k for k in _KINDS if re.search(k.pattern, text)), None)
    missing = isinstance(error, UnimplementedError)
    emulator = _Kind("", "not-emulated" if missing else "refused", "neuronjax")
    _, rule, source = kind or emulator
    return Finding(
        rule=rule,
        severity="error",
        op=error.op or "",
        location=error.location or "",
        message=error.what,
        remedy=error.remedy or "rewrite the line with other operations",
        source=source,
    )
