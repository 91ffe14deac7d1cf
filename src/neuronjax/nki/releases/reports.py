"""Public reports of chips or compilers that deviate from the documents.

The reports are rows of `reports.json`. The emulator follows the documents; each row
describes a deviation seen on a chip. In a source "sdk#1296" is an issue of
aws-neuron-sdk, and "kiln notes" is docs/neuron-notes.md of foxl-ai/kiln.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from neuronjax.hardware import resolve_target
from neuronjax.ir.kernel import KernelProgram
from neuronjax.nki.releases.release import Release
from neuronjax.nki.releases.traced import TRACED


@dataclass(frozen=True, kw_only=True)
class HardwareReport:
    """A reported deviation."""

    name: str  # the instruction's name
    traced: str  # the name in `TRACED` of the rule that finds the affected uses
    chips: tuple[str, ...]  # the chips on which it was seen; () if unknown
    releases: tuple[str, ...]  # canonical names of the releases in which it was seen
    does: str  # what happens
    documented: str  # what the documents say
    remedy: str  # what to write instead
    source: str  # where it is reported
    lost: bool = False  # whether such a kernel does not compile


def _read() -> Iterator[HardwareReport]:
    path = resources.files("neuronjax.nki.releases") / "reports.json"
    for row in json.loads(path.read_text(encoding="utf-8")):
        row |= {key: tuple(row[key]) for key in ("chips", "releases")}
        yield HardwareReport(**row)


REPORTS = tuple(_read())


def reports_met(
    program: KernelProgram, release: Release | None
) -> Iterator[tuple[HardwareReport, str]]:
    """Yield the reports that concern instructions of a program, each with "file:line".

    Args:
        release: the release whose reports count; None for all.
    """
    chip = resolve_target(program.target).chip.name
    rows = [r for r in REPORTS if not r.chips or chip in r.chips]
    rows = [r for r in rows if release is None or release.name in r.releases]
    for i in program.body.walk():
        for report in rows:
            if report.name == f"nki.isa.{i.name}" and TRACED[report.traced](i):
                yield report, i.location
