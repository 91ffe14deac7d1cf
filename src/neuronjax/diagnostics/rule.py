"""Portability rules: an id, a document, and a small predicate over one op.

`rules/` has the rules. A predicate takes an `OpContext` and returns an `Answer`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neuronjax.diagnostics.findings import Finding, Severity
from neuronjax.diagnostics.op_contexts import OpContext, Settings
from neuronjax.ir.program import Op


@dataclass(frozen=True)
class Verdict:
    """The answer of a predicate whose rule applies.

    Attributes:
        detail: added to the rule's title; "" for nothing.
        severity: replaces the rule's severity; None to keep it.
        remedy: replaces the rule's remedy; "" to keep it.
        at: an op inside the examined op, if the finding names that op; else None.
    """

    detail: str = ""
    severity: Severity | None = None
    remedy: str = ""
    at: Op | None = None


#: A `Verdict`, its `detail` or True if a rule applies; False, "" or None if not.
Answer = Verdict | str | bool | None


@dataclass(frozen=True, kw_only=True)
class RuleText:
    """The texts of a rule.

    Attributes:
        id: unique, in words joined by "-".
        severity: used unless the verdict has one.
        title: what is wrong, without details.
    """

    id: str
    severity: Severity
    title: str
    remedy: str
    source: str

    def finding(self, answer: Verdict | str, **where: Any) -> Finding:
        """Return the finding for `answer`; `where` states the op and location."""
        verdict = Verdict(answer) if isinstance(answer, str) else answer
        title, detail = self.title, verdict.detail
        return Finding(
            rule=self.id,
            severity=verdict.severity or self.severity,
            message=f"{title}: {detail}" if detail else title,
            remedy=verdict.remedy or self.remedy,
            source=self.source,
            **where,
        )


@dataclass(frozen=True, kw_only=True)
class PortabilityRule(RuleText):
    """A rule about something that the compiler refuses or changes.

    Attributes:
        ops: the ops that are checked, without dialect; empty for all.
        check: the predicate.
        per_program: whether one finding names all ops; else each op and line of the
            user's program has a finding.
    """

    ops: frozenset[str] = frozenset()
    check: Callable[[OpContext], Answer]
    per_program: bool = False


@dataclass(frozen=True, kw_only=True)
class ProgramRule(RuleText):
    """A rule about a program as a whole.

    `check` takes the settings and the estimated number of instructions, and returns the
    detail of the finding, or None."""

    check: Callable[[Settings, int], str | None]


_ENTRY = re.compile(
    r"(?P<id>\S+): (?P<severity>\w+)( (in|of) (?P<names>[\w, ]+?))?"
    r"( (?P<limit>(per|before|since|on chips with|on chips without) \S+))?\n"
    r"(?P<title>.+?)\n> (?P<remedy>.+?)\n\[(?P<source>.+)\]",
    re.DOTALL,
)


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of a text of rules: the remedy follows ">", the source is in "[]".

    Attributes:
        fields: id, severity, title, remedy and source of the rule.
        names: names of ops ("in gather, scatter") or dtypes ("of float64").
        limit: "per program"; for a rule about a dtype, the SDKs ("before 2.32") or
            chips ("on chips without mx_matmul") to which it applies; otherwise "".
    """

    fields: dict[str, Any]
    names: tuple[str, ...]
    limit: str


def read_entries(text: str) -> Iterator[Paragraph]:
    for paragraph in text.strip().split("\n\n"):
        found = _ENTRY.fullmatch(paragraph)
        assert found is not None, paragraph
        words = {
            name: " ".join((part or "").split())
            for name, part in found.groupdict().items()
        }
        names = tuple(filter(None, words.pop("names").split(", ")))
        yield Paragraph(words, names, words.pop("limit"))


def read_rules(
    text: str, checks: Mapping[str, Callable[[OpContext], Answer]]
) -> tuple[PortabilityRule, ...]:
    """Return the rules of a text, which has a paragraph per rule; `checks` are the
    predicates by rule id."""
    return tuple(
        PortabilityRule(
            **entry.fields,
            ops=frozenset(entry.names),
            check=checks[entry.fields["id"]],
            per_program=bool(entry.limit),
        )
        for entry in read_entries(text)
    )
