"""Predicted times of public NKI kernels against what was measured on chips.

    python -m benchmarks.validate_kernels CORPUS [--only silu ...] [--output FILE]

CORPUS is a folder with the repositories of `validation.corpus`; without them the
program says what to fetch. Every kernel is traced and scheduled for one physical core.
Printed are times, the busy time of engines and bytes of HBM beside the profiler's
counters, and per op the order of its variants: Spearman's correlation, and the regret
of taking the variant that the model finds fastest; and of the pairs that differ by more
than 5 % the share in the right order.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import spearmanr

import neuronjax as nj
from benchmarks import results_file
from benchmarks.validation import corpus as corpora
from benchmarks.validation.corpus import CorpusRow
from neuronjax.errors import NeuronJaxError

MS, MB = 1e-3, 1e6
QUEUES = ("tensor", "vector", "scalar", "dma")
#: Ops to which a figure of the model was fitted, with the figure.
FITTED = {
    "silu": "dma_streaming_bytes_per_second",
    "adamw": "dma_streaming_bytes_per_second; two FP32 streams of VectorE",
    "bmm": "THROTTLE_SINKING; open engines are balanced",
    "mamba": "what an inner loop repeats is computed once",
    "gqa_full": "TensorE's stream is ordered too; zeros in PSUM cost nothing",
}
CLOSE, APART = 0.3, 0.05
FEWEST_OF_AN_ORDER = 6  # an order is reported for at least this many variants


@dataclass(frozen=True)
class Prediction:
    """A row and the time that the model predicts for it.

    Attributes:
        seconds: predicted time of the kernel.
        busy: predicted busy seconds of each queue.
        read_bytes, write_bytes: predicted bytes of HBM.
        spent_seconds: time that tracing and scheduling took.
    """

    row: CorpusRow
    seconds: float
    busy: dict[str, float]
    read_bytes: float
    write_bytes: float
    spent_seconds: float

    @property
    def error(self) -> float:
        """The relative error: predicted / measured - 1."""
        return self.seconds / self.row.seconds - 1

    def as_json(self) -> dict[str, Any]:
        """Return the prediction as plain data."""
        row = self.row
        return {
            "op": row.op,
            "kernel": row.kernel,
            "chip": row.chip,
            "measured_seconds": row.seconds,
            "predicted_seconds": self.seconds,
            "error": self.error,
            "active": dict(row.active),
            "busy_seconds": self.busy,
            "read_bytes": [row.read_bytes, self.read_bytes],
            "write_bytes": [row.write_bytes, self.write_bytes],
        }


def predict(row: CorpusRow, corpus: Path) -> Prediction:
    """Return the model's prediction for a row.

    Raises:
        NeuronJaxError: files are missing, or an instruction is refused or unpriced.
    """
    begin = time.perf_counter()
    kernel, arguments = corpora.kernel_and_arguments(row, corpus)
    found = nj.profile(kernel, target=row.chip, lnc=1)(*arguments)
    engines = found.by_engine()
    busy = {q: engines[q].seconds[q] for q in QUEUES if q in engines}  # type: ignore[index]
    metrics = found.metrics
    return Prediction(
        row,
        found.total_seconds,
        busy,
        metrics["hbm_read_bytes"],
        metrics["hbm_write_bytes"],
        time.perf_counter() - begin,
    )


def line(found: Prediction) -> str:
    """Return a line with times, and predicted / measured of the published counters."""
    row = found.row
    parts = [
        f"{q[:2]} {found.busy.get(q, 0) / MS:.2f}/{share * row.seconds / MS:.2f}"
        for q, share in row.active.items()
        if share >= 0.02
    ]
    moved = (row.read_bytes, found.read_bytes), (row.write_bytes, found.write_bytes)
    for sign, (measured, predicted) in zip("rw", moved, strict=True):
        if measured:
            parts.append(f"{sign} {predicted / MB:.0f}/{measured / MB:.0f}")
    return (
        f"{row.name[:34]:34} {row.chip} {row.seconds / MS:7.3f} "
        f"{found.seconds / MS:7.3f} {found.error:+5.0%}  {' '.join(parts)}"
    )


def summary(found: Sequence[Prediction]) -> str:
    """Return medians by chip and by op, and the order of variants, as text."""
    head = "                     rows  median  within 30 %  Spearman  regret  pairs"
    lines = ["", head]
    for chip in sorted({p.row.chip for p in found}):
        lines.append(_summed(chip, [p for p in found if p.row.chip == chip]))
    unseen = [p for p in found if p.row.op not in FITTED]
    if unseen:
        lines.append(_summed("no figure fitted", unseen))
    for op in dict.fromkeys(p.row.op for p in found):
        mine = [p for p in found if p.row.op == op and p.row.chip == "trn2"]
        if mine:
            lines.append(_summed(op, mine, ordered=True))
    lines += ["", *(f"{op}: {what}" for op, what in FITTED.items())]
    return "\n".join(lines)


def _summed(name: str, found: Sequence[Prediction], ordered: bool = False) -> str:
    errors = [abs(p.error) for p in found]
    close = sum(e <= CLOSE for e in errors) / len(errors)
    text = f"{name:20} {len(errors):4} {statistics.median(errors):7.0%} {close:12.0%}"
    if ordered and len(found) >= FEWEST_OF_AN_ORDER:
        order = order_of([(p.row.seconds, p.seconds) for p in found])
        text += f" {order.spearman:9.2f} {order.regret:7.1%} {order.pairs:6.0%}"
    return text


class Order(NamedTuple):
    """How well the order of an op's variants is predicted.

    Attributes:
        spearman: rank correlation of measured and predicted times.
        regret: relative excess time of the variant that is predicted to be the fastest.
        pairs: share in the right order among pairs that differ by more than `APART`.
    """

    spearman: float
    regret: float
    pairs: float


def order_of(times: Sequence[tuple[float, float]]) -> Order:
    """Return the order, given (measured, predicted) times of every variant."""
    measured, predicted = zip(*times, strict=True)
    chosen = min(times, key=lambda pair: pair[1])[0]
    right = [
        (a[1] < b[1]) == (a[0] < b[0])
        for a, b in combinations(times, 2)
        if abs(a[0] - b[0]) > APART * min(a[0], b[0])
    ]
    return Order(
        spearman=float(spearmanr(measured, predicted).statistic),
        regret=chosen / min(measured) - 1,
        pairs=sum(right) / len(right) if right else nan,
    )


def run(chosen: Iterable[CorpusRow], corpus: Path) -> list[Prediction]:
    """Return the predictions and print each; print and leave out rows that fail."""
    found = []
    for row in chosen:
        try:
            found.append(predict(row, corpus))
        except NeuronJaxError as error:
            first = str(error).splitlines()[0]
            print(f"{row.name[:34]:34} {row.chip} not priced: {first}", flush=True)
        else:
            print(line(found[-1]), flush=True)
    return found


def main(given: Sequence[str] | None = None) -> int:
    parser = corpora.command_line(__doc__.splitlines()[0])
    options = parser.parse_args(given)
    if not corpora.is_there(options.corpus):
        return 2
    chosen = corpora.chosen(corpora.rows(), options.only)
    print(
        "ms measured (of kda-for-trainium twice what is published, see the source) and"
        "\npredicted; then predicted / measured: busy ms of engines, MB of HBM"
    )
    begun = results_file.Run("validate_kernels")
    found = run(chosen, options.corpus)
    if found:
        print(summary(found))
    if options.output:
        entries = {"entries": [p.as_json() for p in found]}
        document = begun.document(entries, quick=bool(options.only))
        results_file.write(document, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
