"""Public reports that a chip or the compiler does otherwise than the documents say.

They are rows of `reports.json`. The emulator follows the documents; the rows say where
a chip was seen not to. In a source "sdk#1296" is an issue of aws-neuron-sdk, and "kiln
notes" is docs/neuron-notes.md of foxl-ai/kiln.
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
    """What somebody saw."""

    name: str  # of the instruction
    traced: str  # the rule of `traced` that says which uses it is about
    chips: tuple[str, ...]  # on which it was seen; none where that is not said
    releases: tuple[str, ...]  # canonical names of those that it was seen with
    does: str  # what happens
    documented: str  # what the documents say
    remedy: str  # what to write instead
    source: str  # who says so
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
    """Return reports that instructions meet on their chip, and where: "file:line".

    Args:
        program: a traced kernel.
        release: the only one whose reports count; None for all.
    """
    chip = resolve_target(program.target).chip.name
    rows = [r for r in REPORTS if not r.chips or chip in r.chips]
    rows = [r for r in rows if release is None or release.name in r.releases]
    for i in program.body.walk():
        for report in rows:
            if report.name == f"nki.isa.{i.name}" and TRACED[report.traced](i):
                yield report, i.location
