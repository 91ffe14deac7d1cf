"""Verdicts: a chip's results confirm or contradict each claim, or do neither.

An alternative fits if all compared elements have its bits. Neuronjax's alternative is
confirmed if it alone fits, contradicted if it does not fit, and undecided if other
alternatives fit as well or there is no result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from neuronjax.diagnostics.order import reveal_order
from neuronjax.errors import InvalidProgramError
from neuronjax.report.exactness import claims, meanings
from neuronjax.report.tables import NUMBER, TEXT, WORD, Displayed, new_table
from neuronjax.testing.bits import element_text
from neuronjax.testing.silicon import functions, inputs
from neuronjax.testing.silicon.cases import ProbeCase
from neuronjax.testing.silicon.question import Question
from neuronjax.testing.silicon.questions_rounding import casts, others, subnormals
from neuronjax.testing.silicon.questions_sums import sums, tensor_sums
from neuronjax.testing.silicon.questions_values import values
from neuronjax.testing.silicon.results import SiliconResults, read_results

Verdict = Literal["confirmed", "contradicted", "undecided"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiliconFinding:
    """The verdict on one question.

    Attributes:
        question: the question's name.
        claim: the subject of its claim in docs/exactness.md.
        ours: what neuronjax computes.
        verdict: confirmed, contradicted or undecided.
        fits: the alternatives with which every compared element agrees.
        tried: how many alternatives there are.
        elements: how many elements are compared.
        differing: how many of these elements differ from neuronjax.
        mismatch: the first element that differs, as text.
        missing: probes without a result.
    """

    question: str
    claim: str
    ours: str
    verdict: Verdict
    fits: tuple[str, ...]
    tried: int
    elements: int
    differing: int
    mismatch: str
    missing: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiliconReport(Displayed):
    """All findings about a chip.

    Attributes:
        chip: trn1, trn2 or trn3.
        findings: one for every question whose probes exist for the chip.
        left_out: by the name of each probe without a usable result, the reason.
        notes: observations without a verdict: orders of sums, errors of functions.
        versions: versions of the packages that ran the kit.
    """

    chip: str
    findings: tuple[SiliconFinding, ...]
    left_out: Mapping[str, str]
    notes: tuple[str, ...]
    versions: Mapping[str, str]

    @property
    def contradicted(self) -> tuple[SiliconFinding, ...]:
        """The findings in which the chip differs from neuronjax."""
        return tuple(f for f in self.findings if f.verdict == "contradicted")

    @property
    def claims(self) -> dict[str, Verdict | Literal["not asked"]]:
        """The verdict on every claim of docs/exactness.md: a claim is contradicted if
        one of its questions is, confirmed if all are, not asked if it has none."""
        subjects = [row["what"] for label in meanings() for row in claims(label)]
        return {subject: self._of_claim(subject) for subject in subjects}

    def _of_claim(self, subject: str) -> Verdict | Literal["not asked"]:
        verdicts = {f.verdict for f in self.findings if f.claim == subject}
        if not verdicts:
            return "not asked"
        if "contradicted" in verdicts:
            return "contradicted"
        return "confirmed" if verdicts == {"confirmed"} else "undecided"

    @property
    def records(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "chip": self.chip,
            "versions": dict(self.versions),
            "claims": self.claims,
            "findings": [dataclasses.asdict(f) for f in self.findings],
            "left_out": dict(self.left_out),
            "notes": list(self.notes),
        }

    def __rich__(self) -> RenderableType:
        counts = [f.verdict for f in self.findings]
        verdicts = ", ".join(
            f"{counts.count(v)} {v}" for v in ("confirmed", "contradicted", "undecided")
        )
        columns = {"about": TEXT, "verdict": WORD, "fits": TEXT, "elements": NUMBER}
        known = [f for f in self.findings if f.elements]
        rows = ((f.question, f.verdict, _fits(f), f"{f.elements:,}") for f in known)
        title = f"neuronjax checked on a {self.chip}: {verdicts}"
        table = new_table(title, columns, rows)
        return Group(table, *(Text(line) for line in self._below()))

    def _below(self) -> Iterator[str]:
        for finding in self.contradicted:
            yield (
                f"{finding.question}: neuronjax says {finding.ours};"
                f" {finding.differing:,} of {finding.elements:,} elements"
                f" differ, first: {finding.mismatch}"
            )
        yield from self.notes
        silent = [f.question for f in self.findings if not f.elements]
        if silent:
            named = "; ".join([*silent[:3], *(["..."] if len(silent) > 3 else [])])
            yield f"no result for {len(silent)} questions: {named}"
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            reasons.setdefault(reason.splitlines()[0], []).append(name)
        for reason, names in reasons.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield f"left out: {names[0]}{more}: {reason}"


def _fits(found: SiliconFinding) -> str:
    if not found.fits:
        # neuronjax may promise a different alternative for each probe.
        return found.ours if found.verdict == "confirmed" else f"none of {found.tried}"
    shown = found.fits[:3]
    more = len(found.fits) - len(shown)
    return "; ".join((*shown, *([f"{more} more"] if more else [])))


def check_silicon(folder: str | Path) -> SiliconReport:
    """Compare a chip's results with neuronjax, claim by claim.

    Args:
        folder: `results/`, written by the kit's `run.py`; it may be incomplete. See
            `write_silicon_kit`.

    Returns:
        The report; `print` shows it as a table, and `.records` is for JSON.

    Raises:
        InvalidProgramError: the folder is not one of this version's kit.
    """
    results = read_results(Path(folder))
    families = (sums, tensor_sums, casts, subnormals, others, values)
    known = results.cases.keys() | results.left_out.keys()
    every = (question for family in families for question in family())
    asked = (question for question in every if not known.isdisjoint(question.probes))
    return SiliconReport(
        chip=results.chip,
        findings=tuple(answered(question, results) for question in asked),
        left_out=results.left_out,
        notes=tuple(_notes(results.cases)),
        versions=results.versions,
    )


def answered(question: Question, found: SiliconResults) -> SiliconFinding:
    """Return the finding on a question, from its probes that have results."""
    known = [name for name in question.probes if name in found.cases]
    parts = [_Part.of(question, found.cases[name]) for name in known]
    names = tuple(dict.fromkeys(name for part in parts for name in part.agree))
    elements = sum(part.elements for part in parts)
    fits = tuple(n for n in names if elements and all(p.fits(n) for p in parts))
    ours = tuple(dict.fromkeys(part.ours for part in parts))
    wrong = [part for part in parts if part.ours and not part.fits(part.ours)]
    others_fit = set(fits) - set(ours) or not elements or "" in ours
    return SiliconFinding(
        question=question.name,
        claim=question.claim,
        ours="; ".join(ours),
        verdict="contradicted" if wrong else "undecided" if others_fit else "confirmed",
        fits=fits,
        tried=len(names),
        elements=elements,
        differing=sum(int((~part.agree[part.ours]).sum()) for part in wrong),
        mismatch=wrong[0].mismatch if wrong else "",
        missing=tuple(n for n in question.probes if n not in found.cases),
    )


@dataclasses.dataclass(frozen=True)
class _Part:
    ours: str
    elements: int
    agree: Mapping[str, np.ndarray]
    mismatch: str

    def fits(self, name: str) -> bool:
        return name in self.agree and bool(self.agree[name].all())

    @classmethod
    def of(cls, question: Question, case: ProbeCase) -> _Part:
        with np.errstate(all="ignore"):
            answers, observed = question.answers(case), question.observed(case)
            mask = np.ones(observed.shape, bool)
            if question.where is not None:
                mask = question.where(case)
            agree = {
                name: question.agrees(observed, answer) | ~mask
                for name, answer in answers.items()
            }
        ours = question.ours(case)
        mismatch = ""
        if ours and not agree[ours].all():
            at = tuple(int(i) for i in np.argwhere(~agree[ours])[0])
            observed_text, ours_text = (
                element_text(np.asarray(a)[at]) for a in (observed, answers[ours])
            )
            where = ", ".join(map(str, at))
            mismatch = f"{case.probe}[{where}]: {observed_text}, not {ours_text}"
        return cls(ours, int(mask.sum()), agree, mismatch)


def _notes(cases: Mapping[str, ProbeCase]) -> Iterator[str]:
    for engine, name in (("VectorE", "vector_order"), ("TensorE", "tensor_order")):
        if name in cases:
            yield f"{engine} adds 128 numbers in this order: {_revealed(cases[name])}"
    for name, case in cases.items():
        function = name.removeprefix("function_")
        if function == name:
            continue
        error = functions.largest_error(function, case["x"], case["out"])
        if error is not None:
            yield f"ScalarE: {function} is at most {error:,.4g} ULP off"


def _revealed(case: ProbeCase) -> str:
    """Return the order of additions as text, from sums in which a huge pair cancels."""
    count = 128
    found = case["out"].reshape(-1)
    if case.probe != "vector_order":
        found = case["out"][np.triu_indices(count, 1)]
    sums = dict(zip(inputs.pairs(count), found, strict=False))

    def recorded(x: np.ndarray) -> np.floating:
        i, j = int(np.argmax(x)), int(np.argmin(x))
        return sums[min(i, j), max(i, j)]

    try:
        tree = reveal_order(recorded, count)
    except InvalidProgramError as error:
        return f"no order that adds two numbers at a time ({error.what})"
    # These sums do not show whether a sum is compensated.
    return str(dataclasses.replace(tree, is_compensated=False))
