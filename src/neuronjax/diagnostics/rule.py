"""What a portability rule is: an id, a document, and a small predicate over one op.

A predicate gets an `OpContext` and returns None, or a `Verdict` that may sharpen the
rule's severity and remedy for this one op. Rules are collected in `rules/`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from neuronjax.diagnostics.findings import Severity
from neuronjax.diagnostics.op_contexts import OpContext, Settings


@dataclass(frozen=True)
class Verdict:
    """That a rule applies.

    Attributes:
        detail: added to the rule's title, "" for nothing.
        severity: instead of the rule's, or None.
        remedy: instead of the rule's, or "".
    """

    detail: str = ""
    severity: Severity | None = None
    remedy: str = ""


YES = Verdict()


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
    check: Callable[[OpContext], Verdict | None]
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


def ops(*names: str) -> frozenset[str]:
    """Names of ops."""
    return frozenset(names)


def always(context: OpContext) -> Verdict | None:
    """For rules whose op alone decides."""
    del context
    return YES
