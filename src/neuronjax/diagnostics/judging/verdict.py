"""The verdict on a kernel: plain data, the same in Python and as JSON.

`SCHEMA` names the version of its form: a field that is there keeps its name and
meaning within a version.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group

from neuronjax.diagnostics.judging import verdict_tables
from neuronjax.errors import InvalidProgramError, NeuronJaxError
from neuronjax.ir.json_text import json_object
from neuronjax.report.quantities import finite
from neuronjax.report.tables import Displayed, as_text

SCHEMA = "neuronjax.verdict/1"
#: The verdicts, best first, and the exit status of the command that gives each.
EXIT_STATUS = {"accepted": 0, "undecided": 3, "refused": 1}
#: Tolerances that let a larger error pass, of the result's norm, decide nothing.
DECIDES = 0.1


@dataclass(frozen=True, kw_only=True)
class SeedVerdict:
    """One comparison with the reference.

    Attributes:
        seed: of the inputs.
        correct: within the tolerance.
        relative_l2: of the worst result; inf where one is not finite and the reference
            is. Where tolerances are derived, the reference is what they are derived
            for, which is not rounded after every function.
        allowed: what that error may be. Where tolerances are derived, an element that
            has no bound counts as wrong by all of its size.
        worst: the element that is furthest off, in bounds where tolerances are derived:
            result, index, what it is and what it should be; None where all are equal.
        why: what is wrong, "" if nothing.
    """

    seed: int
    correct: bool
    relative_l2: float
    allowed: float
    worst: Mapping[str, Any] | None
    why: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A broken rule, or what is left to chance.

    Attributes:
        rule: its id, or what happened: "limit", "raised", "crashed", "forbidden".
        location: "file:line", or "" where there is none.
        message: what is wrong, with the value that was found.
        remedy: what to write instead, or "".
        count: how often.
    """

    rule: str
    location: str = ""
    message: str
    remedy: str = ""
    count: int = 1

    @classmethod
    def of_error(cls, rule: str, error: NeuronJaxError, location: str = "") -> Problem:
        """Return what an error says; its place is `location` where it names none."""
        return cls(
            rule=rule,
            location=error.location or location,
            message=f"{error.op}: {error.what}" if error.op else error.what,
            remedy=error.remedy or "",
        )


@dataclass(frozen=True, kw_only=True)
class TriedMutant:
    """A wrong kernel that the tolerance was tried on.

    Attributes:
        what: it does otherwise than the reference.
        caught: whether the tolerance refuses what it returns.
        does_nothing: whether it returns zeros or an input.
        relative_l2: of what it returns; inf where it is caught.
    """

    what: str
    caught: bool
    does_nothing: bool
    relative_l2: float


@dataclass(frozen=True, kw_only=True)
class VerdictTimes:
    """What the time model says. Everything here is predicted.

    Attributes:
        predicted_ms: of one call.
        low_ms, high_ms: between which four of five measured kernels like it would lie.
        speedup: the baseline's predicted time over this; None without a baseline.
        engine_activity: of every queue the share of the time in which it works.
        hbm_read_bytes, hbm_write_bytes, spill_bytes: of one call.
        mfu: FLOP of the kernel's matmuls, of what the array could do in that time.
        instructions: executed.
        changes: what would save most: what, and how many ms at most.
    """

    predicted_ms: float
    low_ms: float | None
    high_ms: float | None
    speedup: float | None
    engine_activity: Mapping[str, float]
    hbm_read_bytes: float
    hbm_write_bytes: float
    spill_bytes: float
    mfu: float
    instructions: int
    changes: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class KernelVerdict(Displayed):
    """Whether a kernel is right, legal and safe, and how fast it would be.

    Attributes:
        candidate: its file.
        kernel: its name.
        target: the chip.
        nki: the NKI release by whose rules it is judged; "" where none was named.
        accepted: no limit is broken, nothing is left to chance, nothing forbidden was
            tried, and it is correct if there is a reference.
        undecided: why a kernel that would be accepted is not: the tolerance lets too
            large an error pass, or a kernel that does nothing; and what to do. Else "".
        correct: of every seed; None where nothing was compared, or a tolerance that
            tells too little found nothing wrong.
        tolerance: where the tolerances of the seeds come from: "derived" from the
            reference, "given", or why none could be derived; "" where nothing was
            compared.
        seeds: a comparison each.
        mutants: wrong kernels, and whether the first seed's tolerance catches them.
        limits: rules of the chip that are broken, and whatever else ended it.
        hazards: what is legal and may give another result.
        advice: what documents ask for and compilers let pass.
        times: None where the kernel cannot be priced.
        fidelity: executed instructions by how far their numbers can be trusted.
        judging_seconds: what judging took.
        schema: the version of this form.
    """

    candidate: str
    kernel: str
    target: str
    nki: str = ""
    accepted: bool
    undecided: str = ""
    correct: bool | None
    tolerance: str
    seeds: tuple[SeedVerdict, ...] = ()
    mutants: tuple[TriedMutant, ...] = ()
    limits: tuple[Problem, ...] = ()
    hazards: tuple[Problem, ...] = ()
    advice: tuple[Problem, ...] = ()
    times: VerdictTimes | None = None
    fidelity: Mapping[str, int] = dataclasses.field(default_factory=dict)
    judging_seconds: float = 0.0
    schema: str = SCHEMA

    @property
    def word(self) -> str:
        """The verdict in a word, one of `EXIT_STATUS`."""
        if self.accepted:
            return "accepted"
        return "undecided" if self.undecided else "refused"

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data; numbers that are not finite are strings."""
        return finite(dataclasses.asdict(self), str)

    def as_text(self) -> str:
        """The page that a terminal shows, in 80 columns."""
        return as_text(self.__rich__())

    def __rich__(self) -> Group:
        return verdict_tables.page(self.word, dataclasses.asdict(self))

    def __repr__(self) -> str:
        return f"<neuronjax.KernelVerdict {Path(self.candidate).name} {self.word}>"


def from_json(text: str) -> KernelVerdict:
    """The verdict that `to_json` wrote.

    Raises:
        InvalidProgramError: it is none, or of another version.
    """
    try:
        return _verdict(json_object(text))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidProgramError(
            f"no verdict of {SCHEMA}: {error}",
            op="judge",
            remedy="give what neuronjax judge --json printed, whole",
        ) from error


def _verdict(data: dict[str, Any]) -> KernelVerdict:
    if data.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {data.get('schema')!r}")
    for kind in ("limits", "hazards", "advice"):
        data[kind] = tuple(Problem(**p) for p in data[kind])
    for kind, of, numbers in (
        ("seeds", SeedVerdict, ("relative_l2", "allowed")),
        ("mutants", TriedMutant, ("relative_l2",)),
    ):
        found = data.get(kind, ())
        data[kind] = tuple(of(**x | {k: float(x[k]) for k in numbers}) for x in found)
    if data["times"] is not None:
        changes = tuple(data["times"]["changes"])
        data["times"] = VerdictTimes(**{**data["times"], "changes": changes})
    return KernelVerdict(**data)
