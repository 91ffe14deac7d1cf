"""The section on public kernels that were judged."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from benchmarks.page import text

Found = Mapping[str, Any]

_ABOUT = """We ran `neuronjax judge` with NKIBench's reference and one seed. Each kernel
ran unchanged, at full size, in a process of its own. The times are from single runs,
many of them beside other work. The judge accepted {accepted} of {count} kernels. The
median time was {median:.1f} s and the longest {slowest:.0f} s; a process used at most
{most:.1f} GiB.

The author of kda-for-trainium reports that eight of its kernels were not accepted on a
chip. The judge refuses seven of them too. Two are written for another release, and two
compute in BF16 where FP32 was asked for. For the other three, the vendor's compiler
refused an instruction: a `dma_transpose` of FP32 in one kernel, and a broadcast by DMA
in two. The eighth kernel (gqa_full_v7b, a sum that continues over several activations)
gave wrong results on the chip, because the vendor's compiler repeats the products that
the sum reads; neuronjax does not model this."""


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
        count = len(found["not_done"])
        parts.append(f"We did not judge {text.plural(count, 'other kernel')}.")
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
