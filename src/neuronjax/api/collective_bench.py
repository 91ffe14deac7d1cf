"""`collective_bench`: predicted times of a collective in the form of nccom-test.

The table has one row for each size, with the columns and bandwidth factors of
nccom-test and nccl-tests: algbw is size over time, busbw is the resulting bandwidth of
a link, both in 1e9 bytes per second. As in nccom-test, the size is the larger of a
rank's input and output. Nothing is run; `timing.collectives` explains the model.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (registers its dtypes' names with NumPy)
import numpy as np
from rich.console import Group
from rich.text import Text

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import Target, resolve_target
from neuronjax.report.tables import NUMBER, Displayed, new_table
from neuronjax.timing.collectives import (
    CollectiveTime,
    barrier_seconds,
    collective_time,
    time_over_nodes,
)
from neuronjax.timing.evidence import HOW_SURE

# Names of dtypes and collectives in nccom-test.
_SHORT = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8e4": "float8_e4m3",
    "fp8e5": "float8_e5m2",
}
_COLLECTIVES = {
    "allr": "all_reduce",
    "allg": "all_gather",
    "redsct": "reduce_scatter",
    "alltoall": "all_to_all",
}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZE = re.compile(r"(\d+)([KMG]?)")
_RANGE = re.compile(r"(\w+):(\w+)(?::x?(\d+))?")
_MOST_LISTED = 1024  # largest group whose ranks are listed one by one
_OVER_NODES = ("all_reduce", "reduce_scatter", "all_gather")
_HEADINGS = "size(B) count type algorithm time(us) algbw busbw".split()


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class CollectiveBench(Displayed):
    """The predicted times of one collective by size; prints as nccom-test does.

    Attributes:
        op: the collective.
        target: the machine.
        ranks: the device numbers.
        dtype: data type of the elements.
        barrier_seconds: time that any launch waits for all ranks.
        records: a dict for every size: size_bytes, count, dtype, algorithm, steps,
            time_us, latency_us, transfer_us, bytes_per_rank, bottleneck, and
            algbw_gb_per_second and busbw_gb_per_second in 1e9 bytes per second.
    """

    op: str
    target: str
    ranks: tuple[int, ...]
    dtype: str
    barrier_seconds: float
    records: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return dataclasses.asdict(self)

    def __repr__(self) -> str:
        ranks = f"{len(self.ranks)} ranks of {self.target}"
        what = f"{self.op} over {ranks}, {len(self.records)} sizes"
        return f"<neuronjax.CollectiveBench {what}>"

    def __rich__(self) -> Group:
        ranks = f"{len(self.ranks)} ranks of {self.target}"
        title = f"{self.op}, {ranks}; bandwidth in GB/s"
        wait = f"ranks wait {self.barrier_seconds * 1e3:.2g} ms for each other"
        overlap = "The wait can\noverlap the previous launch."
        note = f"Modelled. Before a launch, {wait}. {overlap}\n{HOW_SURE}"
        columns = {heading: NUMBER for heading in _HEADINGS}
        return Group(new_table(title, columns, map(_row, self.records)), Text(note))


def collective_bench(
    op: str,
    target: str = "trn2.48xlarge",
    *,
    ranks: int | Sequence[int] | None = None,
    sizes: str | Sequence[int | str] = "1K:1G:x2",
    dtype: str = "bfloat16",
    algorithm: str | None = None,
    lnc: int | None = None,
) -> CollectiveBench:
    """Predict how long a collective takes on a target, by size.

    Args:
        op: "all_reduce", "reduce_scatter", "all_gather", "all_to_all",
            "collective_permute" (every rank sends to the next) or
            "collective_broadcast"; or nccom-test's "allr", "redsct", "allg",
            "alltoall".
        target: a chip, an instance, an UltraServer, or instances: "trn2.48xlarge:4".
        ranks: number of devices that take part, from device 0 on, or a sequence of
            device numbers; None for all devices.
        sizes: sizes in bytes, as numbers or "64K" (K, M, G are binary), or "1K:1G:x2":
            first size, last size and factor.
        dtype: the elements' dtype, by NumPy's name or nccom-test's ("bf16", "fp32",
            "fp8e4").
        algorithm: the algorithm, "ring", "rdh" or another; None to choose by size.
        lnc: physical cores per logical core; None for the target's default.

    Raises:
        InvalidProgramError: an unknown op, target, dtype or algorithm, an algorithm
            that is impossible over these ranks, ranks that the target lacks, or invalid
            sizes.
        UnsupportedError: ranks on several nodes that no network connects.
    """
    op, machine = _COLLECTIVES.get(op, op), resolve_target(target)
    devices = _devices(ranks, machine, lnc)
    name, itemsize = element(dtype)
    time_of = _timer(op, machine, devices, algorithm, lnc)
    records = [_record(time_of(n), n, n // itemsize, name) for n in _sizes(sizes)]
    return CollectiveBench(
        op=op,
        target=machine.name,
        ranks=devices,
        dtype=name,
        barrier_seconds=barrier_seconds(machine, len(devices)),
        records=records,
    )


def _timer(
    op: str,
    target: Target,
    devices: tuple[int, ...],
    algorithm: str | None,
    lnc: int | None,
) -> Callable[[int], CollectiveTime]:
    """Return a function from bytes to time. More than `_MOST_LISTED` ranks must be all
    ranks of the target, in order."""
    if len(devices) <= _MOST_LISTED:
        groups: Sequence[Sequence[int]] = [devices]
        if op == "collective_permute":
            groups = list(zip(devices, (*devices[1:], devices[0]), strict=True))
        return lambda size: collective_time(
            op, size, groups, target, algorithm=algorithm, lnc=lnc
        )
    is_whole = devices == tuple(range(target.logical_cores()))
    if op not in _OVER_NODES or not is_whole or lnc not in (None, target.lnc_default):
        raise InvalidProgramError(
            f"{op} over {len(devices)} ranks is not predicted",
            remedy=f"use at most {_MOST_LISTED} ranks; "
            f"{' and '.join(_OVER_NODES)} also accept all ranks of a target",
        )
    node = range(target.logical_cores() // target.instances)
    return lambda size: time_over_nodes(
        op, size, [node], target.instances, target, algorithm=algorithm
    )


def _record(time: CollectiveTime, size: int, count: int, dtype: str) -> dict[str, Any]:
    return {
        "size_bytes": size,
        "count": count,
        "dtype": dtype,
        "algorithm": time.algorithm,
        "steps": time.steps,
        "time_us": time.seconds * 1e6,
        "latency_us": time.latency_seconds * 1e6,
        "transfer_us": time.transfer_seconds * 1e6,
        "bytes_per_rank": time.bytes_per_rank,
        "bottleneck": time.bottleneck,
        "algbw_gb_per_second": time.algbw_bytes_per_second / 1e9,
        "busbw_gb_per_second": time.busbw_bytes_per_second / 1e9,
    }


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    short = {long: short for short, long in _SHORT.items()}
    dtype = str(record["dtype"])
    return (
        str(record["size_bytes"]),
        str(record["count"]),
        short.get(dtype, dtype),
        str(record["algorithm"]),
        f"{record['time_us']:.2f}",
        f"{record['algbw_gb_per_second']:.2f}",
        f"{record['busbw_gb_per_second']:.2f}",
    )


def _devices(
    ranks: int | Sequence[int] | None, target: Target, lnc: int | None
) -> tuple[int, ...]:
    most = target.logical_cores(lnc)
    named = most if ranks is None else ranks
    devices = tuple(range(named)) if isinstance(named, int) else tuple(named)
    legal = devices and len(set(devices)) == len(devices)
    if not legal or min(devices) < 0 or max(devices) >= most:
        raise InvalidProgramError(
            f"ranks {ranks} of {target.name}, which has {most} devices",
            remedy=f"use 1 to {most} ranks, or several instances "
            "(target='trn2.48xlarge:4'); name no device twice",
        )
    return devices


def element(dtype: str) -> tuple[str, int]:
    """Return the NumPy name and the bytes of `dtype`, a name of NumPy or nccom-test."""
    name = _SHORT.get(dtype, dtype)
    try:
        return name, np.dtype(name).itemsize
    except TypeError:
        raise InvalidProgramError(
            f"no dtype is called {dtype!r}",
            remedy=f"use a name of NumPy, or one of: {', '.join(_SHORT)}",
        ) from None


def _sizes(sizes: str | Sequence[int | str]) -> list[int]:
    if not isinstance(sizes, str):
        return [_size(size) for size in sizes]
    match = _RANGE.fullmatch(sizes)
    if not match:
        return [_size(sizes)]
    size, largest, factor = _size(match[1]), _size(match[2]), int(match[3] or 2)
    found = []
    while 0 < size <= largest and factor > 1:
        found.append(size)
        size *= factor
    if not found:
        raise _no_size(sizes)
    return found


def _size(size: int | str) -> int:
    match = _SIZE.fullmatch(str(size))
    if not match:
        raise _no_size(size)
    return int(match[1]) * _UNITS[match[2]]


def _no_size(size: object) -> InvalidProgramError:
    return InvalidProgramError(
        f"{size!r} is no size", remedy="write a number of bytes, '64K', or '1K:1G:x2'"
    )
