"""The events of a timeline as rows: dictionaries, CSV, Parquet.

Columns that the vendor's profiler has are named as in its tables `Instruction` and
`DmaPacketAggregated`. Timestamps are nanoseconds from the start of the program, with
fractions. An event in a loop is one row, for the first iteration; `count` is the number
of iterations. `duration_ns` is the time for which the event occupies its queue: less
than from start to end if other events run between the event's `pieces`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neuronjax.errors import UnsupportedError
from neuronjax.report.profile_usage import op_name
from neuronjax.timing.timeline import Timeline

#: Columns for work and transfers: the field of `Work` or `Transfer` for each, and the
#: value for an event that lacks the field.
_WORK: Mapping[str, tuple[str, Any]] = {
    "tiles": ("tiles", 0),
    "flops": ("flops", 0.0),
    "adjusted_flops": ("hardware_flops", 0.0),
    "adjusted_flops_transpose": ("transpose_flops", 0.0),
    "performance_mode": ("performance_mode", ""),
    "sbuf_read_bytes": ("sbuf_read_bytes", 0.0),
    "sbuf_write_bytes": ("sbuf_write_bytes", 0.0),
    "psum_read_bytes": ("psum_read_bytes", 0.0),
    "psum_write_bytes": ("psum_write_bytes", 0.0),
    "hbm_read_bytes": ("hbm_read_bytes", 0),
    "hbm_write_bytes": ("hbm_write_bytes", 0),
    "dma_reason": ("reason", ""),
    "dma_row_bytes": ("row_bytes", 0),
    "is_transpose_mode": ("transposes", False),
}
COLUMNS: tuple[str, ...] = (
    *("engine", "start_ts", "end_ts", "duration_ns", "pieces", "evt_wait_time_ns"),
    *("count", "opcode", "instruction_id", "op", "fused_ops", "source_location"),
    *("module", "phase", *_WORK),
)
"""The columns of a row; where an event has no value, it is 0, "" or False."""

_NANOSECOND = 1e-9


def event_rows(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yield every event as a row, in the order of the timeline."""
    pairs = zip(timeline.instructions, timeline.fused, strict=True)
    names = [
        {
            "op": op_name(instruction),
            "fused_ops": ", ".join(map(op_name, fused)) if len(fused) > 1 else "",
            "source_location": instruction.location.source,
            "module": instruction.location.part,
            "phase": instruction.location.phase,
        }
        for instruction, fused in pairs
    ]
    nobody: Any = dict.fromkeys("op fused_ops source_location module phase".split(), "")
    for event in timeline.events:
        named = names[event.instruction] if event.instruction >= 0 else nobody
        yield {
            "engine": event.queue,
            "start_ts": event.start_seconds / _NANOSECOND,
            "end_ts": event.end_seconds / _NANOSECOND,
            "duration_ns": event.queue_seconds / _NANOSECOND,
            "pieces": event.pieces,
            "evt_wait_time_ns": event.wait_seconds / _NANOSECOND,
            "count": event.count,
            "opcode": event.name,
            "instruction_id": event.instruction,
            **named,
            **{c: getattr(event.source, *field) for c, field in _WORK.items()},
        }


def write_csv(timeline: Timeline, path: Path) -> None:
    """Write a line of column names, then every event as a line."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(event_rows(timeline))


def write_parquet(timeline: Timeline, path: Path) -> None:
    """Write every event as a row of a Parquet table.

    Raises:
        UnsupportedError: pyarrow is not installed.
    """
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UnsupportedError(
            "Parquet is written by pyarrow, which is not installed",
            remedy="pip install pyarrow, or write CSV: to_csv(path)",
        ) from error
    rows = list(event_rows(timeline))
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    parquet.write_table(pyarrow.table(columns), str(path))
