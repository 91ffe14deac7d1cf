"""Measures native `jax.jit` and the emulation side by side, and reports the ratio.

The two alternate (native, emulated, native, ...), so that a slowdown of the machine
affects both. The reported value is the median over the pairs, its spread the quartiles.
Times are seconds of `time.perf_counter` around a call, including the wait for its
result. A row is a function registered with `row`; `run.py` finds, runs and reports
rows. The cost of a program on a chip is not measured here.
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
    """Repeated measurements of one quantity, in order of time."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("Samples needs at least one measurement")

    @property
    def median(self) -> float:
        """The median of the measurements."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and third quartile, interpolated; both the value if only one."""
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
        """Return the same measurements in another unit."""
        return Samples(tuple(value * factor for value in self.values))

    def as_json(self) -> dict[str, Any]:
        """Return median, quartiles and all measurements as plain data."""
        return {
            "median": self.median,
            "quartiles": self.quartiles,
            "runs": len(self.values),
            "values": self.values,
        }


# ---- Measuring.


@dataclasses.dataclass(frozen=True)
class Effort:
    """Limits on the measurements of a row.

    Attributes:
        repetitions: maximum number of pairs.
        seconds: time after which no further repetition starts.
        minimum: minimum number of repetitions, whatever time they take.
    """

    repetitions: int
    seconds: float
    minimum: int = 3

    def goes_on(self, done: int, start: float) -> bool:
        """Return whether to measure again after `done` repetitions since `start`."""
        early = time.perf_counter() - start < self.seconds
        return done < self.minimum or (done < self.repetitions and early)


FULL = Effort(repetitions=25, seconds=15.0)
QUICK = Effort(repetitions=3, seconds=3.0)


def users_environment() -> dict[str, str]:
    """Return the environment for processes that are timed from their start. They keep
    compiled Python files, as is the default, even if this process does not."""
    kept = {**os.environ}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept


def seconds_of(thunk: Thunk) -> float:
    """Return the wall time of one call, including the computation of its result."""
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
    """Time several functions in turn: a, b, a, b, ...

    Args:
        thunks: the functions to time, including the wait for resulting arrays.
        effort: the number of repetitions.
        before: a function that is called, untimed, before each timed call.
        warm_up: number of untimed rounds at the start.

    Returns:
        For each function its times in seconds. All have the same number of times, and
        times at the same position were measured one after the other.
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
    """Return `function()` of a new Python process with environment variables added.

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
    """The measurements of a row.

    Attributes:
        value: the value that the target limits, once per repetition.
        unit: its unit: "x" for emulated over native, or "us".
        native, emulated: seconds, if the value is the ratio of two times.
        sizes: sizes of the problem.
        details: further figures, with the unit in their names: "verdict_seconds".
    """

    value: Samples
    unit: str
    native: Samples | None = None
    emulated: Samples | None = None
    sizes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    details: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
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
    """Return emulated over native time, pair by pair, so that drift cancels."""
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
    """Return the run-time ratio of two jitted or compiled functions."""
    thunks = (lambda: native(*args), lambda: emulated(*args))
    return ratio(*interleave(thunks, effort), **fields)


@dataclasses.dataclass(frozen=True)
class Row:
    """A benchmark: its name, its measurement, and its target.

    Attributes:
        name: "group/variant", as selected by `--filter`.
        measure: a function of the effort.
        target: the largest acceptable value; None for information only.
    """

    name: str
    measure: Callable[[Effort], Result]
    target: float | None = None


ROWS: dict[str, Row] = {}


def row(
    name: str, *, target: float | None = None, rows: dict[str, Row] = ROWS
) -> Callable[[Callable[[Effort], Result]], Callable[[Effort], Result]]:
    """Register a function of an `Effort` as a row.

    Args:
        name: a unique name, "group/variant".
        target: the largest acceptable value; None for information only.
        rows: the registry.

    Raises:
        ValueError: the name is already in use.
    """

    def register(measure: Callable[[Effort], Result]) -> Callable[[Effort], Result]:
        if name in rows:
            raise ValueError(f"two rows are named {name}")
        rows[name] = Row(name, measure, target)
        return measure

    return register


def select(rows: Mapping[str, Row], patterns: Sequence[str]) -> list[Row]:
    """Return the rows with these names. Other patterns are globs for part of a name.

    Rows with a target come first, so they are measured even if the run is cut short."""
    globs = [p if p in rows else f"*{p}*" for p in patterns] or ["*"]
    chosen = [rows[n] for n in rows if any(fnmatchcase(n, glob) for glob in globs)]
    return sorted(chosen, key=lambda r: r.target is None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """The outcome of a row.

    Attributes:
        row: the row.
        status: "measured", "crashed", or "skipped" for lack of time.
        result: the result of a measured row.
        error: the traceback of a crashed row.
        seconds: time of the row, including preparation.
    """

    row: Row
    status: str
    result: Result | None = None
    error: str | None = None
    seconds: float = 0.0

    @property
    def reached(self) -> bool | None:
        """Whether the median is at most the target; None without a median or target."""
        if self.result is None or self.row.target is None:
            return None
        return self.result.value.median <= self.row.target

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as plain data, with the figures of `Result.as_json`."""
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
    """Return date, versions and machine, as part of every results file."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": machine(),
    }


def versions() -> dict[str, str]:
    """Return versions of Python, JAX and neuronjax, and the commit ("+" if changed)."""
    import neuronjax

    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("jax", "jaxlib")},
        "neuronjax": neuronjax.__version__,
        "commit": commit(Path(__file__).parent),
    }


def commit(folder: Path) -> str:
    """Return the commit that is checked out around a folder, with "+" if anything but
    results was changed since; "unknown" without git."""

    def git(*arguments: str) -> str:
        command = ("git", "-C", str(folder), *arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        results = ":(top,exclude)benchmarks/results"
        return head + ("+" if git("status", "--porcelain", ":/", results) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine() -> dict[str, Any]:
    """Return the processor, the share that this process may use, and the load."""
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
    """Return the number of physical cores; None if the system does not report it."""
    cores = zip(_cpuinfo("physical id"), _cpuinfo("core id"), strict=True)
    return len(set(cores)) or None


def _cpuinfo(field: str) -> list[str]:
    """Return a field of Linux's /proc/cpuinfo for each logical processor."""
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
    """Return a whole run as one JSON value."""
    return {
        "schema": 1,
        **about,
        "effort": dataclasses.asdict(effort),
        "rows": [record.as_json() for record in records],
    }


COLUMNS = ("row", "native", "emulated", "value", "IQR", "target", "ok", "n")


def table(records: Sequence[Record]) -> Table:
    """Return the rows as a table of at most 80 columns."""
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
    """Yield the lines below the table: details, versions, machine, explanation."""
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
    """Return seconds with three digits and a unit: "12.3 ms"."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def error_report(record: Record) -> str:
    """Return the name of a crashed row and its traceback."""
    return f"{record.row.name} crashed:\n{record.error}"


def progress(text: str) -> None:
    """Print a line of progress to standard error; results go to standard output."""
    print(text, file=sys.stderr, flush=True)
