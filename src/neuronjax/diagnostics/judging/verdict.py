"""The verdict on a kernel: plain data, the same in Python and as JSON.

Within one version of the format (`SCHEMA`), fields keep their names and meanings.
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
#: The verdicts, best first, with the exit status of `neuronjax judge` for each.
EXIT_STATUS = {"accepted": 0, "undecided": 3, "refused": 1}
#: A tolerance that accepts larger relative L2 errors than this is too wide to decide.
DECIDES = 0.1


@dataclass(frozen=True, kw_only=True)
class SeedVerdict:
    """The comparison of a kernel's results with the reference's, for one seed.

    Attributes:
        correct: whether every result is within its tolerance.
        relative_l2: relative L2 error of the worst result; inf if an element is not
            finite where the reference is. With derived tolerances, the reference is
            computed in float64 and not rounded after each function.
        allowed: the largest `relative_l2` that passes. With derived tolerances, the
            error of an element without a bound counts as 100 %.
        worst: "result" (number), "index", "actual" and "expected" value of the element
            with the largest error (with derived tolerances, relative to its bound);
            None if no element differs from the reference, or if shapes differ.
        why: what is wrong; "" if `correct`.
    """

    seed: int
    correct: bool
    relative_l2: float
    allowed: float
    worst: Mapping[str, Any] | None
    why: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A broken rule, a dependence on chance, or advice.

    Attributes:
        rule: id of the rule, or what happened, such as "raised" or "forbidden".
        location: "file:line", or "" if there is none.
        message: what is wrong, with the offending value.
        remedy: what to write instead, or "".
        count: number of occurrences.
    """

    rule: str
    location: str = ""
    message: str
    remedy: str = ""
    count: int = 1

    @classmethod
    def of_error(cls, rule: str, error: NeuronJaxError, location: str = "") -> Problem:
        """Return `error` as a problem of `rule`, at `location` if `error` has none."""
        return cls(
            rule=rule,
            location=error.location or location,
            message=f"{error.op}: {error.what}" if error.op else error.what,
            remedy=error.remedy or "",
        )


@dataclass(frozen=True, kw_only=True)
class TriedMutant:
    """A wrong kernel on which the tolerance was tried.

    Attributes:
        what: how the kernel differs from the reference.
        caught: whether the tolerance refuses the kernel's results.
        does_nothing: whether the kernel returns zeros or an input.
        relative_l2: relative L2 error of the results; inf if the kernel is caught.
    """

    what: str
    caught: bool
    does_nothing: bool
    relative_l2: float


@dataclass(frozen=True, kw_only=True)
class VerdictTimes:
    """Predictions of the time model.

    Attributes:
        predicted_ms: time of one call.
        low_ms, high_ms: 80 % interval of the time, from errors of the prediction for
            similar measured kernels; None if it is not known.
        speedup: a given baseline's predicted time over `predicted_ms`; otherwise None.
        engine_activity: name of a queue -> share of the time in which the queue works.
        hbm_read_bytes, hbm_write_bytes, spill_bytes: bytes that one call moves.
        mfu: FLOP of the kernel's matmuls over TensorE's peak FLOP in `predicted_ms`.
        instructions: number of executed instructions.
        changes: the changes that would save most, and the most ms that each can save.
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
    """The verdict on a kernel: its correctness, its problems and its predicted time.

    Attributes:
        candidate: path of the kernel's file.
        target: the chip.
        nki: the NKI release whose rules apply; "" if none was named.
        accepted: whether no limit is broken, nothing depends on chance, nothing
            forbidden was tried, and the kernel is correct if there is a reference.
        undecided: reason and remedy if no fault was found, but the tolerance accepts
            large errors or a kernel that does nothing; otherwise "".
        correct: whether the results for all seeds are correct; None if nothing was
            compared, or if all pass but the tolerance is too wide to decide.
        tolerance: source of the seeds' tolerances: "derived" from the reference,
            "given", or why no tolerance was derived; "" if nothing was compared.
        seeds: one comparison per seed.
        mutants: wrong kernels, and whether the first seed's tolerance catches them.
        limits: broken rules of the chip, and other reasons to refuse the kernel.
        hazards: code that breaks no limit, but whose result may vary.
        advice: broken rules that compilers do not enforce, and remarks.
        times: predicted times; None if they cannot be predicted.
        fidelity: number of executed instructions by label, such as "exact".
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
        """Return "accepted", "undecided" or "refused"."""
        if self.accepted:
            return "accepted"
        return "undecided" if self.undecided else "refused"

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data, with Inf and NaN as strings."""
        return finite(dataclasses.asdict(self), str)

    def as_text(self) -> str:
        """Return the page that a terminal shows, in 80 columns."""
        return as_text(self.__rich__())

    def __rich__(self) -> Group:
        return verdict_tables.page(self.word, dataclasses.asdict(self))

    def __repr__(self) -> str:
        return f"<neuronjax.KernelVerdict {Path(self.candidate).name} {self.word}>"


def from_json(text: str) -> KernelVerdict:
    """Return the verdict that `text` contains as JSON.

    Raises:
        InvalidProgramError: `text` is no verdict, or has another version of the format.
    """
    try:
        return _verdict(json_object(text))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidProgramError(
            f"the text is no verdict of {SCHEMA}: {error}",
            op="judge",
            remedy="give all that `neuronjax judge --json` printed",
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
