"""`python -m benchmarks.time_model`: the time model against every published time.

The results are the rows of `benchmarks/validation` (instructions, transfers, programs)
and `validate_collectives` as data: published and predicted seconds, and whether a row
counts. Inputs of the model, variants, bounds and suspicious figures do not count.
Nothing is measured here; the figures depend on the model alone.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import results_file, validate_collectives
from benchmarks.validation import report, validate
from benchmarks.validation.rows import ROWS

BAND = 0.35  # the error beyond which a row is called missed


def _entry(
    name: str, group: str, published: float, predicted: float, **about: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "group": group,
        "published_seconds": published,
        "predicted_seconds": predicted,
        "error": predicted / published - 1,
        "counts": True,
        "held_out": False,
        **about,
    }


def instructions(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of `validation/micro_rows`."""
    for row in found["micro"]:
        times = row["published_seconds"], row["predicted_seconds"]
        yield _entry(
            f"{row['name']}, {row['chip']}",
            "instructions and DMA",
            *times,
            counts=not row["is_input"],
        )


def programs(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of `validation/rows`, by workload."""
    for row in found["rows"]:
        times = row["published_seconds"], row["predicted_seconds"]
        yield _entry(
            f"{row['name']}, {row['chip']}",
            row["workload"],
            *times,
            chip=row["chip"],
            counts=row["kind"] == "best",
            held_out=row["held_out"],
        )


def collectives() -> Iterator[dict[str, Any]]:
    """Yield the rows of `collective_measurements`."""
    for series in validate_collectives.SERIES:
        errors = validate_collectives.errors(series)
        for row, error in zip(series.rows, errors, strict=True):
            yield _entry(
                f"{series.key} {series.op}, {series.ranks} ranks, {row.size_bytes} B",
                f"collectives {series.key}",
                row.seconds,
                row.seconds * (1 + error),
                counts=not row.fits,
            )
    for case in validate_collectives.EXECUTIONS:
        yield _entry(
            f"T16 {case.target}, {case.ranks} ranks, {case.all_reduces} all-reduces of "
            f"{case.size_bytes} B",
            "collectives T16",
            case.seconds,
            validate_collectives.execution_prediction(case),
            counts=not case.fits,
        )


def summary(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return by group, and by chip for programs, the number of rows that count, the
    median and mean magnitude of their errors, and the number of missed rows."""
    counted = [entry for entry in entries if entry["counts"]]
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in counted:
        groups.setdefault(entry["group"], []).append(entry)
    for entry in counted:
        if "chip" in entry:
            groups.setdefault(f"all programs of {entry['chip']}", []).append(entry)
    groups["all"] = counted
    return [{"group": group, **_errors(own)} for group, own in groups.items()]


def _errors(entries: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [abs(entry["error"]) for entry in entries]
    held = [abs(entry["error"]) for entry in entries if entry["held_out"]]
    return {
        "rows": len(errors),
        "median": statistics.median(errors),
        "mean": statistics.fmean(errors),
        "held_out_rows": len(held),
        "held_out_median": statistics.median(held) if held else None,
        "held_out_mean": statistics.fmean(held) if held else None,
        "missed": sum(error > BAND for error in errors),
        "worst": max(errors),
    }


def measure(quick: bool) -> dict[str, Any]:
    """Return all rows; `quick` changes nothing."""
    del quick
    found = validate.as_json([report.predict(row) for row in ROWS])
    entries = [*instructions(found), *programs(found), *collectives()]
    return {"entries": entries, "summary": summary(entries), "band": BAND}


def show(found: Mapping[str, Any]) -> str:
    """Return the summary as text."""
    return "\n".join(
        f"{row['group']:24} {row['rows']:4} rows, median {row['median']:.1%}, "
        f"{row['missed']} missed by more than {found['band']:.0%}"
        for row in found["summary"]
    )


if __name__ == "__main__":
    sys.exit(results_file.command("time_model", measure, show))
