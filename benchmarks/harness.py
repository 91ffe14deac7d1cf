"""Measures native `jax.jit` and the emulation side by side, and reports it.

The two alternate (native, emulated, native, ...), so that a machine that slows down
slows both; the reported value is the median over the pairs, its spread the quartiles.
Times are seconds of `time.perf_counter` around a call whose result is waited for.
A row is a function registered with `row`; `run.py` finds, runs and reports them. What
an emulated program would cost on a chip is not measured here.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
from rich.table import Table

Thunk = Callable[[], Any]

# ---- Statistics.


@dataclasses.dataclass(frozen=True)
class Samples:
    """Repeated measurements of one thing, in the order in which they were taken."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("Samples needs at least one measurement")

    @property
    def median(self) -> float:
        """The median; half of the measurements are no larger."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and third quartile, interpolated; of one value, that value."""
        if len(self.values) == 1:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    @property
    def iqr(self) -> float:
        """The interquartile range."""
        low, high = self.quartiles
        return high - low

    def scaled(self, factor: float) -> Samples:
        """The same measurements in another unit."""
        return Samples(tuple(value * factor for value in self.values))

    def as_json(self) -> dict[str, Any]:
        """Median, quartiles and every measurement."""
        return {
            "median": self.median,
            "quartiles": self.quartiles,
            "runs": len(self.values),
            "values": self.values,
        }


# ---- Measuring.


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long a row may measure.

    Attributes:
        repetitions: pairs, unless the time is over earlier.
        seconds: after which no further repetition starts.
        minimum: of repetitions, whatever time they take.
    """

    repetitions: int
    seconds: float
    minimum: int = 3

    def goes_on(self, done: int, start: float) -> bool:
        """Whether to measure again after `done` repetitions since `start`."""
        early = time.perf_counter() - start < self.seconds
        return done < self.minimum or (done < self.repetitions and early)


FULL = Effort(repetitions=25, seconds=15.0)
QUICK = Effort(repetitions=3, seconds=3.0)


def users_environment() -> dict[str, str]:
    """Of a process that is timed from its start: compiled Python is kept, as it is by
    default, whatever this process was told."""
    kept = {**os.environ}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept


def seconds_of(thunk: Thunk) -> float:
    """Wall time of one call, its result computed."""
    start = time.perf_counter()
    jax.block_until_ready(thunk())
    return time.perf_counter() - start


def interleave(
    thunks: Sequence[Thunk],
    effort: Effort,
    *,
    before: Thunk = lambda: None,
    warm_up: int = 1,
) -> tuple[Samples, ...]:
    """Times several things in turn: a, b, a, b, ...

    Args:
        thunks: what to time; of arrays, the result is waited for.
        effort: how often.
        before: called, untimed, before each timed call.
        warm_up: untimed rounds that come first.

    Returns:
        For each thunk its times in seconds, equally many; equal positions are
        neighbours in time.
    """
    for _ in range(warm_up):
        for thunk in thunks:
            jax.block_until_ready(thunk())
    start = time.perf_counter()
    rounds: list[tuple[float, ...]] = []
    while effort.goes_on(len(rounds), start):
        times = []
        for thunk in thunks:
            before()
            times.append(seconds_of(thunk))
        rounds.append(tuple(times))
    return tuple(Samples(column) for column in zip(*rounds, strict=True))


def in_fresh_process(
    function: Callable[[], Any], environment: Mapping[str, str]
) -> Any:
    """`function()` in a new Python process with additional environment variables.

    Args:
        function: a module-level function; its result is pickled.
        environment: set before `function` runs, but after JAX was imported.
    """
    with ProcessPoolExecutor(
        1, get_context("spawn"), _set_environment, (dict(environment),)
    ) as pool:
        return pool.submit(function).result()


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.update(environment)


# ---- Results and rows.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What a row measured.

    Attributes:
        value: the figure that the target is about, once per repetition.
        unit: of it: "x" for emulated over native, or "us".
        native, emulated: seconds, where the figure was made from two times.
        sizes: of the problem.
        details: further figures by name, unit included: "verdict_seconds".
    """

    value: Samples
    unit: str
    native: Samples | None = None
    emulated: Samples | None = None
    sizes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    details: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """A JSON value."""
        times = {"native_seconds": self.native, "emulated_seconds": self.emulated}
        return {
            "value": self.value.median,
            "unit": self.unit,
            "samples": self.value.as_json(),
            **{name: s and s.as_json() for name, s in times.items()},
            "sizes": dict(self.sizes),
            "details": dict(self.details),
        }


def ratio(native: Samples, emulated: Samples, **fields: Any) -> Result:
    """Emulated over native time, pair by pair: drift of the machine cancels."""
    pairs = zip(native.values, emulated.values, strict=True)
    value = Samples(tuple(slow / fast for fast, slow in pairs))
    return Result(value=value, unit="x", native=native, emulated=emulated, **fields)


def compare_calls(
    native: Callable[..., Any],
    emulated: Callable[..., Any],
    args: Sequence[Any],
    effort: Effort,
    **fields: Any,
) -> Result:
    """The run-time ratio of two jitted or compiled functions of the same arguments."""
    thunks = (lambda: native(*args), lambda: emulated(*args))
    return ratio(*interleave(thunks, effort), **fields)


@dataclasses.dataclass(frozen=True)
class Row:
    """A benchmark: its name, how to measure it, and what is aimed at.

    Attributes:
        name: "group/variant"; what `--filter` selects.
        measure: takes the effort.
        target: the largest value that is good enough; None for information only.
    """

    name: str
    measure: Callable[[Effort], Result]
    target: float | None = None


ROWS: dict[str, Row] = {}


def row(
    name: str, *, target: float | None = None, rows: dict[str, Row] = ROWS
) -> Callable[[Callable[[Effort], Result]], Callable[[Effort], Result]]:
    """Registers a function of an `Effort` as a row.

    Args:
        name: unique, "group/variant".
        target: the largest value that is good enough; None for information only.
        rows: the registry.

    Raises:
        ValueError: two rows of one name.
    """

    def register(measure: Callable[[Effort], Result]) -> Callable[[Effort], Result]:
        if name in rows:
            raise ValueError(f"two rows are named {name}")
        rows[name] = Row(name, measure, target)
        return measure

    return register


def select(rows: Mapping[str, Row], patterns: Sequence[str]) -> list[Row]:
    """The rows of these names; a pattern that is no name is a glob for part of one.

    Those with a target come first, so that a run cut short has measured them.
    """
    globs = [p if p in rows else f"*{p}*" for p in patterns] or ["*"]
    chosen = [rows[n] for n in rows if any(fnmatchcase(n, glob) for glob in globs)]
    return sorted(chosen, key=lambda r: r.target is None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """What became of a row.

    Attributes:
        row: the row.
        status: "measured", "crashed", or "skipped" for lack of time.
        result: of a row that was measured.
        error: the traceback of one that crashed.
        seconds: that the row took, preparation included.
    """

    row: Row
    status: str
    result: Result | None = None
    error: str | None = None
    seconds: float = 0.0

    @property
    def reached(self) -> bool | None:
        """Whether the median is at most the target; None without one or the other."""
        if self.result is None or self.row.target is None:
            return None
        return self.result.value.median <= self.row.target

    def as_json(self) -> dict[str, Any]:
        """A JSON value; `Result.as_json` adds the figures."""
        return {
            "name": self.row.name,
            "status": self.status,
            "target": self.row.target,
            "reached": self.reached,
            "seconds": round(self.seconds, 3),
            "error": self.error,
            **(self.result.as_json() if self.result else {}),
        }


# ---- The circumstances.


def circumstances() -> dict[str, Any]:
    """When, with which versions and on what machine: part of every results file."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": machine(),
    }


def versions() -> dict[str, str]:
    """Of Python, JAX, jaxlib, neuronjax, and the commit ("+" where it was changed)."""
    import neuronjax

    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("jax", "jaxlib")},
        "neuronjax": neuronjax.__version__,
        "commit": commit(Path(__file__).parent),
    }


def commit(folder: Path) -> str:
    """The commit checked out around a folder; "unknown" outside a git checkout."""

    def git(*arguments: str) -> str:
        command = ("git", "-C", str(folder), *arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine() -> dict[str, Any]:
    """The processor and what of it this process may use; the load says how quietly."""
    affinity = getattr(os, "sched_getaffinity", None)
    load = getattr(os, "getloadavg", None)
    return {
        "processor": _processor(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "cores": _physical_cores(),
        "threads": len(affinity(0)) if affinity else os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "load_at_start": load()[0] if load else None,
    }


def _processor() -> str:
    return next(iter(_cpuinfo("model name")), platform.processor())


def _physical_cores() -> int | None:
    """Of the machine; None where the system does not tell."""
    cores = zip(_cpuinfo("physical id"), _cpuinfo("core id"), strict=True)
    return len(set(cores)) or None


def _cpuinfo(field: str) -> list[str]:
    """A field of Linux's /proc/cpuinfo for each logical processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for name, _, value in pairs if name.strip() == field]


# ---- The report.


def document(
    records: Sequence[Record], effort: Effort, about: Mapping[str, Any]
) -> dict[str, Any]:
    """All of a run as one JSON value."""
    return {
        "schema": 1,
        **about,
        "effort": dataclasses.asdict(effort),
        "rows": [record.as_json() for record in records],
    }


COLUMNS = ("row", "native", "emulated", "value", "IQR", "target", "ok", "n")


def table(records: Sequence[Record]) -> Table:
    """The rows as a table of at most 80 columns."""
    made = Table(box=None)
    made.add_column(COLUMNS[0], no_wrap=True)
    for name in COLUMNS[1:]:
        made.add_column(name, justify="right", no_wrap=True)
    for record in records:
        made.add_row(*_cells(record))
    return made


def _cells(record: Record) -> tuple[str, ...]:
    target = "" if record.row.target is None else f"{record.row.target:g}"
    result = record.result
    if result is None:
        return (record.row.name, "", "", record.status, "", target, "", "")
    reached = {None: "", True: "yes", False: "no"}[record.reached]
    return (
        record.row.name,
        *(duration(s.median) if s else "" for s in (result.native, result.emulated)),
        f"{result.value.median:.3g} {result.unit}",
        f"{result.value.iqr:.2g}" if len(result.value.values) > 1 else "",
        target,
        reached,
        str(len(result.value.values)),
    )


def footnotes(records: Sequence[Record], about: Mapping[str, Any]) -> Iterator[str]:
    """What goes under the table: details of rows, versions, machine, how to read it."""
    for record in records:
        details = record.result.details.items() if record.result else ()
        if details:
            figures = ", ".join(f"{name} {value:.3g}" for name, value in details)
            yield f"{record.row.name}: {figures}"
    yield ", ".join(f"{name} {text}" for name, text in about["versions"].items())
    machine = about["machine"]
    load = machine["load_at_start"]
    noise = "" if load is None else f", load {load:.1f} at the start"
    yield f"{machine['processor']}, {machine['threads']} threads{noise}"
    yield "native, emulated: medians; value: median over n interleaved repetitions"


def duration(seconds: float) -> str:
    """Three digits and a unit: "12.3 ms"."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def error_report(record: Record) -> str:
    """The name of a crashed row and its traceback."""
    return f"{record.row.name} crashed:\n{record.error}"


def progress(text: str) -> None:
    """A line for whoever waits; the results go to standard output."""
    print(text, file=sys.stderr, flush=True)
