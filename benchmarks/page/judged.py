"""The section on public kernels that were judged."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from benchmarks.page import text

Found = Mapping[str, Any]

_ABOUT = """`neuronjax judge` with NKIBench's reference and one seed, each kernel as it
is in its repository, at full size, in a process of its own; times were taken as
they came, many of them beside other work. {accepted} of {count}
accepted; median {median:.1f} s, slowest {slowest:.0f} s, at most {most:.1f} GiB.

Of kda-for-trainium's kernels eight were taken by no chip, as its author tells: two are
written for another release, two compute in BF16 where FP32 was asked for, and the
compiler refused a `dma_transpose` of FP32 and twice a broadcast by DMA, which is what
the verdicts say; the eighth (gqa_full_v7b, a sum that goes on over several activations)
came out wrong on the chip because its compiler repeats the products that the sum reads,
of which nothing here knows."""


def kernels(found: Found) -> str:
    """Return a row for every op, then the refused kernels with reasons."""
    entries = found["entries"]
    spent = [e["seconds"] for e in entries]
    about = _ABOUT.format(
        accepted=sum(e["accepted"] for e in entries),
        count=len(entries),
        median=statistics.median(spent),
        slowest=max(spent),
        most=max(e["largest_bytes"] for e in entries) / (1 << 30),
    )
    ops: dict[str, list[Found]] = defaultdict(list)
    for entry in entries:
        ops[entry["op"]].append(entry)
    head = ("op", "kernels", "accepted", "median s", "slowest s", "GiB")
    parts = [about, text.table(head, (_row(op, ops[op]) for op in sorted(ops)))]
    refused = [e for e in entries if not e["accepted"]]
    if refused:
        rows = ((e["kernel"].partition("/")[2], e["why"]) for e in refused)
        parts.append(text.folded("Not accepted", text.table(("kernel", "why"), rows)))
    if found["not_done"]:
        parts.append(f"Not judged: {len(found['not_done'])} more.")
    return "\n\n".join(parts)


def _row(op: str, entries: list[Found]) -> tuple[str, ...]:
    spent = [e["seconds"] for e in entries]
    return (
        op,
        str(len(entries)),
        str(sum(e["accepted"] for e in entries)),
        f"{statistics.median(spent):.1f}",
        f"{max(spent):.1f}",
        f"{max(e['largest_bytes'] for e in entries) / (1 << 30):.1f}",
    )
