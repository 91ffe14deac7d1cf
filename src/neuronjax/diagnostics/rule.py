"""What a portability rule is: an id, a document, and a small predicate over one op.

A predicate gets an `OpContext` and returns None, or a `Verdict` that may sharpen the
rule's severity and remedy for this one op. Rules are collected in `rules/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from neuronjax.diagnostics.findings import Severity
from neuronjax.diagnostics.op_contexts import OpContext, Settings
from neuronjax.ir.program import Op


@dataclass(frozen=True)
class Verdict:
    """That a rule applies.

    Attributes:
        detail: added to the rule's title, "" for nothing.
        severity: instead of the rule's, or None.
        remedy: instead of the rule's, or "".
        at: an op inside this one that is meant, or None.
    """

    detail: str = ""
    severity: Severity | None = None
    remedy: str = ""
    at: Op | None = None


YES = Verdict()

Check = Callable[[OpContext], Verdict | None]


@dataclass(frozen=True, kw_only=True)
class PortabilityRule:
    """Something that the compiler refuses or changes.

    Attributes:
        id: unique, in words joined by "-".
        severity: unless the verdict says otherwise.
        title: what is wrong, without the particulars.
        remedy: what to write instead.
        source: the document.
        ops: the ops it is asked for, without dialect; empty for all.
        check: the predicate.
        per: "line" for one finding per op and line of the user's program, "program"
            for one that names the ops.
    """

    id: str
    severity: Severity
    title: str
    remedy: str
    source: str
    ops: frozenset[str] = frozenset()
    check: Check
    per: Literal["line", "program"] = "line"


@dataclass(frozen=True, kw_only=True)
class ProgramRule:
    """A rule about a program as a whole; fields as in `PortabilityRule`.

    Attributes:
        check: gets the settings and the estimated number of instructions.
    """

    id: str
    severity: Severity
    title: str
    remedy: str
    source: str
    check: Callable[[Settings, int], Verdict | None]


def always(context: OpContext) -> Verdict | None:
    """For rules whose op alone decides."""
    del context
    return YES


# -- reading ---------------------------------------------------------------------------

_ENTRY = re.compile(
    r"(?P<id>\S+): (?P<severity>\w+)( (in|of) (?P<names>[\w, ]+?))?"
    r"( (?P<limit>(per|before|since|with|without) \S+))?\n"
    r"(?P<title>.+?)\n> (?P<remedy>.+?)\n\[(?P<source>.+)\]",
    re.DOTALL,
)


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of a text of rules, whose remedy follows ">", its source in "[]".

    Attributes:
        fields: the fields of the rule that are words.
        names: of ops ("in gather, scatter") or dtypes ("of float64").
        limit: "per program"; of a dtype "before 2.32", "without mx_matmul"; or "".
    """

    fields: dict[str, Any]
    names: tuple[str, ...]
    limit: str


def read_entries(text: str) -> Iterator[Paragraph]:
    """The paragraphs of a text of rules."""
    for paragraph in text.strip().split("\n\n"):
        found = _ENTRY.fullmatch(paragraph)
        assert found is not None, paragraph
        words = {
            name: " ".join((part or "").split())
            for name, part in found.groupdict().items()
        }
        names = tuple(filter(None, words.pop("names").split(", ")))
        yield Paragraph(words, names, words.pop("limit"))


def read_rules(text: str, checks: Mapping[str, Check]) -> tuple[PortabilityRule, ...]:
    """The rules of a text.

    Args:
        text: a paragraph for each, as `Paragraph` says.
        checks: the predicates, by the rules' ids.
    """
    return tuple(
        PortabilityRule(
            **entry.fields,
            ops=frozenset(entry.names),
            check=checks[entry.fields["id"]],
            per="program" if entry.limit else "line",
        )
        for entry in read_entries(text)
    )
