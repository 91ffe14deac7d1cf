"""`judge_all`: every kernel of a folder, best first.

Each kernel is judged in a separate process. A kernel that hangs or uses all memory
therefore does not affect the verdicts of the others.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.table import Table

from neuronjax.diagnostics.judging.verdict import (
    EXIT_STATUS,
    KernelVerdict,
    Problem,
    from_json,
)
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.nki.releases.release import resolve_release
from neuronjax.report.places import place
from neuronjax.report.quantities import seconds
from neuronjax.report.setting import kernel_line
from neuronjax.report.tables import NAME, NUMBER, TEXT, WORD, Displayed, new_table


class KernelVerdicts(Displayed, tuple[KernelVerdict, ...]):
    """The verdicts of a folder: accepted kernels first, then undecided ones; both in
    order of predicted time."""

    __slots__ = ()
    _repr_pretty_ = Displayed._repr_pretty_  # IPython prefers this to __repr__

    def as_dict(self) -> Any:
        """Return a list of all verdicts as plain data."""
        return [verdict.as_dict() for verdict in self]

    def __rich__(self) -> Table:
        columns = {"": WORD, "kernel": NAME, "ms": NUMBER, "why": TEXT}
        rows = ((v.word, place(v.candidate), *_time_and_reason(v)) for v in self)
        title = f"{len(self)} kernels"
        for v in self[:1]:  # all are judged for the same machine and rules
            title += f" on {kernel_line(resolve_target(v.target), nki=v.nki)}"
        return new_table(title, columns, rows)

    def __repr__(self) -> str:
        accepted = sum(verdict.accepted for verdict in self)
        return f"<neuronjax.KernelVerdicts {accepted} of {len(self)}>"


def _time_and_reason(verdict: KernelVerdict) -> tuple[str, str]:
    times = verdict.times
    first = next((p for p in (*verdict.limits, *verdict.hazards)), None)
    wrong = next((s.why for s in verdict.seeds if s.why), verdict.undecided)
    why = wrong if first is None else f"{first.rule}: {first.message}"
    if not why and times is not None and times.speedup is not None:
        why = f"{times.speedup:.3g} times as fast as the baseline"
    return ("-" if times is None else f"{times.predicted_ms:.4g}"), why


def judge_all(
    folder: str | Path,
    *,
    jobs: int = 1,
    limit: float = 600.0,
    shown: Callable[[KernelVerdict], None] | None = None,
    **options: Any,
) -> KernelVerdicts:
    """Judge every Python file of a folder that is not the reference or the baseline.

    Args:
        folder: a folder of candidates; its subfolders are ignored.
        jobs: Number of kernels that are judged at the same time.
        limit: Seconds that one verdict may take.
        shown: a function that is called with each verdict as soon as it is available.
        **options: as `judge`.

    Raises:
        InvalidProgramError: the folder does not exist or has no candidate.
    """
    beside = filter(None, map(options.get, ("reference", "baseline")))
    given = {Path(path).resolve() for path in beside}
    files = [p for p in sorted(Path(folder).glob("*.py")) if p.resolve() not in given]
    if not files:
        raise InvalidProgramError(
            f"no candidates in {folder}",
            op="judge",
            remedy="name a folder of .py files",
        )
    found: list[KernelVerdict] = []
    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        pending = [pool.submit(_in_child, f, limit, options) for f in files]
        for done in as_completed(pending):
            found.append(done.result())
            if shown is not None:
                shown(found[-1])
    return KernelVerdicts(sorted(found, key=_rank))


def _rank(verdict: KernelVerdict) -> tuple[int, float, str]:
    time_ms = float("inf") if verdict.times is None else verdict.times.predicted_ms
    return [*EXIT_STATUS].index(verdict.word), time_ms, verdict.candidate


def _in_child(path: Path, limit: float, options: dict[str, Any]) -> KernelVerdict:
    start = time.monotonic()
    command = [sys.executable, "-m", "neuronjax", "judge", str(path), "--json"]
    try:
        flags = []
        for name, value in options.items():
            if value is None or value == ():
                continue
            many = isinstance(value, Sequence) and not isinstance(value, str)
            text = ",".join(map(str, value)) if many else str(value)
            flags += [f"--{name}", text]
        done = subprocess.run(
            [*command, *flags],
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        why = f"no verdict within {seconds(limit)}"
    else:
        if done.returncode in EXIT_STATUS.values() and done.stdout:
            return from_json(done.stdout)
        if done.returncode == 2:
            raise InvalidProgramError(done.stderr.strip(), op="judge")
        why = f"the judge ended with status {done.returncode}: {done.stderr[-300:]}"
    release = options.get("nki")
    return KernelVerdict(
        candidate=str(path.resolve()),
        kernel="",
        target=options.get("target") or "trn2",
        nki=resolve_release(release).name if release else "",
        accepted=False,
        correct=None,
        tolerance="",
        limits=(Problem(rule="ended", location=str(path), message=why, remedy=""),),
        judging_seconds=time.monotonic() - start,
    )
