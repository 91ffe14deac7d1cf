"""Numbers of public NKI kernels against what was published of chips.

    python -m benchmarks.validate_numerics CORPUS [--only swiglu ...] [--output FILE]

CORPUS is a folder with the repositories of `validation.corpus`; without them the
program says what to fetch. Each kernel runs on the inputs it was measured with, in a
process of its own; its result is compared with NKIBench's FP32 NumPy reference, as the
device's was, and both distances are printed.

NumPy has an error of its own, which is in both figures. It depends on the host: BLAS
adds in blocks of K whose length is the processor's. Where it is a tenth of the device's
distance or more, the last two columns leave it out: of the device, sqrt(d^2 - n^2), as
if the two errors were independent; of the emulator, the distance from float64 itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import neuronjax as nj
from benchmarks import results_file
from benchmarks.validation import corpus as corpora, numeric_rows
from benchmarks.validation.numeric_rows import NumericRow
from neuronjax.errors import NeuronJaxError
from neuronjax.policy.values import LEGAL

CLOSE = 0.1
#: NumPy's own error is taken out above this share of the device's distance.
COUNTED = 0.1
MOST_SECONDS = 900.0
MOST_BYTES = 4 << 30


@dataclass(frozen=True)
class Distances:
    """Relative L2 distances of the results of one row.

    Attributes:
        here: distance from NumPy to the emulator.
        exact: distance from float64 to the emulator.
        numpy: distance from float64 to NumPy.
        seconds: time of the kernel here, with compilation.
        peak_bytes: peak memory of the process.
    """

    row: NumericRow
    here: float
    exact: float
    numpy: float
    seconds: float
    peak_bytes: int

    @property
    def ratio(self) -> float:
        """The emulator's distance divided by the device's; 1 if both are zero."""
        device = self.row.distance
        if not device:
            return 1.0 if not self.here else math.inf
        return self.here / device

    @property
    def is_close(self) -> bool:
        """Whether the ratio is 1 within a tenth and the rounding of the figure."""
        rounded = numeric_rows.rounding(self.row.distance, self.row.digits)
        return abs(self.ratio - 1) <= CLOSE + rounded

    @property
    def device_alone(self) -> float | None:
        """The device's distance from float64, if its error and NumPy's are independent.
        None if NumPy's is too small to matter, or larger than the whole."""
        device = self.row.distance
        if self.numpy < COUNTED * device or self.numpy >= device:
            return None
        return math.sqrt(device**2 - self.numpy**2)

    def as_json(self) -> dict[str, Any]:
        """Return the distances as plain data."""
        row = self.row
        return {
            "op": row.op,
            "kernel": row.kernel,
            "chip": row.chip,
            "about": row.about,
            "device": row.distance,
            "here": self.here,
            "ratio": self.ratio if math.isfinite(self.ratio) else None,
            "is_close": self.is_close,
            "numpy": self.numpy,
            "device_alone": self.device_alone,
            "here_alone": self.exact,
            "seconds": self.seconds,
            "peak_bytes": self.peak_bytes,
        }


def measure(row: NumericRow, corpus: Path, transcendentals: str) -> Distances:
    """Run a row's kernel in this process, and return its distances.

    Raises:
        NeuronJaxError: files are missing, or an instruction is refused.
    """
    start = time.perf_counter()
    result = _result(row, corpus, transcendentals)
    seconds = time.perf_counter() - start
    helpers = corpora.reference(row.op, corpus)
    given = corpora.inputs(helpers)
    squares = _squares(row.op, helpers, given, result)
    norms = np.sqrt(squares)
    return Distances(
        row,
        here=float(norms[0] / norms[3]),
        exact=float(norms[1] / norms[4]),
        numpy=float(norms[2] / norms[4]),
        seconds=seconds,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _result(row: NumericRow, corpus: Path, transcendentals: str) -> np.ndarray:
    """Return the kernel's result, computed under a policy unless it is the default."""
    kernel, arguments = corpora.kernel_and_arguments(row, corpus)
    run = kernel.with_target(row.chip)
    arrays = [a for a in arguments if isinstance(a, np.ndarray)]

    def on_arrays(*arrays: Any) -> Any:
        rest = iter(arrays)
        filled = [next(rest) if isinstance(a, np.ndarray) else a for a in arguments]
        return run(*filled)

    if transcendentals != nj.Policy().transcendentals:
        policy = nj.Policy(transcendentals=transcendentals)
        on_arrays = nj.jit(on_arrays, target=row.chip, policy=policy)
    found = on_arrays(*arrays)
    return np.asarray(found[0] if isinstance(found, tuple) else found)


def _squares(
    op: str, helpers: ModuleType, given: Sequence[Any], result: np.ndarray
) -> np.ndarray:
    """Return squared norms of result - NumPy, result - float64, NumPy - float64, NumPy
    and float64."""
    total = np.zeros(5)
    whole: np.ndarray | None = None
    for where, part in numeric_rows.in_pieces(op, given):
        expected = helpers.forward(*part)
        if whole is None:
            shape = _full_shape(op, expected.shape)
            whole = result.reshape(shape)
        wide = [x.astype(np.float64) if isinstance(x, np.ndarray) else x for x in part]
        exact = helpers.forward(*wide)
        here = whole[where].astype(np.float64)
        expected = expected.astype(np.float64)
        differences = (here - expected, here - exact, expected - exact, expected, exact)
        total += [float(np.vdot(d, d)) for d in differences]
    return total


def _full_shape(op: str, part: tuple[int, ...]) -> tuple[int, ...]:
    pieces = numeric_rows.PIECES.get(op)
    if pieces is None:
        return part
    at = pieces.output
    return (*part[:at], part[at] * pieces.count, *part[at + 1 :])


# ---- A process per row.


def measured_apart(
    row: NumericRow, corpus: Path, transcendentals: str, most_seconds: float
) -> Distances | str:
    """Return the distances measured in a new process, or why there are none."""
    command = [
        *(sys.executable, "-m", "benchmarks.validate_numerics", str(corpus)),
        *("--row", f"{row.op}/{row.kernel}", "--transcendentals", transcendentals),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=most_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done within {most_seconds:.0f} s"
    if done.returncode:
        said = (done.stderr.strip() or f"ended with {done.returncode}").splitlines()
        return f"failed: {said[-1]}"
    return Distances(row, **json.loads(done.stdout.splitlines()[-1]))


def _child(name: str, corpus: Path, transcendentals: str) -> int:
    """Measure one row within its memory limit, and print the figures."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    (row,) = (r for r in numeric_rows.rows() if f"{r.op}/{r.kernel}" == name)
    try:
        found = measure(row, corpus, transcendentals)
    except NeuronJaxError as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return 1
    except MemoryError:
        print(f"needs more than {MOST_BYTES >> 30} GiB", file=sys.stderr)
        return 1
    figures = dataclasses.asdict(found)
    del figures["row"]
    print(json.dumps(figures))
    return 0


# ---- The table.

HEAD = (
    f"{'':32}{'device':>11}{'here':>11}{'ratio':>7}  {'within':8}{'NumPy':>9}"
    f"{'device alone':>14}{'here alone':>12}"
)


def line(found: Distances) -> str:
    """Return a row of the table."""
    row = found.row
    figures = f"{row.distance:11.3e}{found.here:11.3e}{found.ratio:7.3f}"
    verdict = "10 %" if found.is_close else "no"
    alone = ""
    if found.device_alone is not None:
        alone = f"{found.device_alone:14.2e}{found.exact:12.2e}"
    return f"{row.name[:31]:32}{figures}  {verdict:8}{found.numpy:9.2e}{alone}"


def run(
    chosen: Iterable[NumericRow], find: Callable[[NumericRow], Distances | str]
) -> tuple[list[Distances], dict[str, str]]:
    """Return the distances, and the reasons for missing ones; print each row."""
    found: list[Distances] = []
    missing: dict[str, str] = {}
    for row in chosen:
        got = find(row)
        if isinstance(got, str):
            missing[row.name] = got
            print(f"{row.name[:31]:32}{got}", flush=True)
        else:
            found.append(got)
            print(line(got), flush=True)
    return found, missing


def main(given: Sequence[str] | None = None) -> int:
    parser = corpora.command_line(__doc__.splitlines()[0])
    parser.add_argument(
        "--transcendentals", default="exact", choices=LEGAL["transcendentals"]
    )
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help="a row")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.row:
        return _child(options.row, options.corpus, options.transcendentals)
    if not corpora.is_there(options.corpus):
        return 2
    chosen = corpora.chosen(numeric_rows.rows(), options.only)
    print(HEAD)
    begun = results_file.Run("validate_numerics")

    def find(row: NumericRow) -> Distances | str:
        way = options.transcendentals
        return measured_apart(row, options.corpus, way, options.seconds)

    found, missing = run(chosen, find)
    close = sum(f.is_close for f in found)
    print(f"{close} of {len(found)} within 10 %; {len(missing)} not done")
    if options.output:
        others = (row.name for row in numeric_rows.rows() if row not in chosen)
        missing |= dict.fromkeys(others, "not asked for")
        body = {
            "transcendentals": options.transcendentals,
            "entries": [f.as_json() for f in found],
            "not_done": missing,
        }
        document = begun.document(body, quick=bool(options.only))
        if options.transcendentals == "scalar_engine" and options.output.exists():
            # Stored beside the main results, which are those of "exact".
            document = {**results_file.read(options.output), "scalar_engine": body}
        results_file.write(document, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
