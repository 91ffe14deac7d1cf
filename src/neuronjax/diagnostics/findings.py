"""Findings of a portability check, and their report as text and as JSON.

A finding says what is wrong, where, how bad it is, what to write instead, and which
document says so. The source of a finding begins with a key of `DOCUMENTS`. Documents
that `hardware/chips.py` cites too have the same key there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from neuronjax.report.places import place
from neuronjax.report.tables import WORD, Displayed, new_table

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
DOCUMENTS = {
    "A2": "nki/guides/architecture/trainium_inferentia2_arch.rst",
    "A3": "nki/guides/architecture/trainium2_arch.rst",
    "A4": "nki/guides/architecture/trainium3_arch.rst",
    "CLI": "compiler/neuronx-cc/api-reference-guide/index.rst",
    "CQ": "libraries/nxd-inference/developer_guides/custom-quantization.rst",
    "DT": "about-neuron/arch/neuron-features/data-types.rst",
    "ERR": "compiler/error-codes/",
    "ISA": "nki/api/nki/isa/__init__.py",
    "JK": "frameworks/jax/setup/jax-neuronx-known-issues.rst",
    "KLN": "foxl-ai/kiln, docs/neuron-notes.md: what its author measured",
    "MXG": "nki/deep-dives/mxfp-matmul.rst",
    "RN-CC": "release-notes/components/compiler.rst",
    "RN-NKI": "release-notes/components/nki.rst",
    "SH": "nki/api/nki.api.shared.rst",
}
"""Sources by key: documentation of Neuron SDK 2.32, and one author's measurements."""
_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that the chip's compiler would refuse or change.

    Attributes:
        rule: the id of the rule, "dynamic-while".
        severity: "error" if the compiler refuses the op, or certainly changes its
            result; "warning" if it may do so; "info" if this is worth knowing, and the
            documents do not say what the compiler does.
        op: the op, "stablehlo.while"; "" for the program as a whole.
        location: the user's line, "model.py:12", or "" if unknown.
        scope: the JAX name stack of the first occurrence.
        count: number of occurrences at this line.
        source: the document that describes this behaviour.
    """

    rule: str
    severity: Severity
    op: str = ""
    location: str = ""
    scope: str = ""
    count: int = 1
    message: str
    remedy: str
    source: str


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PortabilityReport(Displayed):
    """The findings on what the chip's compiler would refuse or change in a program.

    Attributes:
        program: the name of the function or file.
        target: the chip or instance.
        setting: target, logical core, policy and SDK, in words.
        sdk: the Neuron SDK whose behaviour is described.
        findings: errors first, then by line.
    """

    program: str
    target: str
    setting: str
    sdk: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Return whether no finding is an error."""
        return not any(f.severity == "error" for f in self.findings)

    def count(self, severity: Severity) -> int:
        """Return the number of findings of this severity."""
        return sum(f.severity == severity for f in self.findings)

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **dataclasses.asdict(self), "documents": self.documents}

    @property
    def documents(self) -> dict[str, str]:
        """Return the pages that the findings cite, by key."""
        cited = {key for f in self.findings for key in cited_keys(f.source)}
        return {key: page for key, page in DOCUMENTS.items() if key in cited}

    def __rich__(self) -> Table:
        title = f"{self.program} on {self.setting}"
        style = {"collapse_padding": False, "leading": 1}
        if not self.findings:
            return new_table(
                title, {}, [["Nothing found."]], show_header=False, **style
            )
        pages = (f"{key}: {page}" for key, page in self.documents.items())
        meaning = "Errors are what the compiler refuses or certainly changes."
        return new_table(
            title,
            {
                "severity": WORD,
                "what, where, and what to write instead": {"overflow": "fold"},
            },
            (
                (Text(f.severity, _STYLES[f.severity]), Text("\n").join(_lines(f)))
                for f in self.findings
            ),
            "\n".join([f"{_counted(self)}. {meaning}", *pages]),
            **style,
        )

    def __repr__(self) -> str:
        found = _counted(self) or "nothing found"
        where = f"{self.program} on {self.target}"
        return f"<neuronjax.PortabilityReport {where}, {found}>"


def cited_keys(source: str) -> set[str]:
    """Return the keys of `DOCUMENTS` that the text `source` names."""
    return set(re.findall(r"\b[A-Z][A-Z0-9]+(?:-[A-Z]+)?\b", source)) & set(DOCUMENTS)


def _lines(finding: Finding) -> Iterator[Text]:
    times = f" ({finding.count} times)" if finding.count > 1 else ""
    yield Text.assemble((finding.rule, "bold"), f"{times}: {finding.message}")
    where = finding.location and place(finding.location)
    places = ", ".join(filter(None, [finding.op, where]))
    if places:
        yield Text(f"at: {places}", "dim")
    yield Text(f"instead: {finding.remedy}")
    yield Text(f"source: {finding.source}", "dim")


def _counted(report: PortabilityReport) -> str:
    counts = ((report.count(s), s) for s in SEVERITIES)
    return ", ".join(f"{n} {s}{'s' * (n > 1)}" for n, s in counts if n)
